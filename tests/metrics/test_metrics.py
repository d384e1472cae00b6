"""Interval sets and the figures of a report, by counting nanoseconds."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.costs.not_measured import FAR
from sim.errors import SimError
from sim.metrics.bottleneck import critical_path
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.metrics.step import overlap_ratio, step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.timeline import PathSpan, Span, Timeline
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.strategies import TINY, Case, cases, paired_cases
from tests.systems.any_system import system_cases

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


# Buckets far outside of the measured sizes are named where they may change the step, and else not.

MS, MIB = 10**6, 1 << 20


def workload(*sizes: int) -> Workload:
    times = {"forward_ns": 10 * MS, "backward_ns": 20 * MS, "optimizer_ns": MS}
    return handmade([MS] * len(sizes), sizes, **times)


def wire(*points: tuple[int, int], ranks: int = 2) -> Hardware:
    curve = tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in points)
    return Hardware(name="h", world_size=ranks, all_reduce=curve)


def notes(job: Workload, hardware: Hardware) -> tuple[str, ...]:
    assignment = sim.assign(job, policy="per-parameter")
    return sim.summarize(sim.simulate(job, hardware, assignment, "analytic")).notes


def test_one_size_is_no_curve() -> None:
    """A step of 100 buckets of 1 MiB behind a link of 512 MiB alone: each is taken to last as long."""
    (said,) = notes(workload(*[MIB] * 100), wire((512 * MIB, 100 * MS)))
    assert said.startswith("100 of 100 all-reduces, down to 1 MiB, are taken to last as long as 512 MiB")
    assert "the only size of the curve: 100.00 ms each, up to 9980" in said


def test_beyond_the_last_it_is_a_straight_line() -> None:
    curve = ((MIB, MS), (2 * MIB, 3 * MS))
    (said,) = notes(workload(16 * MIB, MIB), wire(*curve))
    assert said.startswith("1 of 2 all-reduces, up to 16 MiB, are larger than 2 MiB, the greatest size")
    assert "28.00 ms in all are a straight line beyond it" in said
    flat = notes(workload(16 * MIB), wire((MIB, 3 * MS), (2 * MIB, 3 * MS)))
    assert "21.00 ms in all are a straight line beyond it" in flat[0]


def test_between_sizes_that_are_far_apart_or_where_the_curve_bends_it_is_a_guess() -> None:
    far = notes(workload(4 * MIB), wire((MIB, MS), (32 * MIB, 20 * MS)))
    assert far[0].startswith("1 of 1 all-reduces are between 1 MiB and 32 MiB, where nothing was measured")
    bend = ((MIB, 5 * MS), (2 * MIB, 10 * MS), (4 * MIB, 11 * MS), (8 * MIB, 22 * MS))
    (said,) = notes(workload(3 * MIB), wire(*bend))
    assert "between 2 MiB and 4 MiB" in said
    assert notes(workload(6 * MIB), wire(*bend)) == ()


@given(
    st.lists(st.integers(MIB // FAR + 1, FAR * 64 * MIB).map(lambda n: 4 * (n // 4)), min_size=1, max_size=4),
    st.integers(1, 10**9),
)
def test_within_four_times_of_what_was_measured_nothing_is_said(sizes: list[int], time: int) -> None:
    inside = [max(size, MIB // FAR + 4) for size in sizes]
    assert notes(workload(*inside), wire((MIB, time), (64 * MIB, 2 * time))) == ()


@given(st.integers(1, 64), st.integers(1, 10**4))
def test_what_does_not_change_the_step_is_not_said(words: int, time: int) -> None:
    """Tiny buckets below the curve that take microseconds of a step of 31 ms."""
    assert notes(workload(4 * words), wire((64 << 10, time), (MIB, 10 * time))) == ()


@pytest.mark.parametrize("engine", ["simpy", "analytic"])
def test_one_rank_sends_nothing(engine: str) -> None:
    job = workload(MIB)
    alone = replace(wire((512 * MIB, 100 * MS)), world_size=1)
    timeline = sim.simulate(job, alone, sim.assign(job), engine)
    assert sim.summarize(timeline).notes == ()
