"""The search with deadlines: the optimum on one FIFO channel, and a bound on any machine."""

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.clock.program import Machine, Rates
from sim.nouns.hardware import CurvePoint
from sim.nouns.workload import ReadyIncludes
from sim.systems.cut import NO_LIMIT
from sim.tuner import optimum as climbing
from sim.tuner.exact import covers, exact_optimum, lower_bound_ns
from sim.tuner.problem import Problem
from tests.effort import tries
from tests.tuner.cases import (
    Case,
    anything,
    brute_force,
    compiled_minimum,
    is_contiguous,
    large,
    link,
    one_channel_optimum,
    one_run,
    resnet50,
    simulated,
    tiny,
)

WITHOUT_EFFECTS = replace(link(4, world_size=4), launch_cost_ns=3)
ABOVE = st.sampled_from([0, 0, 1, 2, 1000, 10**9])


def quick_launches(case: Case) -> Case:
    """Launches that take no longer than what they launch, so that the search covers the case."""
    workload, hardware = case
    dearest = 0 if hardware.world_size == 1 else min(p.duration_ns for p in hardware.all_reduce)
    return workload, replace(hardware, launch_cost_ns=min(hardware.launch_cost_ns, dearest))


# ---------------------------------------------------------------------------------------------------
# Where the search is the whole answer.


@settings(max_examples=tries(400))
@given(one_run(max_gradients=10).map(quick_launches), ABOVE)
def test_it_is_the_optimum(case: Case, above: int) -> None:
    """To the ns, for any curve, with copies and without, against an oracle that shares no line with it."""
    problem = Problem(*case)
    assert covers(problem)
    best = one_channel_optimum(*case)
    found = exact_optimum(problem, best + above)
    assert found is not None
    assert found.at_least_ns == best == simulated(*case, found.buckets)
    assert is_contiguous(case[0], found.buckets)


@settings(max_examples=tries(200))
@given(anything(max_gradients=25))
def test_without_copies_no_two_neighbours_can_be_merged_without_loss(case: Case) -> None:
    """So that ``find_optimum`` need not try, for any dtypes and devices."""
    workload, hardware = case
    problem = Problem(*quick_launches((workload, replace(WITHOUT_EFFECTS, all_reduce=hardware.all_reduce))))
    found = exact_optimum(problem, NO_LIMIT)
    assert found is not None
    assert covers(problem)
    closes = problem.closes(found.buckets)
    assert closes is not None
    climbing.merge(problem.tables, closes, 1000)
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
    assert found.at_least_ns == best == reached


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
def test_it_covers_what_it_may(
    changes: dict[str, Any], includes: tuple[ReadyIncludes, ...], inside: bool
) -> None:
    """One channel, and nothing that stretches or blocks."""
    problem = Problem(replace(resnet50(), ready_includes=includes), replace(link(4), **changes))
    assert covers(problem) == inside


@pytest.mark.parametrize("changes", [{"launch_cost_ns": 50_001}, {"launch_cost_ns": 1, "world_size": 1}])
def test_launches_that_outlast_an_all_reduce_are_beyond_it(changes: dict[str, Any]) -> None:
    assert not covers(Problem(resnet50(), replace(link(4, latency_us=50), **changes)))


@pytest.mark.parametrize("name", Machine._fields)
def test_any_effect_but_a_launch_is_beyond_it(name: str) -> None:
    """So that none is forgotten: what is not known to the search is not called proved."""
    problem = Problem(resnet50(), link(4, latency_us=50))
    value = {"launch_blocks_compute": True, "channels": 2, "launch_cost_ns": 2, "small_bytes": 2}
    problem.machine = Machine(**{"launch_cost_ns": 1, name: value.get(name, Rates(alone=2))})
    assert covers(problem) == (name == "launch_cost_ns")


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
    """A line through two points a byte apart, rounded and drawn on for 40 KB, is a line of another slope."""
    case = tiny(
        [37_848_653, 32_739_280, 29_317_791],
        [41_907] * 3,
        {2: 16_159_996, 3: 17_850_176, 4: 33_365_023},
        90_490_403,
        comm_channels=3,
        channel_slowdown=4 / 3,
    )
    best = brute_force(*case)
    found = exact_optimum(Problem(*case), best)
    assert found is not None
    assert best * (1 - 1e-5) <= found.at_least_ns <= best


# ---------------------------------------------------------------------------------------------------
# Found by random search.


def test_free_copies_by_rounding_are_no_obstacle() -> None:
    """A copy of one byte takes a third of a ns, so none."""
    case = tiny([3] * 8, [1] * 8, {1: 0}, 3, copy_out_bytes_per_s=3e9)
    problem = Problem(*case)
    best = brute_force(*case)
    assert best == 3
    found = exact_optimum(problem, best)
    assert found is not None
    assert found.at_least_ns <= 3


# ---------------------------------------------------------------------------------------------------
# Large.


@pytest.mark.parametrize(
    ("count", "gbit", "further"),
    [
        pytest.param(10_000, 10, {}, id="10k"),
        pytest.param(4_000, 1000, {"copy_out_bytes_per_s": 1e11}, id="4k-copies"),
        pytest.param(10_000, 300, {"comm_channels": 2, "channel_slowdown": 2.0}, id="10k-two"),
    ],
)
def test_large_models_come_back_with_a_bound(count: int, gbit: float, further: dict[str, Any]) -> None:
    """What is found is within 1e-4 of what is proved, for a latency and a bandwidth."""
    workload, hardware = large(count), link(gbit, **further)
    problem = Problem(workload, hardware)
    one_each = tuple((index,) for index in problem.order)
    found = exact_optimum(problem, problem.sync_end_ns(one_each))
    assert found is not None
    assert is_contiguous(workload, found.buckets)
    reached = problem.sync_end_ns(found.buckets)
    assert found.at_least_ns <= reached <= found.at_least_ns * (1 + 1e-4)
    assert lower_bound_ns(problem) <= found.at_least_ns
    assert reached <= problem.sync_end_ns(one_each) + count


def test_a_curve_with_noise_at_4_000() -> None:
    """Measured points that fall now and then, and copies."""
    random = Random(3)
    sizes = [0, *(1 << k for k in range(10, 34))]
    noisy = tuple(
        CurvePoint(num_bytes=size, duration_ns=round((50_000 + size * 0.01) * random.uniform(0.97, 1.03)))
        for size in sizes
    )
    hardware = replace(link(100, copy_out_bytes_per_s=1e12), all_reduce=noisy)
    problem = Problem(large(4_000), hardware)
    found = exact_optimum(problem, problem.sync_end_ns((problem.order,)))
    assert found is not None
    assert found.at_least_ns == problem.sync_end_ns(found.buckets)
