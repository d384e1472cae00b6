"""Chains of steps: compiled jobs against the same jobs played by SimPy, micro-batch by micro-batch."""

from dataclasses import fields, replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import play as compiled
from sim.clock import simpy_clock
from sim.clock.play import END, SERVICE, USABLE, Sheet
from sim.clock.play import Ranks as Played
from sim.clock.program import REST, STALLED, Item, Program
from sim.clusters import distribution as job
from sim.clusters.distribution import JobSteps, VariedStep, play_job, play_jobs
from sim.clusters.ranks import Ranks, SlowRanks, make_crew
from sim.errors import InputError, NotModelledError
from sim.systems.registry import write
from tests.effort import tries
from tests.machines import machine, model
from tests.strategies import SCALES, Case, cases, other_ranks
from tests.systems.cases import system_cases


@st.composite
def any_ranks(draw: st.DrawFn, world_size: int) -> Ranks:
    """Ranks of a job of this size that differ in any of the ways."""
    first = draw(st.integers(0, world_size - 1))
    stalls = draw(st.booleans())
    sigmas = st.just(0.0) | st.floats(0.001, 0.5)
    return Ranks(
        name="any",
        pace_jitter=draw(sigmas),
        pace_spread=draw(sigmas),
        slow=(SlowRanks(first=first, count=world_size - first, pace=draw(st.floats(0.5, 3))),)
        if draw(st.booleans())
        else (),
        stall_probability=draw(st.floats(0.1, 1)) if stalls else 0.0,
        stall_ns=draw(st.integers(1, 50)) if stalls else 0,
    )


def play_by_simpy(programs: list[Program], sheet: Sheet, *crew: Any) -> Played:
    """What ``play_ranks`` says of ends and logs, by SimPy; ``programs`` are the variants."""
    variants, paces, stalled, stall_ns, begins = crew
    services = sheet.collectives[:, SERVICE].tolist()

    def as_run(variant: int, pace: float, stalled: int) -> Program:
        lane = [
            item._replace(duration_ns=round(item.duration_ns * pace)) if item.kind <= REST else item
            for item in programs[variant].lane
        ]
        if stalled >= 0:
            lane.insert(stalled + 1, Item(STALLED, stall_ns))
        times = zip(programs[variant].collectives, services, strict=True)
        collectives = tuple(replace(one, service_ns=service) for one, service in times)
        return replace(programs[variant], lane=tuple(lane), collectives=collectives)

    rows = zip(variants.tolist(), paces.tolist(), stalled.tolist(), strict=True)
    outcomes = simpy_clock.play_together([as_run(*row) for row in rows], begins.tolist())
    logs = [(one.launch_ns, one.taken_ns, one.start_ns, one.end_ns, one.usable_ns) for one in outcomes]
    log = np.array(logs, np.int64).reshape(len(outcomes), USABLE + 1, -1).transpose(0, 2, 1)
    states = np.zeros((len(outcomes), END + 1), np.int64)
    states[:, END] = [one.lane_end_ns for one in outcomes] + begins
    none = np.zeros(0, np.int64)
    return Played(variants, paces, stalled, stall_ns, states, none, none, log + begins[:, None, None], none)


def in_simpy(step: VariedStep, case: Case, seed: int, steps: int) -> JobSteps:
    written = [write(workload, case.hardware, case.assignment) for workload in step.crew.variants]

    def play_ranks(sheet: Sheet, *crew: Any) -> Played:
        batch = next(k for k, one in enumerate(step.sheets) if one.lanes is sheet.lanes)
        oracle = play_by_simpy([programs[batch] for programs in written], sheet, *crew)
        assert compiled.play_ranks(sheet, *crew).log.tolist() == oracle.log.tolist()
        return oracle

    with mock.patch.object(job, "play_ranks", play_ranks):
        return play_job(step, np.random.SeedSequence(seed), steps)


def same(one: JobSteps, two: JobSteps) -> None:
    for field in fields(JobSteps):
        assert np.array_equal(getattr(one, field.name), getattr(two, field.name)), field.name


