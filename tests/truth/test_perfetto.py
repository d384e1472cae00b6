"""Perfetto export: every span, arrow and byte is there, to the nanosecond."""

import itertools
import json
from collections import defaultdict
from typing import Any

import pytest

import sim
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket
from sim.nouns.timeline import Timeline
from sim.truth.perfetto import COMMUNICATION, COMPUTE, COPY_BACK, LAUNCH, MEASURED, PREDICTED, perfetto_json
from sim.truth.scoring import CandidateAgreement
from tests.handmade import handmade

MIB = 1 << 20
MS = 1_000_000


def make_timeline(**hardware: Any) -> Timeline:
    workload = handmade(
        [(4 - index) * 10 * MS + 1 for index in range(4)],
        4 * MIB,
        name='four "equal" <layers>',
        names="layers.{}.weight",
        forward_ns=20 * MS,
        backward_ns=41 * MS,
        optimizer_ns=5 * MS,
    )
    curve = (CurvePoint(num_bytes=0, duration_ns=MS), CurvePoint(num_bytes=4 * MIB, duration_ns=9 * MS))
    settings: dict[str, Any] = {
        "copy_in_bytes_per_s": 8e9,
        "copy_out_bytes_per_s": 8e9,
        "launch_cost_ns": 50_000,
        **hardware,
    }
    machine = Hardware(name="a machine", world_size=2, all_reduce=curve, **settings)
    return sim.simulate(workload, machine, sim.assign(workload, bucket_cap_mb=4))


def test_the_wait_for_the_slowest_rank_is_a_span_of_its_own() -> None:
    timeline = make_timeline()
    slowest, _ = sim.scale(timeline.workload, timeline.hardware, backward=1.5)
    timeline = sim.simulate(timeline.workload, timeline.hardware, timeline.assignment, slowest=slowest)
    waits = named(events_of(perfetto_json(timeline)), ph="X", name="waits for the slowest rank")
    assert [(event["args"]["bucket"], event["ts"], event["dur"]) for event in waits] == [
        (b.index, (b.start_ns - b.late_ns) / 1000, b.late_ns / 1000) for b in timeline.buckets if b.late_ns
    ]
    assert {event["tid"] for event in waits} == {COMMUNICATION}


def events_of(text: str) -> list[dict[str, Any]]:
    return json.loads(text)["traceEvents"]


