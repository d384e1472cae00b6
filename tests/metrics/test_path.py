"""The critical path: a chain without a gap, made of spans that exist."""

import json
from dataclasses import asdict, replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sim
from sim.errors import SimError
from sim.formats.documents import parse_body
from sim.metrics.critical_path import critical_path, dependencies
from sim.nouns.assignment import Assignment
from sim.nouns.path import PathSpan
from sim.nouns.timeline import Timeline
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.strategies import Case, cases, paired_cases, path_spans
from tests.systems.any_system import system_cases


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


def check_cause(before: PathSpan, after: PathSpan, timeline: Timeline) -> None:
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
        graph, spans = dependencies(timeline)
        for before, after in graph.edges:
            check_cause(spans[before], spans[after], timeline)


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


def example(
    launch_cost_ns: int = 0, slowest: tuple[int, int, int] | None = None, **machine: object
) -> list[tuple[str, int, int, int | None]]:
    """Ready at 10, 20, 30 of 40, and there at ``slowest``; collectives of 15; the path as plain tuples."""
    workload = handmade([30, 20, 10], backward_ns=40)
    hardware = wired({0: 15}, launch_cost_ns=launch_cost_ns, **machine)
    late = slowest and replace(
        workload,
        backward_ns=max(slowest),
        gradients=tuple(
            replace(gradient, ready_ns=time)
            for gradient, time in zip(workload.gradients, reversed(slowest), strict=True)
        ),
    )
    assignment = Assignment(bucket_indices=((2,), (1,), (0,)))
    timeline = sim.simulate(workload, hardware, assignment, slowest=late)
    return [(span.kind, span.start_ns, span.end_ns, span.bucket) for span in critical_path(timeline)]


def test_collectives_back_to_back() -> None:
    """The first is ready at 10; from then on the link is never idle: 10 + 3 * 15 = 55. That backward
    happens to end when the last one starts, at 40, is no cause: it was launched at 30."""
    assert example() == [
        ("backward", 0, 10, None),
        ("all_reduce", 10, 25, 0),
        ("all_reduce", 25, 40, 1),
        ("all_reduce", 40, 55, 2),
    ]


def test_launches_one_after_the_other() -> None:
    """Launches of 20 ns: 10-30, 30-50, 50-70; each collective is done before the next launch is."""
    assert example(20) == [
        ("backward", 0, 10, None),
        ("launch", 10, 30, 0),
        ("launch", 30, 50, 1),
        ("launch", 50, 70, 2),
        ("all_reduce", 70, 85, 2),
    ]


def test_copies_back_in_order() -> None:
    """8 bytes at 0.2 bytes/ns: 40 ns each. The first waits for backward, the others for one another."""
    path = example(copy_out_bytes_per_s=2e8)
    assert path[-4:] == [
        ("backward", 30, 40, None),
        ("copy_out", 40, 80, 0),
        ("copy_out", 80, 120, 1),
        ("copy_out", 120, 160, 2),
    ]


def test_launches_on_the_lane() -> None:
    """Blocking launches of 5: 10-15, 25-30, 40-45; collectives 15-30, 30-45, 45-60."""
    path = example(5, launch_blocks_compute=True)
    assert path[-1] == ("all_reduce", 45, 60, 2)
    assert path[:2] == [("backward", 0, 10, None), ("launch", 10, 15, 0)]
    assert [end for _, _, end, _ in path] == [start for _, start, _, _ in path[1:]] + [60]


def test_launches_that_the_times_already_contain() -> None:
    """``ready_includes`` takes launches off the lane, not away: the path then runs through them."""
    workload = handmade([10], backward_ns=12, ready_includes=("launch",))
    hardware = wired({0: 15}, launch_cost_ns=7, launch_blocks_compute=True)
    timeline = sim.simulate(workload, hardware, Assignment(bucket_indices=((0,),)))
    assert [(span.kind, span.start_ns, span.end_ns) for span in critical_path(timeline)] == [
        ("backward", 0, 10),
        ("launch", 10, 17),
        ("all_reduce", 17, 32),
    ]


def test_the_wait_for_the_slowest_rank() -> None:
    """It comes to the first at 18 and to the third at 60; the second starts behind the first, at 33."""
    assert example(slowest=(18, 30, 60)) == [
        ("backward", 0, 10, None),
        ("straggler", 10, 18, 0),
        ("all_reduce", 18, 33, 0),
        ("all_reduce", 33, 48, 1),
        ("straggler", 48, 60, 2),
        ("all_reduce", 60, 75, 2),
    ]


@given(path_spans)
def test_a_path_can_be_held_in_json(span: PathSpan) -> None:
    assert parse_body(json.loads(json.dumps(asdict(span))), PathSpan, "f.json") == span


def test_nothing_at_all_is_an_empty_path() -> None:
    workload = handmade([0])
    hardware = wired({0: 15}, world_size=1)
    assert critical_path(sim.simulate(workload, hardware, Assignment(bucket_indices=((0,),)))) == ()
