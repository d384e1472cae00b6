"""A step as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Process 0 is the prediction, process 1 the measurement; a thread is a lane. Times are microseconds from
the start of backward. An arrow leads from the instant a bucket is ready to the start of its collective,
and a counter shows the bytes in flight.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from sim.nouns.measurement import MeasuredBucket
from sim.nouns.timeline import Timeline
from sim.truth.scoring import CandidateAgreement

PREDICTED, MEASURED = 0, 1
COMPUTE, LAUNCH, COPY_BACK = 0, 1, 2
COMMUNICATION = 10  # its first channel; the others follow

Event = dict[str, Any]

# Within one instant a viewer closes spans first, and ties an arrow to the span that is open: an arrow
# leaves before the next span begins, and lands after its own span has begun.
_PLACE = {"M": 0, "s": 1, "X": 2, "f": 3, "C": 4}
_WORDS = {"copy_in": "copy in"}


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
    events = _predicted(timeline).events()
    if measured is not None:
        events += _measured(measured).events()
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


class _Process:
    """The events of one step."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self.name = pid, name
        self.lanes: dict[int, str] = {}
        self._events: list[Event] = []
        self._in_flight: Counter[int] = Counter()  # by instant: how many bytes more than before

    def _add(self, phase: str, tid: int, name: str, time_ns: int, **fields: Any) -> None:
        event = {"ph": phase, "pid": self.pid, "tid": tid, "name": name, "ts": time_ns / 1000}
        self._events.append({**event, **fields})

    def span(self, tid: int, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        self._add("X", tid, name, start_ns, cat=name.split()[0], dur=(end_ns - start_ns) / 1000, args=args)

    def sent(self, start_ns: int, end_ns: int, num_bytes: int) -> None:
        self._in_flight.update({start_ns: num_bytes})
        self._in_flight.update({end_ns: -num_bytes})

    def arrow(self, bucket: int, ready_ns: int, tid: int, start_ns: int) -> None:
        same: Event = {"cat": "ready", "id": self.pid * 1_000_000 + bucket}
        self._add("s", COMPUTE, "ready", ready_ns, **same)
        self._add("f", tid, "ready", start_ns, **same, bp="e")

    def name_channels(self, count: int) -> None:
        for channel in range(count):
            number = "" if count == 1 else f" {channel}"
            self.lanes[COMMUNICATION + channel] = f"communication{number}"

    def events(self) -> list[Event]:
        """All of them, names of lanes first."""
        row: Event = {"ph": "M", "pid": self.pid}
        named = [{"tid": 0, "name": "process_name", "args": {"name": self.name}}]
        named.append({"tid": 0, "name": "process_sort_index", "args": {"sort_index": self.pid}})
        for tid, lane in sorted(self.lanes.items()):
            named.append({"tid": tid, "name": "thread_name", "args": {"name": lane}})
            named.append({"tid": tid, "name": "thread_sort_index", "args": {"sort_index": tid}})
        changes = sorted(self._in_flight.items())
        for (instant, _), total in zip(changes, accumulate(by for _, by in changes), strict=True):
            self._add("C", 0, "bytes in flight", instant, args={"bytes": total})
        return [*({**row, **event} for event in named), *self._events]


def _predicted(timeline: Timeline) -> _Process:
    made = _Process(PREDICTED, f"predicted: {timeline.assignment.policy}")
    made.lanes = {COMPUTE: "compute", COPY_BACK: "copy back"}
    made.name_channels(1 + max((played.channel for played in timeline.collectives), default=0))
    for span in timeline.compute:
        args: dict[str, Any] = {"bucket": span.bucket, "gradient": span.gradient}
        if span.gradient is not None:
            args["parameter"] = timeline.workload.gradients[span.gradient].name
        name = f"launch bucket {span.bucket}" if span.kind == "launch" else _WORDS.get(span.kind, span.kind)
        made.span(COMPUTE, name, span.start_ns, span.end_ns, **args)
    for played in timeline.collectives:
        what, lane = played.collective, COMMUNICATION + played.channel
        made.sent(played.start_ns, played.end_ns, what.num_bytes)
        name = f"{what.kind} {what.purpose}"
        told: dict[str, Any] = {"bytes": what.num_bytes}
        if what.bucket is not None:
            bucket = timeline.buckets[what.bucket]
            name = f"bucket {bucket.index}"
            told = {
                "bucket": bucket.index,
                **told,
                "gradients": list(timeline.assignment.bucket_indices[bucket.index]),
                "ready_us": bucket.ready_ns / 1000,
                "launch_us": played.launch_ns / 1000,
                "wait_us": (played.start_ns - bucket.ready_ns) / 1000,
                "available_us": bucket.available_ns / 1000,
            }
        made.span(lane, name, played.start_ns, played.end_ns, **told)
        if played.late_ns:
            taken_ns = played.start_ns - played.late_ns
            made.span(lane, "waits for the slowest rank", taken_ns, played.start_ns, bucket=what.bucket)
    hardware = timeline.hardware
    for bucket in timeline.buckets:
        name = f"bucket {bucket.index}"
        made.arrow(bucket.index, bucket.ready_ns, COMMUNICATION + bucket.channel, bucket.start_ns)
        if hardware.launch_cost_ns and not hardware.launch_blocks_compute:
            made.lanes[LAUNCH] = "launch"
            start_ns = bucket.launch_ns - hardware.launch_cost_ns
            made.span(LAUNCH, name, start_ns, bucket.launch_ns, bucket=bucket.index)
        if bucket.available_ns > bucket.copy_out_start_ns:
            times = bucket.copy_out_start_ns, bucket.available_ns
            made.span(COPY_BACK, name, *times, bucket=bucket.index)
    return made


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


def _measured(row: CandidateAgreement) -> _Process:
    made = _Process(MEASURED, f"measured: {row.name}")
    backward_ns = row.measured_backward_end_ns
    made.span(COMPUTE, "backward", 0, backward_ns)
    if row.measured_sync_end_ns > backward_ns:
        made.span(COPY_BACK, "synchronise", backward_ns, row.measured_sync_end_ns)
    sent = [(one, began, one.end_ns) for one in row.buckets if (began := began_ns(one)) is not None]
    intervals = [(one, start, end) for one, start, end in sent if end is not None]
    lanes = _free_lanes([(start, end) for _, start, end in intervals])
    made.lanes = {COMPUTE: "compute", COPY_BACK: "after backward"}
    made.name_channels(1 + max(lanes, default=0))
    sizes = {bucket.index: bucket.num_bytes for bucket in row.predicted.buckets}
    for (bucket, start, end), number in zip(intervals, lanes, strict=True):
        index, lane = bucket.index, COMMUNICATION + number
        gradients = list(row.bucket_indices[index])
        made.span(lane, f"bucket {index}", start, end, bucket=index, bytes=sizes[index], gradients=gradients)
        made.sent(start, end, sizes[index])
        if bucket.ready_ns is not None:
            made.arrow(index, bucket.ready_ns, lane, start)
    return made