def named(events: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    return [event for event in events if all(event.get(key) == value for key, value in fields.items())]


def make_measured(timeline: Timeline) -> CandidateAgreement:
    report = sim.summarize(timeline)
    return CandidateAgreement(
        name="cap 4",
        bucket_indices=timeline.assignment.bucket_indices,
        iterations=1,
        measured_step_ns=report.step_ns,
        step_low_ns=report.step_ns,
        step_high_ns=report.step_ns,
        predicted_step_ns=report.step_ns,
        step_error=0.0,
        measured_exposed_ns=report.exposed_comm_ns,
        exposed_low_ns=report.exposed_comm_ns,
        exposed_high_ns=report.exposed_comm_ns,
        predicted_exposed_ns=report.exposed_comm_ns,
        exposed_error=0.0,
        measured_backward_end_ns=report.backward_end_ns,
        measured_sync_end_ns=report.sync_end_ns,
        # No starts, as gloo reports them: launches overlap the collective before.
        buckets=tuple(
            MeasuredBucket(
                index=row.index,
                ready_ns=row.ready_ns,
                launch_ns=row.launch_ns,
                start_ns=None,
                end_ns=row.end_ns + 5 * MS,
            )
            for row in report.buckets
        ),
        bucket_ends=(),
        median_bucket_end_error=None,
        median_bucket_end_error_ns=None,
        probe_effect=None,
        attribution=None,
        predicted=report,
    )


def test_each_bucket_has_its_collective_with_exact_times() -> None:
    timeline = make_timeline()
    events = events_of(perfetto_json(timeline))
    for bucket in timeline.buckets:
        (span,) = named(events, ph="X", pid=PREDICTED, tid=COMMUNICATION, name=f"bucket {bucket.index}")
        assert span["ts"] == bucket.start_ns / 1000
        assert span["dur"] == (bucket.end_ns - bucket.start_ns) / 1000
        assert span["args"]["bytes"] == bucket.num_bytes
        assert span["args"]["gradients"] == list(timeline.assignment.bucket_indices[bucket.index])


def test_lanes_hold_every_span_and_have_names() -> None:
    timeline = make_timeline()
    events = events_of(perfetto_json(timeline))
    assert len(named(events, ph="X", tid=COMPUTE)) == len(timeline.compute)
    assert len(named(events, ph="X", tid=COPY_BACK)) == len(timeline.buckets)
    assert len(named(events, ph="X", tid=LAUNCH)) == len(timeline.buckets)
    names = {event["tid"]: event["args"]["name"] for event in named(events, ph="M", name="thread_name")}
    assert names == {
        COMPUTE: "compute",
        LAUNCH: "launch",
        COPY_BACK: "copy back",
        COMMUNICATION: "communication",
    }


def test_arrows_lead_from_ready_to_start() -> None:
    timeline = make_timeline()
    events = events_of(perfetto_json(timeline))
    starts, ends = named(events, ph="s"), named(events, ph="f")
    assert [event["ts"] for event in starts] == [bucket.ready_ns / 1000 for bucket in timeline.buckets]
    assert [event["ts"] for event in ends] == [bucket.start_ns / 1000 for bucket in timeline.buckets]
    assert [event["id"] for event in starts] == [event["id"] for event in ends]


def test_an_arrow_leaves_before_the_next_span_begins_and_lands_inside_its_own() -> None:
    events = events_of(perfetto_json(make_timeline(launch_cost_ns=0)))
    for place, event in enumerate(events):
        same_lane = [
            (at, other)
            for at, other in enumerate(events)
            if other["ph"] == "X" and other["tid"] == event["tid"] and other["ts"] == event.get("ts")
        ]
        if event["ph"] == "s":
            assert all(at > place for at, _ in same_lane)
        if event["ph"] == "f":
            assert all(at < place for at, _ in same_lane)
            assert len(same_lane) == 1


def test_the_counter_follows_the_bytes_in_flight() -> None:
    timeline = make_timeline()
    counters = named(events_of(perfetto_json(timeline)), ph="C", pid=PREDICTED)
    assert counters[-1]["args"]["bytes"] == 0
    assert counters[-1]["ts"] == timeline.buckets[-1].end_ns / 1000
    assert max(event["args"]["bytes"] for event in counters) == 4 * MIB


@pytest.mark.parametrize("pid", [PREDICTED, MEASURED])
def test_spans_of_one_lane_do_not_overlap(pid: int) -> None:
    timeline = make_timeline()
    lanes = defaultdict(list)
    for event in named(events_of(perfetto_json(timeline, make_measured(timeline))), ph="X", pid=pid):
        lanes[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert lanes
    for spans in lanes.values():
        ordered = sorted(spans)
        for before, after in itertools.pairwise(ordered):
            assert before[1] <= after[0] + 1e-6


def test_the_measurement_is_a_process_of_its_own() -> None:
    timeline = make_timeline()
    measured = make_measured(timeline)
    events = events_of(perfetto_json(timeline, measured))
    names = {event["pid"]: event["args"]["name"] for event in named(events, ph="M", name="process_name")}
    assert names == {PREDICTED: "predicted: ddp", MEASURED: "measured: cap 4"}
    spans = [event for event in named(events, ph="X", pid=MEASURED) if event["tid"] >= COMMUNICATION]
    assert [span["ts"] for span in spans] == [bucket.launch_ns / 1000 for bucket in timeline.buckets]
    assert named(events, ph="C", pid=MEASURED)[-1]["args"]["bytes"] == 0
