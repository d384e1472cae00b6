"""Interval sets and the figures of a report, by counting nanoseconds."""

from itertools import pairwise

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import SimError
from sim.metrics.bottleneck import critical_path
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.metrics.step import overlap_ratio
from sim.nouns.assignment import Assignment
from sim.nouns.timeline import PathSpan, Span, Timeline
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.strategies import TINY, Case, cases, paired_cases
from tests.systems.cases import system_cases

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
    assert report.step_ns == timeline.step_ns
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


# The critical path: a chain without a gap, made of spans that exist.


def check_exists(span: PathSpan, timeline: Timeline) -> None:
    """This very span is in the timeline."""
    if span.kind in ("backward", "copy_in"):
        assert any(
            (real.kind, real.start_ns, real.end_ns, real.gradient, real.bucket)
            == (span.kind, span.start_ns, span.end_ns, span.gradient, span.bucket)
            for real in timeline.compute
        )
        return
    assert span.bucket is not None
    bucket = timeline.buckets[span.bucket]
    if span.kind == "all_reduce":
        assert (span.start_ns, span.end_ns) == (bucket.start_ns, bucket.end_ns)
    elif span.kind == "straggler":
        assert (span.start_ns, span.end_ns) == (bucket.start_ns - bucket.late_ns, bucket.start_ns)
    elif span.kind == "copy_out":
        assert (span.start_ns, span.end_ns) == (bucket.copy_out_start_ns, bucket.available_ns)
    else:
        on_lane = [real for real in timeline.compute if real.kind == "launch" and real.bucket == span.bucket]
        blocking = (
            timeline.hardware.launch_blocks_compute and "launch" not in timeline.workload.ready_includes
        )
        assert len(on_lane) == blocking
        assert span.end_ns == bucket.launch_ns
        for real in on_lane:
            assert (real.start_ns, real.end_ns) == (span.start_ns, span.end_ns)
        if not on_lane:
            assert span.end_ns - span.start_ns == timeline.hardware.launch_cost_ns


def check_cause(before: Span, after: Span, timeline: Timeline) -> None:
    """The second span did wait for the first; that one ends when the other starts is not enough."""
    lane = timeline.compute
    on_lane = before.bucket is None or any(span.bucket == before.bucket for span in lane)
    if after.bucket is None or (after.kind == "launch" and any(s.bucket == after.bucket for s in lane)):
        assert before.kind in ("backward", "copy_in", "launch")
        assert on_lane
        return
    bucket = timeline.buckets[after.bucket]
    waited = bucket.start_ns - bucket.late_ns > bucket.launch_ns
    if after.kind == "launch":
        if before.kind == "launch" and not on_lane:
            assert before.bucket == after.bucket - 1
        else:
            assert bucket.ready_ns == after.start_ns
    elif after.kind == "all_reduce" and bucket.late_ns:
        assert (before.kind, before.bucket) == ("straggler", after.bucket)
    elif after.kind in ("straggler", "all_reduce"):
        if before.kind == "all_reduce":
            assert waited or timeline.hardware.comm_channels == 1
            assert before.bucket is not None
            assert before.bucket < after.bucket
        else:
            assert not waited
            assert before.bucket in (None, after.bucket) or on_lane
    elif before.kind in ("all_reduce", "copy_out"):  # its own collective, or the copy ahead; or empty copies
        assert before.bucket is not None
        first = before.bucket + (before.kind == "copy_out")
        between = timeline.buckets[first : after.bucket]
        assert first <= after.bucket
        assert all(skipped.copy_out_start_ns == skipped.available_ns for skipped in between)
    else:
        assert before.end_ns == timeline.backward_end_ns


@settings(max_examples=tries(500))
@given(cases() | paired_cases(), st.sampled_from(["simpy", "analytic"]))
def test_path_is_gapless_and_real(case: Case, engine: str) -> None:
    timeline = sim.simulate(case.workload, case.hardware, case.assignment, engine, slowest=case.slowest)
    path = critical_path(timeline)
    now = 0
    for span in path:
        assert span.start_ns == now
        assert span.end_ns > span.start_ns
        now = span.end_ns
        check_exists(span, timeline)
    assert now == timeline.sync_end_ns
    if all(bucket.start_ns < bucket.end_ns for bucket in timeline.buckets):  # no links through empty spans
        for link in timeline.spans:
            if link.cause >= 0:
                check_cause(timeline.spans[link.cause], link, timeline)


@settings(max_examples=tries(300), deadline=None)
@given(system_cases())
def test_path_is_gapless_where_the_lane_waits(case: Case) -> None:
    """Other systems wait for a collective and launch the next one: the chain goes through both."""
    try:
        timeline = sim.simulate(
            case.workload, case.hardware, case.assignment, "analytic", slowest=case.slowest
        )
    except SimError:  # ranks that launch in different orders
        assume(False)
    now = 0
    for span in critical_path(timeline):
        assert span.start_ns == now
        now = span.end_ns
    assert now == timeline.sync_end_ns
    assert sim.summarize(timeline).verdict


def test_nothing_at_all_is_an_empty_path() -> None:
    workload = handmade([0])
    hardware = wired({0: 15}, world_size=1)
    assert critical_path(sim.simulate(workload, hardware, Assignment(bucket_indices=((0,),)))) == ()
