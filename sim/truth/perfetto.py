"""A step as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Process 0 is the prediction, process 1 the measurement; a thread is a lane. Times are microseconds from
the start of backward. An arrow leads from the instant a bucket is ready to the start of its collective,
and a counter shows the bytes in flight.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.nouns.collective import CollectiveTimes
from sim.nouns.measurement import MeasuredBucket
from sim.nouns.timeline import BucketTimes, Span, Timeline
from sim.truth.scoring import CandidateAgreement

PREDICTED, MEASURED = 0, 1
COMPUTE, LAUNCH, COPY_BACK = 0, 1, 2
COMMUNICATION = 10  # its first channel; the others follow

Event = dict[str, Any]

# Within one instant a viewer closes spans first, and ties an arrow to the span that is open: an arrow
# leaves before the next span begins, and lands after its own span has begun.
_PLACE = {"M": 0, "s": 1, "X": 2, "f": 3, "C": 4}


def perfetto_json(
    timeline: Timeline,
    measured: CandidateAgreement | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> str:
    """Chrome trace JSON of a predicted step, with the measured one beside it where there is one.

    Args:
        timeline: the predicted step.
        measured: the same assignment on real ranks.
        provenance: what else to write under ``otherData`` (versions, digests).
    """
    events = _predicted(timeline)
    if measured is not None:
        events += _measured(measured)
    events.sort(key=lambda event: (event["ph"] != "M", event.get("ts", 0.0), _PLACE[event["ph"]]))
    document = {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {
            "workload": timeline.workload.name,
            "hardware": timeline.hardware.name,
            "policy": timeline.assignment.policy,
            "engine": timeline.engine,
            "measured": None if measured is None else measured.name,
            **(provenance or {}),
        },
    }
    return json.dumps(document, allow_nan=False, ensure_ascii=False) + "\n"


def _us(ns: int) -> float:
    return ns / 1000


def _span(pid: int, tid: int, name: str, start_ns: int, end_ns: int, **args: Any) -> Event:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "cat": name.split()[0],
        "ts": _us(start_ns),
        "dur": _us(end_ns - start_ns),
        "args": args,
    }


def _arrow(pid: int, bucket: int, ready_ns: int, tid: int, start_ns: int) -> list[Event]:
    same = {"pid": pid, "name": "ready", "cat": "ready", "id": pid * 1_000_000 + bucket}
    return [
        {**same, "ph": "s", "tid": COMPUTE, "ts": _us(ready_ns)},
        {**same, "ph": "f", "tid": tid, "ts": _us(start_ns), "bp": "e"},
    ]


def _names(pid: int, process: str, lanes: Mapping[int, str]) -> list[Event]:
    events: list[Event] = [
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": process}},
        {"ph": "M", "pid": pid, "tid": 0, "name": "process_sort_index", "args": {"sort_index": pid}},
    ]
    for tid, lane in lanes.items():
        row: Event = {"ph": "M", "pid": pid, "tid": tid}
        events.append({**row, "name": "thread_name", "args": {"name": lane}})
        events.append({**row, "name": "thread_sort_index", "args": {"sort_index": tid}})
    return events


def _in_flight(pid: int, collectives: Iterable[tuple[int, int, int]]) -> list[Event]:
    """A counter of bytes in flight from (start, end, bytes)."""
    changes: dict[int, int] = {}
    for start, end, num_bytes in collectives:
        changes[start] = changes.get(start, 0) + num_bytes
        changes[end] = changes.get(end, 0) - num_bytes
    total, events = 0, []
    for instant in sorted(changes):
        total += changes[instant]
        events.append(
            {
                "ph": "C",
                "pid": pid,
                "tid": 0,
                "name": "bytes in flight",
                "ts": _us(instant),
                "args": {"bytes": total},
            }
        )
    return events


def _channel_lanes(channels: int) -> dict[int, str]:
    if channels == 1:
        return {COMMUNICATION: "communication"}
    return {COMMUNICATION + channel: f"communication {channel}" for channel in range(channels)}


def _predicted(timeline: Timeline) -> list[Event]:
    used = 1 + max((played.channel for played in timeline.collectives), default=0)
    lanes = {COMPUTE: "compute", COPY_BACK: "copy back", **_channel_lanes(used)}
    events = [_compute(timeline, span) for span in timeline.compute]
    for played in timeline.collectives:
        events.append(_collective(timeline, played))
        if played.late_ns:
            events.append(_wait(played))
    for bucket in timeline.buckets:
        events += _bucket(timeline, bucket)
    if any(event["ph"] == "X" and event["tid"] == LAUNCH for event in events):
        lanes[LAUNCH] = "launch"
    flights = (
        (played.start_ns, played.end_ns, played.collective.num_bytes) for played in timeline.collectives
    )
    return [
        *_names(PREDICTED, f"predicted: {timeline.assignment.policy}", dict(sorted(lanes.items()))),
        *events,
        *_in_flight(PREDICTED, flights),
    ]


def _compute(timeline: Timeline, span: Span) -> Event:
    args: dict[str, Any] = {"bucket": span.bucket, "gradient": span.gradient}
    if span.gradient is not None:
        args["parameter"] = timeline.workload.gradients[span.gradient].name
    what = {
        "backward": "backward",
        "copy_in": "copy in",
        "launch": f"launch bucket {span.bucket}",
        "hook": "hook",
    }
    return _span(PREDICTED, COMPUTE, what[span.kind], span.start_ns, span.end_ns, **args)


def _collective(timeline: Timeline, played: CollectiveTimes) -> Event:
    what, lane = played.collective, COMMUNICATION + played.channel
    if what.bucket is None:
        name = f"{what.kind} {what.purpose}"
        return _span(PREDICTED, lane, name, played.start_ns, played.end_ns, bytes=what.num_bytes)
    bucket = timeline.buckets[what.bucket]
    return _span(
        PREDICTED,
        lane,
        f"bucket {bucket.index}",
        played.start_ns,
        played.end_ns,
        bucket=bucket.index,
        bytes=what.num_bytes,
        gradients=list(timeline.assignment.bucket_indices[bucket.index]),
        ready_us=_us(bucket.ready_ns),
        launch_us=_us(played.launch_ns),
        wait_us=_us(played.start_ns - bucket.ready_ns),
        available_us=_us(bucket.available_ns),
    )


def _wait(played: CollectiveTimes) -> Event:
    lane, taken = COMMUNICATION + played.channel, played.start_ns - played.late_ns
    name = "waits for the slowest rank"
    return _span(PREDICTED, lane, name, taken, played.start_ns, bucket=played.collective.bucket)


def _bucket(timeline: Timeline, bucket: BucketTimes) -> list[Event]:
    hardware = timeline.hardware
    name = f"bucket {bucket.index}"
    lane = COMMUNICATION + bucket.channel
    events = _arrow(PREDICTED, bucket.index, bucket.ready_ns, lane, bucket.start_ns)
    if hardware.launch_cost_ns and not hardware.launch_blocks_compute:
        start = bucket.launch_ns - hardware.launch_cost_ns
        events.append(_span(PREDICTED, LAUNCH, name, start, bucket.launch_ns, bucket=bucket.index))
    if bucket.available_ns > bucket.copy_out_start_ns:
        start, end = bucket.copy_out_start_ns, bucket.available_ns
        events.append(_span(PREDICTED, COPY_BACK, name, start, end, bucket=bucket.index))
    return events


def began_ns(bucket: MeasuredBucket) -> int | None:
    """The earliest known instant at which a measured bucket was on its way: start, else launch, else
    ready; None where nothing but its end is known."""
    known = (bucket.start_ns, bucket.launch_ns, bucket.ready_ns)
    return next((time for time in known if time is not None), None)


def _free_lanes(intervals: Sequence[tuple[int, int]]) -> list[int]:
    """A lane for each interval, the lowest that is free, so that no two overlap on one."""
    ends: list[int] = []
    lanes = [0] * len(intervals)
    for number in sorted(range(len(intervals)), key=lambda n: intervals[n]):
        start, end = intervals[number]
        lane = next((lane for lane, busy in enumerate(ends) if busy <= start), len(ends))
        ends[lane : lane + 1] = [end]
        lanes[number] = lane
    return lanes


def _measured(row: CandidateAgreement) -> list[Event]:
    intervals = [
        (bucket, began, bucket.end_ns)
        for bucket in row.buckets
        if (began := began_ns(bucket)) is not None and bucket.end_ns is not None
    ]
    lanes = _free_lanes([(start, end) for _, start, end in intervals])
    backward = row.measured_backward_end_ns
    events = [_span(MEASURED, COMPUTE, "backward", 0, backward)]
    if row.measured_sync_end_ns > backward:
        events.append(_span(MEASURED, COPY_BACK, "synchronise", backward, row.measured_sync_end_ns))
    sizes = {bucket.index: bucket.num_bytes for bucket in row.predicted.buckets}
    for (bucket, start, end), number in zip(intervals, lanes, strict=True):
        lane = COMMUNICATION + number
        events.append(
            _span(
                MEASURED,
                lane,
                f"bucket {bucket.index}",
                start,
                end,
                bucket=bucket.index,
                bytes=sizes[bucket.index],
                gradients=list(row.bucket_indices[bucket.index]),
            )
        )
        if bucket.ready_ns is not None:
            events += _arrow(MEASURED, bucket.index, bucket.ready_ns, lane, start)
    names = {COMPUTE: "compute", COPY_BACK: "after backward", **_channel_lanes(max(lanes, default=0) + 1)}
    flights = ((start, end, sizes[bucket.index]) for bucket, start, end in intervals)
    return [*_names(MEASURED, f"measured: {row.name}", names), *events, *_in_flight(MEASURED, flights)]
