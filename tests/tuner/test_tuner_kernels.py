"""The compiled kernels and the arrays of a problem: each against what is written for people."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.clock import machine_code
from sim.clock.program import MOST_NS
from sim.costs.service_time import service_ns
from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, Assignment
from sim.nouns.hardware import SLOWDOWNS, CurvePoint
from sim.systems.ddp_assignment import as_the_job
from sim.tuner import optimum as climbing
from sim.tuner import problem as kernels
from sim.tuner.problem import Problem
from tests import strategies
from tests.effort import tries
from tests.systems.cases import Job, jobs
from tests.tuner.cases import Case, anything, contiguous_partitions, is_contiguous, link, resnet50, simulated

# Service times.

any_size = st.integers(0, 20) | st.integers(0, 1 << 31) | st.integers(1 << 31, 1 << 52)


@st.composite
def wide_curves(draw: st.DrawFn) -> tuple[CurvePoint, ...]:
    """Points close together and further apart than 2**31 bytes, times up to 2**42 ns."""
    sizes = draw(st.lists(any_size, min_size=1, max_size=5, unique=True))
    times = st.integers(0, 20) | st.integers(0, 1 << 31) | st.integers(0, MOST_NS)
    return tuple(CurvePoint(num_bytes=size, duration_ns=draw(times)) for size in sorted(sizes))


@settings(max_examples=tries(300))
@given(wide_curves(), st.lists(any_size, min_size=1, max_size=8))
def test_services_are_those_of_the_engines(curve: tuple[CurvePoint, ...], sizes: list[int]) -> None:
    sizes += [point.num_bytes + more for point in curve for more in (-1, 0, 1) if point.num_bytes + more >= 0]
    expected = [service_ns(curve, size) for size in sizes]
    assume(max(expected) <= MOST_NS)
    arrays = kernels.curve_arrays(curve, max(sizes))
    assert kernels.services(*arrays, np.array(sizes)).tolist() == expected


# One step.


@settings(max_examples=tries(150))
@given(anything(max_gradients=6))
def test_every_partition_takes_as_long_as_it_is_simulated(case: Case) -> None:
    """By which places end a bucket, and back."""
    problem = Problem(*case)
    places, seen = np.flatnonzero(~problem.run_ends), set()
    for number, end in enumerate(problem.score_all(places).tolist()):
        closes = problem.run_ends.copy()
        closes[places] = [bool(number >> bit & 1) for bit in range(len(places))]
        buckets = problem.buckets(closes)
        assert end == problem.sync_end_ns(buckets) == simulated(*case, buckets)
        again = problem.closes([list(bucket)[::-1] for bucket in buckets])
        assert again is not None
        assert (again == closes).all()
        assert len(buckets) < 2 or problem.closes(buckets[::-1]) is None
        seen.add(buckets)
    assert seen == set(contiguous_partitions(case[0]))
    if len(problem) > 2 and problem.has_one_run:
        assert problem.closes((problem.order[::2], problem.order[1::2])) is None


# Climbing and merging.


def drawn_closes(problem: Problem, random: Random, share: float) -> np.ndarray:
    return problem.run_ends | np.array([random.random() < share for _ in range(len(problem))])


@settings(max_examples=tries(100))
@given(anything(max_gradients=9), st.randoms(use_true_random=False), st.sampled_from([1, 3, 60, 500]))
def test_climbing_is_never_worse_than_its_start(case: Case, random: Random, budget: int) -> None:
    """Whatever the budget; what it returns is the score of where it stands."""
    problem = Problem(*case)
    closes = drawn_closes(problem, random, random.random())
    before = problem.sync_end_ns(problem.buckets(closes))
    again = closes.copy()
    end, spent = climbing.climb(problem.tables, closes, budget, 1)
    assert end <= before
    assert 1 <= spent <= budget + 10  # the moves of one place
    assert problem.sync_end_ns(problem.buckets(closes)) == end
    assert is_contiguous(case[0], problem.buckets(closes))
    assert climbing.climb(problem.tables, again, budget, 1) == (end, spent)
    assert (again == closes).all()


# The arrays.


def test_times_and_sizes_beyond_what_can_be_counted_are_refused() -> None:
    """An int64 would wrap, and the answer be anything."""
    workload = resnet50()
    huge = replace(
        workload, gradients=(replace(workload.gradients[0], num_bytes=1 << 53), *workload.gradients[1:])
    )
    with pytest.raises(InputError, match=r"num_bytes of all gradients: \d+ is more than the tuner can count"):
        Problem(huge, link(4))
    steep = (CurvePoint(num_bytes=0, duration_ns=0), CurvePoint(num_bytes=1, duration_ns=1 << 20))
    for case in (
        (replace(workload, backward_ns=MOST_NS + 1), link(4)),
        (workload, replace(link(4), all_reduce=steep)),
        (workload, link(4, launch_cost_ns=1 << 61)),
        (workload, link(4, copy_out_bytes_per_s=1.0)),
        (workload, link(4, copy_in_bytes_per_s=1.0)),
    ):
        with pytest.raises(InputError, match=r"a step could take .* look at the recorded times, all_reduce"):
            Problem(*case)


@settings(max_examples=tries(250))
@given(strategies.cases())
def test_scorer_agrees_with_both_engines(case: strategies.Case) -> None:
    """Any legal assignment, in any order, on any machine, to the nanosecond. Bucket views (A3.4) are a
    matter of ``ddp_kwargs``, of which the scorer knows nothing."""
    buckets = case.assignment.bucket_indices
    problem = Problem(case.workload, case.hardware)
    end = problem.sync_end_ns(buckets)
    bare = Assignment(bucket_indices=buckets)
    for engine in ("simpy", "analytic"):
        assert end == sim.simulate(case.workload, case.hardware, bare, engine).sync_end_ns


@settings(max_examples=tries(400))
@given(jobs() | jobs(comm_hook="fp16_compress"), st.randoms(use_true_random=False), st.integers(0, 9))
def test_a_problem_plays_and_bounds_the_step_under_its_switches(job: Job, random: Random, above: int) -> None:
    """Unused parameters are marked, filled with zeros and wait for a map; views and micro-batches too; whole
    buckets are copied and cast."""
    switches = {name: value for name, value in job.options.items() if name not in CAP_KWARGS}
    calm = replace(job.hardware, **dict.fromkeys(SLOWDOWNS, 1.0))
    problem, rest = Problem(job.workload.with_switches(switches), calm), set()
    for _ in range(3):
        drawn = problem.buckets(drawn_closes(problem, random, 0.4))
        buckets = tuple(random.sample(drawn, len(drawn))) if random.random() < 0.3 else drawn
        try:
            made = as_the_job(problem.job, Assignment(bucket_indices=buckets))
        except NotModelledError:
            assume(False)
        step_ns = sim.simulate(problem.job, calm, made, "analytic").step_ns
        rest.add(step_ns - problem.times * problem.sync_end_ns(buckets))
    assert rest == {problem.rest_ns}
    for one in (problem, Problem(problem.job, job.hardware)):
        least = int(one.score_all(np.flatnonzero(~one.run_ends)).min())
        found = climbing.exact_optimum(one, least + above)
        assert max(climbing.lower_bound_ns(one), found.at_least_ns if found else 0) <= least
        assert not (found and climbing.covers(one)) or one.sync_end_ns(found.buckets) == least


def test_all_that_kernels_are_made_of_is_in_the_name_of_what_is_kept() -> None:
    """Numba notices no change of another file than a kernel's own."""
    root = Path(machine_code.__file__).parents[1]
    made = {path for path in root.rglob("*.py") if "import compiled\n" in path.read_text(encoding="utf-8")}
    named = {root / name for name in machine_code.SOURCES}
    others = {root / name for name in ("clock/machine_code.py", "clock/program.py", "systems/cut.py")}
    assert made | others == named