@settings(max_examples=tries(160), deadline=None)
@given(st.data())
def test_jobs_are_what_simpy_makes_of_them(data: st.DataObject) -> None:
    """Every step, every wait and every last arriver of 1 to 8 ranks over several steps, to the nanosecond."""
    scale = data.draw(SCALES)
    case = data.draw(cases(st.just(scale), max_gradients=6))
    samples = data.draw(st.lists(other_ranks(case.workload, scale), max_size=3))
    recorded = tuple(tuple(g.ready_ns for g in one.gradients) for one in samples)
    workload = replace(case.workload, samples=recorded)
    size = data.draw(st.integers(1, 8))
    ranks = data.draw(any_ranks(size))
    hardware = replace(case.hardware, world_size=size)
    crew = make_crew(workload, size, ranks)
    others = data.draw(st.lists(other_ranks(case.workload, scale), max_size=2))
    crew = replace(crew, variants=(*crew.variants, *others))  # of other forwards and optimizers too
    if ranks.stall_probability and min(one.backward_ns for one in crew.variants) == 0:
        with pytest.raises(InputError, match="stall_probability: a backward without work"):
            VariedStep(crew, hardware, case.assignment)
        return
    step = VariedStep(crew, hardware, case.assignment)
    seed, steps = data.draw(st.integers(0, 99)), data.draw(st.integers(1, 4))
    oracle = in_simpy(step, replace(case, hardware=hardware), seed, steps)
    same(play_job(step, np.random.SeedSequence(seed), steps), oracle)


@settings(max_examples=tries(40), deadline=None)
@given(system_cases(), st.data())
def test_jobs_of_every_system_are_what_simpy_makes_of_them(case: Case, data: st.DataObject) -> None:
    """Several micro-batches, lanes that wait in their middle, collectives that follow others."""
    ranks = data.draw(any_ranks(2))
    if case.workload.backward_ns == 0:
        ranks = replace(ranks, stall_probability=0.0, stall_ns=0)
    step = VariedStep(make_crew(case.workload, 2, ranks), case.hardware, case.assignment)
    try:
        oracle = in_simpy(step, case, 1, 2)
    except NotModelledError:
        with pytest.raises(NotModelledError, match="in different orders"):
            play_job(step, np.random.SeedSequence(1), 2)
        return
    same(play_job(step, np.random.SeedSequence(1), 2), oracle)


@settings(max_examples=tries(40), deadline=None)
@given(cases(max_gradients=6), st.integers(2, 5), st.integers(1, 30))
def test_ranks_alike_take_the_nominal_step_every_time(case: Case, size: int, samples: int) -> None:
    hardware = replace(case.hardware, world_size=size)
    told = sim.step_distribution(
        replace(case.workload, samples=()), hardware, case.assignment, Ranks(name="alike"), samples=samples
    )
    nominal = sim.summarize(sim.simulate(case.workload, hardware, case.assignment, "analytic")).step_ns
    assert {*told.quantiles_ns, told.mean_step_ns, told.nominal_step_ns} == {nominal}
    assert (told.slowest_cost_ns, told.waited_ns, told.samples) == (0, 0, samples)
    assert sum(part.last_share for part in told.parts) == 0


CASE = (model(40, "measured"), replace(machine("measured"), world_size=4))


def test_jobs_do_not_depend_on_how_many_threads_play_them() -> None:
    case = CASE
    crew = make_crew(case[0], 4, Ranks(name="r", pace_jitter=0.1, pace_spread=0.1))
    step = VariedStep(crew, case[1], sim.assign(case[0]))
    together = play_jobs(step, 3, [5, 4])
    with mock.patch("os.cpu_count", return_value=1):
        alone = play_jobs(step, 3, [5, 4])
    for one, two in zip(together, alone, strict=True):
        assert one.steps_ns.tolist() == two.steps_ns.tolist()
    assert len({*together[0].steps_ns.tolist(), *together[1].steps_ns.tolist()}) == 9
