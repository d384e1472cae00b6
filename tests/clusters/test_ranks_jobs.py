"""Chains of steps: compiled jobs against the same jobs played by SimPy, micro-batch by micro-batch."""

from dataclasses import fields, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import play as compiled
from sim.clock import ranks as playing
from sim.clusters import distribution as job
from sim.clusters.distribution import JobSteps, VariedStep, play_job, play_jobs
from sim.clusters.ranks import Ranks, SlowRanks, make_crew
from sim.errors import InputError, NotModelledError
from tests.bench.machines import machine, model
from tests.effort import tries
from tests.strategies import SCALES, Case, cases, other_ranks
from tests.systems.any_system import system_cases


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


def in_simpy(step: VariedStep, seed: int, steps: int) -> JobSteps:
    with mock.patch.object(job, "play", playing.play_by_simpy):
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
    oracle = in_simpy(step, seed, steps)
    same(play_job(step, np.random.SeedSequence(seed), steps), oracle)
    with mock.patch.object(compiled, "_FEWEST_RANKS", 1), mock.patch("os.cpu_count", return_value=3):
        same(play_job(step, np.random.SeedSequence(seed), steps), oracle)  # shared out to threads


@settings(max_examples=tries(40), deadline=None)
@given(system_cases(), st.data())
def test_jobs_of_every_system_are_what_simpy_makes_of_them(case: Case, data: st.DataObject) -> None:
    """Several micro-batches, lanes that wait in their middle, collectives that SimPy alone can play."""
    ranks = data.draw(any_ranks(2))
    if case.workload.backward_ns == 0:
        ranks = replace(ranks, stall_probability=0.0, stall_ns=0)
    step = VariedStep(make_crew(case.workload, 2, ranks), case.hardware, case.assignment)
    try:
        oracle = in_simpy(step, 1, 2)
    except NotModelledError:
        with pytest.raises(NotModelledError, match="wait for each other for ever"):
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


def test_what_simpy_alone_can_play_is_refused_beyond_what_it_can() -> None:
    workload, hardware = CASE
    hardware = replace(hardware, reduce_scatter=hardware.all_reduce, all_gather=hardware.all_reduce)
    assignment = sim.assign(workload, "fully_shard", replicas=2)
    sim.step_distribution(workload, hardware, assignment, Ranks(name="r"), samples=1)
    with mock.patch.object(playing, "MOST_ITEMS", 10), pytest.raises(NotModelledError, match="too many"):
        sim.step_distribution(workload, hardware, assignment, Ranks(name="r"), samples=1)
