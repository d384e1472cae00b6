"""Interval sets and the figures of a report, by counting nanoseconds."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.metrics.step import overlap_ratio, step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from tests.effort import tries
from tests.handmade import handmade
from tests.strategies import REAL, TINY, Case, cases

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8)


def instants(spans: list[Interval]) -> set[int]:
    """Every nanosecond that a span covers; spans that end before they begin cover none."""
    return {instant for start, end in spans for instant in range(start, end)}


@given(intervals)
def test_union_covers_the_same_instants(spans: list[Interval]) -> None:
    merged = union(spans)
    assert instants(merged) == instants(spans)
    assert length(merged) == len(instants(spans))
    for start, end in merged:
        assert start < end
    for (_, before), (after, _) in pairwise(merged):
        assert before < after


@given(intervals, intervals)
def test_intersection_counts_shared_instants(left: list[Interval], right: list[Interval]) -> None:
    assert intersection_length(left, right) == len(instants(left) & instants(right))
    assert intersection_length(left, right) == intersection_length(right, left)


@given(intervals, intervals)
def test_inclusion_and_exclusion(left: list[Interval], right: list[Interval]) -> None:
    both = intersection_length(left, right)
    assert length(union([*left, *right])) == length(union(left)) + length(union(right)) - both
    assert intersection_length(left, left) == length(union(left))
    assert intersection_length(left, []) == 0


@settings(max_examples=tries(300))
@given(cases(st.just(TINY), max_gradients=7))
def test_overlap_ratio_by_counting(case: Case) -> None:
    """CONTRACT: time in which lane and a collective are busy over time in which a collective is."""
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "analytic")
    lane = instants([(span.start_ns, span.end_ns) for span in timeline.compute])
    wire = instants([(bucket.start_ns, bucket.end_ns) for bucket in timeline.buckets])
    assert overlap_ratio(timeline) == (len(lane & wire) / len(wire) if wire else 0.0)


@settings(max_examples=tries(200))
@given(cases())
def test_report_says_what_the_timeline_says(case: Case) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "simpy")
    report = sim.summarize(timeline)
    workload = case.workload
    assert report.exposed_comm_ns == timeline.sync_end_ns - workload.backward_ns
    assert report.exposed_comm_ns >= 0
    assert report.step_ns == step_ns(timeline)
    assert report.step_ns == (
        report.pre_forward_ns
        + workload.forward_ns
        + workload.loss_ns
        + report.sync_end_ns
        + workload.optimizer_ns
        + report.post_sync_ns
    )
    assert 0 <= report.overlap_ratio <= 1
    assert report.backward_end_ns <= report.sync_end_ns
    assert report.sync_end_ns == max(row.available_ns for row in report.buckets)
    assert report.bucket_indices == case.assignment.bucket_indices
    assert len(report.buckets) == len(timeline.buckets)
    for row, bucket in zip(report.buckets, timeline.buckets, strict=True):
        for name in ("index", "num_bytes", "ready_ns", "launch_ns", "start_ns", "end_ns", "available_ns"):
            assert getattr(row, name) == getattr(bucket, name)
        assert row.ready_ns <= row.launch_ns <= row.start_ns <= row.end_ns <= row.available_ns


@settings(max_examples=tries(100))
@given(cases(st.just(REAL), max_gradients=5), st.integers(0, 10**9))
def test_what_is_outside_backward_is_only_added(case: Case, extra: int) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, "analytic")
    for name in ("forward_ns", "loss_ns", "optimizer_ns"):
        longer = replace(case.workload, **{name: getattr(case.workload, name) + extra})
        other = sim.simulate(longer, case.hardware, case.assignment, "analytic")
        assert step_ns(other) == step_ns(timeline) + extra
        assert other.sync_end_ns == timeline.sync_end_ns


@pytest.mark.parametrize(
    ("curve", "buckets", "ratio"),
    [
        ([(0, 10)], ((1,), (0,)), 0.5),  # 50-60 beside backward, 100-110 after it
        ([(0, 10)], ((1, 0),), 0.0),
        ([(0, 60)], ((1,), (0,)), 50 / 120),
        ([(0, 0)], ((1,), (0,)), 0.0),
    ],
)
def test_overlap_by_hand(
    curve: list[tuple[int, int]], buckets: tuple[tuple[int, ...], ...], ratio: float
) -> None:
    workload = handmade([100, 50], 4)
    points = tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in curve)
    hardware = Hardware(name="h", world_size=2, all_reduce=points)
    timeline = sim.simulate(workload, hardware, Assignment(bucket_indices=buckets))
    assert overlap_ratio(timeline) == ratio
