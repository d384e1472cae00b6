"""Memory as a constraint: what fits, what would, and the trade-off against brute force."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.memory import Memory
from sim.systems.cut import NO_LIMIT
from sim.tuner.reach.memory_limit import explain_misfit, fits, limit_ladder, memory_of, trade_off
from sim.tuner.search.optimum import find_optimum
from sim.tuner.search.score import Scorer
from sim.units import MIB
from tests.effort import tries
from tests.strategies import Case, cases
from tests.tuner.cases import from_layers, link

LAYERS = [(f"layer{number}", (512, 1024), 1.0) for number in range(8)]  # 2 MiB each
WORKLOAD = from_layers("eight", LAYERS, 80_000_000)
HARDWARE = link(4, copy_in_bytes_per_s=1e10, copy_out_bytes_per_s=1e10)


def optimum_by_trying(case: Case) -> Callable[[int | None], tuple[int, Assignment]]:
    """Every contiguous partition of the ready order whose largest bucket is within the limit."""
    order, gradients = case.workload.order(), case.workload.gradients
    tried = []
    for places in range(1 << (len(order) - 1)):
        cuts = [0, *(at + 1 for at in range(len(order) - 1) if places >> at & 1), len(order)]
        buckets = tuple(order[begin:end] for begin, end in pairwise(cuts))
        size = max(sum(gradients[index].num_bytes for index in bucket) for bucket in buckets)
        assignment = Assignment(bucket_indices=buckets)
        report = sim.summarize(sim.simulate(case.workload, case.hardware, assignment, "analytic"))
        tried.append((report.step_ns, size, assignment))

    def best(limit: int | None) -> tuple[int, Assignment]:
        within = [(step, made) for step, size, made in tried if limit is None or size <= limit]
        return min(within, key=lambda row: row[0])

    return best


one_kind = cases(stretches=False, max_gradients=5).filter(
    lambda case: (
        len({g.key for g in case.workload.gradients}) == 1
        and not any(gradient.sparse for gradient in case.workload.gradients)
    )
)


@given(one_kind, st.lists(st.integers(0, 1 << 26), max_size=4))
@settings(max_examples=tries(40), deadline=None)
def test_a_looser_limit_is_never_worse_and_every_point_respects_its_own(
    case: Case, limits: list[int]
) -> None:
    sizes = [gradient.num_bytes for gradient in case.workload.gradients]
    best = optimum_by_trying(case)
    points = trade_off(best, sizes, limits or None)
    assert points[-1].limit_bytes is None
    reached = [point for point in points if point.is_reachable]
    for point in points:
        assert point.is_reachable == (point.limit_bytes is None or point.limit_bytes >= max(sizes))
        if point.is_reachable and point.limit_bytes is not None:
            assert point.largest_bucket_bytes is not None
            assert point.largest_bucket_bytes <= point.limit_bytes
            assert point.step_ns == best(point.limit_bytes)[0]
    steps = [point.step_ns for point in reached]
    assert steps == sorted(steps, reverse=True)  # type: ignore[type-var]
    front = [point for point in reached if point.on_front]
    assert front
    for before, after in pairwise(front):
        assert before.largest_bucket_bytes < after.largest_bucket_bytes  # type: ignore[operator]
        assert before.step_ns > after.step_ns  # type: ignore[operator]
    for point in reached:
        assert any(
            other.step_ns <= point.step_ns and other.largest_bucket_bytes <= point.largest_bucket_bytes  # type: ignore[operator]
            for other in front
        )


@given(one_kind)
@settings(max_examples=tries(40), deadline=None)
def test_the_tuners_own_search_under_limits_is_as_good_as_trying_all(case: Case) -> None:
    """One channel, nothing that stretches or blocks: the exact search keeps to limits and misses nothing."""
    hardware = replace(case.hardware, comm_channels=1, launch_cost_ns=0, launch_blocks_compute=False)
    case = replace(case, hardware=hardware)
    scorer, by_trying = Scorer(case.workload, hardware), optimum_by_trying(case)
    rest_ns = case.workload.forward_ns + case.workload.loss_ns + case.workload.optimizer_ns
    per_gradient = [tuple((index,) for index in case.workload.order())]

    def searched(limit: int | None) -> tuple[int, Assignment]:
        found = find_optimum(scorer, per_gradient, NO_LIMIT if limit is None else limit)
        return found.sync_end_ns + rest_ns, Assignment(bucket_indices=found.buckets)

    sizes = [gradient.num_bytes for gradient in case.workload.gradients]
    before_ns = sim.simulate(case.workload, hardware, case.assignment, "analytic").pre_forward_ns
    for point in trade_off(searched, sizes):
        if point.step_ns is not None:
            assert point.step_ns + before_ns == by_trying(point.limit_bytes)[0]


def test_a_search_that_finds_worse_under_a_looser_limit_is_not_believed() -> None:
    """What reaches a step under one limit is legal under every looser one."""
    one, two = Assignment(bucket_indices=((0,), (1,))), Assignment(bucket_indices=((0, 1),))

    def searched(limit: int | None) -> tuple[int, Assignment]:
        return (10, one) if limit == 4 else (20, two)

    points = trade_off(searched, [4, 4], [3, 4, 8])
    assert [point.step_ns for point in points] == [None, 10, 10, 10]
    assert [point.largest_bucket_bytes for point in points] == [None, 4, 4, 4]
    assert [point.on_front for point in points] == [False, True, False, False]


def test_the_front_is_where_memory_buys_time() -> None:
    """With 10 ms of latency, fewer and larger buckets are faster; no limit below a gradient is reached."""
    slow = link(10, latency_us=10_000)
    made = [sim.assign(WORKLOAD, bucket_cap_mb=cap) for cap in (0, 3, 5, 7, 9, 100)]
    steps = [(sim.summarize(sim.simulate(WORKLOAD, slow, one, "analytic")).step_ns, one) for one in made]

    def best(limit: int | None) -> tuple[int, Assignment]:
        within = [row for row in steps if limit is None or max(row[1].bucket_bytes or ()) <= limit]
        return min(within, key=lambda row: row[0])

    points = trade_off(best, [gradient.num_bytes for gradient in WORKLOAD.gradients])
    missed = [point.limit_bytes for point in points if not point.is_reachable]
    assert missed == [MIB // 16 << power for power in range(5)]
    assert [(point.limit_bytes, point.num_buckets) for point in points if point.on_front] == [
        (2 * MIB, 8),
        (4 * MIB, 4),
    ]


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_a_ladder_climbs_from_a_256th_of_all_to_all(sizes: list[int]) -> None:
    ladder = limit_ladder(sizes)
    assert list(ladder) == sorted(set(ladder))
    assert max(sizes) in ladder
    assert len(ladder) <= 10
    assert all(limit <= sum(sizes) for limit in ladder)


def test_what_fits() -> None:
    memory = Memory(buffers_bytes=10, transient_peak_bytes=5, largest_bucket_bytes=99)
    assert fits(memory, None)
    assert fits(memory, 15)
    assert not fits(memory, 14)


def test_a_misfit_names_the_switch_that_fits() -> None:
    plain = sim.assign(WORKLOAD, bucket_cap_mb=6)
    assert memory_of(WORKLOAD, HARDWARE, plain).peak_bytes == 16 * MIB
    said = explain_misfit(WORKLOAD, HARDWARE, plain, 10 * MIB)
    assert said == (
        "buckets hold 16 MiB at their peak (16 MiB of them all the time), more than the limit of 10 MiB; "
        "with gradient_as_bucket_view=True they hold 2 MiB, which fits"
    )
    assert "set_to_none=False) they hold 0 B" in explain_misfit(WORKLOAD, HARDWARE, plain, MIB)
    batched = sim.assign(WORKLOAD, bucket_cap_mb=6, batched_grad_copy=True)
    assert "batched_grad_copy=False they hold 2 MiB" in explain_misfit(WORKLOAD, HARDWARE, batched, 4 * MIB)


def test_a_misfit_without_a_remedy_says_so() -> None:
    hooked = sim.assign(WORKLOAD, bucket_cap_mb=100, comm_hook="fp16_compress")
    assert explain_misfit(WORKLOAD, HARDWARE, hooked, MIB).endswith("a switch makes of it is 8 MiB")
    flattened = sim.assign(WORKLOAD, "after-backward", bucket_cap_mb=100)
    assert explain_misfit(WORKLOAD, HARDWARE, flattened, MIB).endswith(
        "no switch of after-backward that leaves its buckets alone makes them hold less"
    )


def test_a_bucket_beyond_its_limit_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="a bucket of 8 bytes under a limit of 4"):
        trade_off(lambda limit: (1, Assignment(bucket_indices=((0, 1),))), [4, 4], [4])
