"""The search with deadlines: the optimum on one FIFO channel, and a bound on any machine."""

from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock.program import Effects
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import ReadyIncludes
from sim.systems.cut import NO_LIMIT
from sim.tuner.search import climbing, exact
from sim.tuner.search.bound import lower_bound_ns
from sim.tuner.search.exact import Found, covers, exact_optimum
from sim.tuner.search.labels import applies
from sim.tuner.search.problem import Problem
from sim.tuner.search.score import Scorer
from tests.effort import tries
from tests.tuner.cases import (
    Case,
    anything,
    brute_force,
    compiled_minimum,
    is_contiguous,
    keeps_to,
    large,
    limits,
    link,
    one_channel_optimum,
    one_run,
    resnet50,
    simulated,
    tiny,
)

WITHOUT_EFFECTS = replace(link(4, world_size=4), launch_cost_ns=3)
ABOVE = st.sampled_from([0, 0, 1, 2, 1000, 10**9])


def by_windows(problem: Problem, upper_ns: int, max_bytes: int = NO_LIMIT) -> Found | None:
    """What is found if no lattice is small enough."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "MOST_STEPS", -1)
        return exact_optimum(problem, upper_ns, max_bytes)


def with_rising(hardware: Hardware) -> Hardware:
    """The same points in an order in which the curve never falls."""
    times = sorted(point.duration_ns for point in hardware.all_reduce)
    return replace(
        hardware,
        all_reduce=tuple(
            replace(point, duration_ns=time) for point, time in zip(hardware.all_reduce, times, strict=True)
        ),
    )


def quick_launches(case: Case) -> Case:
    """Launches that take no longer than what they launch, so that the search covers the case."""
    workload, hardware = case
    dearest = 0 if hardware.world_size == 1 else min(p.duration_ns for p in hardware.all_reduce)
    return workload, replace(hardware, launch_cost_ns=min(hardware.launch_cost_ns, dearest))


# ---------------------------------------------------------------------------------------------------
# Where the search is the whole answer.


@settings(max_examples=tries(200))
@given(one_run(max_gradients=10).map(quick_launches), ABOVE)
def test_without_copies_it_is_the_optimum(case: Case, above: int) -> None:
    """To the ns, for any curve, against an oracle that shares no line with it."""
    workload, hardware = case[0], replace(case[1], copy_out_bytes_per_s=None)
    problem = Problem(workload, hardware)
    assert covers(problem)
    best = one_channel_optimum(workload, hardware)
    found = exact_optimum(problem, best + above)
    assert found is not None
    assert not found.is_rounded
    assert found.at_least_ns == best == simulated(workload, hardware, found.buckets)
    assert is_contiguous(workload, found.buckets)


@settings(max_examples=tries(200))
@given(one_run(max_gradients=10).map(quick_launches), ABOVE)
def test_with_copies_it_is_the_optimum_but_for_roundings(case: Case, above: int) -> None:
    problem = Problem(*case)
    best = one_channel_optimum(*case)
    found = exact_optimum(problem, best + above)
    assert found is not None
    assert (
        found.at_least_ns <= best <= simulated(*case, found.buckets) <= found.at_least_ns + len(problem) + 1
    )
    assert is_contiguous(case[0], found.buckets)


@settings(max_examples=tries(200))
@given(anything(max_gradients=25), st.data())
def test_without_copies_no_two_neighbours_can_be_merged_without_loss(case: Case, data: st.DataObject) -> None:
    """So that ``find_optimum`` need not try, for any dtypes and devices."""
    workload, hardware = case
    max_bytes = data.draw(limits(workload))
    problem = Problem(*quick_launches((workload, replace(WITHOUT_EFFECTS, all_reduce=hardware.all_reduce))))
    found = exact_optimum(problem, NO_LIMIT, max_bytes)
    assert found is not None
    assert covers(problem)
    assert not found.is_rounded
    closes = problem.closes(found.buckets)
    assert closes is not None
    climbing.merge(problem.machine, problem.tables, problem.run_ends(), closes, max_bytes, 1000)
    assert problem.buckets(closes) == found.buckets


@settings(max_examples=tries(200))
@given(anything(max_gradients=8), ABOVE)
def test_several_runs_are_searched_together(case: Case, above: int) -> None:
    """Dtypes, devices and sparse gradients share the one channel."""
    workload, machine = case
    slow = ("compute", "comm", "copy_in", "copy_out", "comm_copy_out")
    calm = {f"{name}_slowdown": 1.0 for name in slow}
    machine = replace(machine, comm_channels=1, launch_blocks_compute=False, **calm)  # type: ignore[arg-type]
    case = quick_launches((workload, machine))
    problem = Problem(*case)
    assert covers(problem)
    best = compiled_minimum(problem)
    found = exact_optimum(problem, best + above)
    assert found is not None
    reached = simulated(*case, found.buckets)
    assert is_contiguous(workload, found.buckets)
    if found.is_rounded:
        assert found.at_least_ns <= best <= reached <= found.at_least_ns + len(problem) + 1
    else:
        assert found.at_least_ns == best == reached


@settings(max_examples=tries(200))
@given(anything(max_gradients=8), st.booleans(), st.data())
def test_a_limit_is_kept_and_the_best_under_it_found(case: Case, calm: bool, data: st.DataObject) -> None:
    if calm:
        machine = replace(case[1], comm_channels=1, launch_cost_ns=0, launch_blocks_compute=False)
        slow = ("compute", "comm", "copy_in", "copy_out", "comm_copy_out")
        case = case[0], replace(machine, **{f"{name}_slowdown": 1.0 for name in slow})
    problem = Problem(*case)
    max_bytes = data.draw(limits(case[0]))
    best = compiled_minimum(problem, max_bytes)
    found = exact_optimum(problem, best + data.draw(ABOVE), max_bytes)
    assert found is not None
    assert keeps_to(case[0], found.buckets, max_bytes)
    assert is_contiguous(case[0], found.buckets)
    assert found.at_least_ns <= best
    if covers(problem):
        reached = simulated(*case, found.buckets)
        assert best <= reached <= found.at_least_ns + (len(problem) + 1 if found.is_rounded else 0)


@pytest.mark.parametrize(
    ("changes", "includes", "inside"),
    [
        ({"comm_channels": 2}, (), False),
        ({"channel_slowdown": 2.0}, (), True),
        ({"comm_slowdown": 1.01}, (), False),
        ({"compute_slowdown": 1.01}, (), False),
        ({"compute_slowdown": 1.01}, ("interference",), True),
        ({"comm_slowdown": 1.01}, ("interference",), False),
        ({"launch_blocks_compute": True, "launch_cost_ns": 1}, (), False),
        ({"launch_blocks_compute": True, "launch_cost_ns": 0}, (), True),
        ({"launch_blocks_compute": True, "launch_cost_ns": 1}, ("launch",), True),
        ({"launch_cost_ns": 50_000}, (), True),
    ],
)
def test_both_searches_cover_what_they_may(
    changes: dict[str, Any], includes: tuple[ReadyIncludes, ...], inside: bool
) -> None:
    """One channel, and nothing that stretches or blocks."""
    problem = Problem(replace(resnet50(), ready_includes=includes), replace(link(4), **changes))
    assert covers(problem) == applies(problem) == inside


@pytest.mark.parametrize("changes", [{"launch_cost_ns": 50_001}, {"launch_cost_ns": 1, "world_size": 1}])
def test_launches_that_outlast_an_all_reduce_are_left_to_labels(changes: dict[str, Any]) -> None:
    problem = Problem(resnet50(), replace(link(4, latency_us=50), **changes))
    assert (covers(problem), applies(problem)) == (False, True)


@pytest.mark.parametrize("name", [one.name for one in fields(Effects)])
def test_any_effect_but_a_launch_is_beyond_both_searches(name: str) -> None:
    """So that none is forgotten: what is not known to them is not called proved."""
    problem = Problem(resnet50(), link(4, latency_us=50))
    given = {name: True if name == "launch_blocks_compute" else 2}
    problem.effects = Effects(**{"launch_cost_ns": 1, **given})
    if name in ("channel_slowdown", "small_bytes", "small_slowdown"):  # of several channels
        problem.effects = replace(problem.effects, channels=2)
    assert covers(problem) == applies(problem) == (name == "launch_cost_ns")


# ---------------------------------------------------------------------------------------------------
# A bound elsewhere.


@settings(max_examples=tries(250))
@given(anything(max_gradients=8), ABOVE)
def test_on_any_machine_nothing_is_better_than_it_says(case: Case, above: int) -> None:
    """Channels, slow-downs, blocking launches, dtypes: ``at_least_ns`` is never above the optimum."""
    problem = Problem(*case)
    best = compiled_minimum(problem)
    found = exact_optimum(problem, best + above)
    assert found is not None
    assert lower_bound_ns(problem) <= found.at_least_ns <= best
    assert is_contiguous(case[0], found.buckets)


@st.composite
def channels(draw: st.DrawFn) -> Case:
    """A few ns on several channels that share: what the rounding of a curve for all of them can break."""
    count = draw(st.integers(1, 8))
    gap = draw(st.integers(0, 3))
    sizes = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    times = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    step = draw(st.sampled_from([1, 1, 2, 5]))
    number = draw(st.integers(2, 4))
    return tiny(
        [gap * (count - k) for k in range(count)],
        sizes,
        {step * k: time for k, time in enumerate(times)},
        gap * count + draw(st.integers(0, 3)),
        comm_channels=number,
        channel_slowdown=draw(st.sampled_from([1.0, 1.1, 1.4, 1.49, 2.0, 2.45, 3.3, number * 0.99])),
        comm_slowdown=draw(st.sampled_from([1.0, 1.0, 1.4, 1.49])),
        copy_out_bytes_per_s=draw(st.sampled_from([None, 7e8, 9e9])),
    )


@settings(max_examples=tries(200))
@given(channels())
def test_all_channels_as_one_are_never_slower(case: Case) -> None:
    problem = Problem(*case)
    best = compiled_minimum(problem)
    found = exact_optimum(problem, best)
    assert found is not None
    assert found.at_least_ns <= best


def test_all_channels_as_one_beyond_the_last_point() -> None:
    """A line through two points a byte apart, rounded and drawn on for 40 MB, is a line of another slope."""
    case = tiny(
        [37_848_653, 32_739_280, 29_317_791],
        [41_907_405] * 3,
        {2: 16_159_996, 3: 17_850_176, 4: 33_365_023},
        90_490_403,
        comm_channels=3,
        channel_slowdown=4 / 3,
    )
    best = brute_force(*case)
    found = exact_optimum(Problem(*case), best)
    assert found is not None
    assert best * (1 - 1e-6) <= found.at_least_ns <= best


@pytest.mark.parametrize(
    ("case", "best"),
    [
        (tiny([0] * 4, [0, 3, 3, 3], {0: 0, 5: 2}, 0, comm_channels=3, channel_slowdown=2.45), 2),
        (tiny([0] * 9, [1] * 9, {0: 0, 5: 7}, 1, comm_channels=3, channel_slowdown=1.49), 3),
        (tiny([0] * 3, [2] * 3, {0: 0, 3: 5}, 1, comm_channels=2, channel_slowdown=1.8), 8),
    ],
)
def test_all_channels_as_one_give_away_what_is_rounded(case: Case, best: int) -> None:
    """Each all-reduce is rounded down twice: one case in some 300 that are made for it."""
    assert brute_force(*case) == best
    found = exact_optimum(Problem(*case), best)
    assert found is not None
    assert found.at_least_ns <= best


# ---------------------------------------------------------------------------------------------------
# Lattice and windows.


@settings(max_examples=tries(200))
@given(one_run(max_gradients=10), st.data())
def test_windows_find_what_the_lattice_finds(case: Case, data: st.DataObject) -> None:
    """On a curve that never falls; within the roundings that the windows compare without."""
    workload, hardware = case[0], with_rising(case[1])
    problem = Problem(workload, hardware)
    max_bytes = data.draw(limits(workload))
    upper = compiled_minimum(problem, max_bytes) + data.draw(ABOVE)
    whole, quick = exact_optimum(problem, upper, max_bytes), by_windows(problem, upper, max_bytes)
    assert whole is not None
    assert quick is not None
    assert abs(quick.at_least_ns - whole.at_least_ns) <= len(problem) + 1
    assert keeps_to(workload, quick.buckets, max_bytes)
    assert is_contiguous(workload, quick.buckets)
    reached = [simulated(workload, hardware, found.buckets) for found in (whole, quick)]
    assert abs(reached[0] - reached[1]) <= 2 * len(problem) or not covers(problem)


@settings(max_examples=tries(200))
@given(one_run(max_gradients=10), st.data())
def test_windows_bound_a_curve_that_falls(case: Case, data: st.DataObject) -> None:
    problem = Problem(*case)
    max_bytes = data.draw(limits(case[0]))
    best = compiled_minimum(problem, max_bytes)
    found = by_windows(problem, best + data.draw(ABOVE), max_bytes)
    assert found is not None
    assert found.at_least_ns <= best
    assert keeps_to(case[0], found.buckets, max_bytes)
    assert is_contiguous(case[0], found.buckets)
    never_falls = (np.diff(problem.curve_ns) >= 0).all()
    assert found.is_rounded == (problem.machine.copy_out_ns_per_byte > 0 or not never_falls)


# ---------------------------------------------------------------------------------------------------
# Found by random search.


def test_free_copies_by_rounding_are_no_obstacle() -> None:
    """A copy of one byte takes a third of a ns, so none: the partition that is known is better than any to
    which the search gives its thirds, and under a limit it has to find another one none the less."""
    case = tiny([3] * 8, [1] * 8, {1: 0}, 3, copy_out_bytes_per_s=3e9)
    problem = Problem(*case)
    best = brute_force(*case)
    assert best == 3
    found = exact_optimum(problem, best, max_bytes=1)
    assert found is not None
    assert found.at_least_ns <= 3
    assert keeps_to(case[0], found.buckets, 1)


def test_a_known_optimum_that_rounding_favours_is_found() -> None:
    """Three copies of 1.4 ns take 3 ns, a time that the search, which counts 4.2, cannot keep to."""
    case = tiny([0] * 6, [1] * 6, {1: 50, 2: 0, 3: 100}, 0, copy_out_bytes_per_s=2e9 / 1.4)
    found = exact_optimum(Problem(*case), 3)
    assert found is not None
    assert brute_force(*case) == 3
    assert found.buckets == ((5, 4), (3, 2), (1, 0))


def test_a_service_that_is_rounded_up_still_meets_its_deadline() -> None:
    """127 + 61 * 171 ns and copies of 21.33: with a limit each gradient is alone, whatever rounding says."""
    case = tiny(
        [122, 0],
        [64, 64],
        {3: 127, 4: 298},
        122,
        launch_cost_ns=32,
        copy_in_bytes_per_s=7e8,
        copy_out_bytes_per_s=3e9,
    )
    found = exact_optimum(Problem(*case), simulated(*case, ((1,), (0,))), max_bytes=84)
    assert found is not None
    assert found.buckets == ((1,), (0,))


# ---------------------------------------------------------------------------------------------------
# Large.


@pytest.mark.parametrize(
    ("count", "gbit", "further"),
    [
        pytest.param(10_000, 10, {}, id="10k"),
        pytest.param(10_000, 1000, {"copy_out_bytes_per_s": 1e11}, id="10k-copies"),
        pytest.param(100_000, 100, {}, id="100k"),
        pytest.param(
            100_000,
            1000,
            {"copy_out_bytes_per_s": 1e12, "launch_cost_ns": 9000},
            id="100k-copies",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            100_000, 300, {"comm_channels": 2, "channel_slowdown": 2.0}, id="100k-two", marks=pytest.mark.slow
        ),
    ],
)
def test_large_models_come_back_with_a_bound(count: int, gbit: float, further: dict[str, Any]) -> None:
    """What is found is within 1e-4 of what is proved, for a latency and a bandwidth."""
    workload, hardware = large(count), link(gbit, **further)
    scorer = Scorer(workload, hardware)
    problem = scorer.problem
    one_each = tuple((index,) for index in problem.order)
    found = exact_optimum(problem, scorer.sync_end_ns(one_each))
    assert found is not None
    assert is_contiguous(workload, found.buckets)
    reached = scorer.sync_end_ns(found.buckets)
    assert found.at_least_ns <= reached <= found.at_least_ns * (1 + 1e-4)
    assert lower_bound_ns(problem) <= found.at_least_ns
    assert reached <= scorer.sync_end_ns(one_each) + count


def test_a_curve_with_noise_at_10_000() -> None:
    """Measured points that fall now and then, and copies: too much for the lattice, so a bound alone."""
    random = Random(3)
    sizes = [0, *(1 << k for k in range(10, 34))]
    noisy = tuple(
        CurvePoint(num_bytes=size, duration_ns=round((50_000 + size * 0.01) * random.uniform(0.97, 1.03)))
        for size in sizes
    )
    hardware = replace(link(100, copy_out_bytes_per_s=1e12), all_reduce=noisy)
    workload = large(10_000)
    scorer = Scorer(workload, hardware)
    found = exact_optimum(scorer.problem, scorer.sync_end_ns((scorer.problem.order,)))
    assert found is not None
    assert found.is_rounded
    assert found.at_least_ns <= scorer.sync_end_ns(found.buckets) <= found.at_least_ns * 1.06
