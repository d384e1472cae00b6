"""A step as Chrome trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Process 0 is the prediction, process 1 the measurement; a thread is a lane: what computes, with each
gradient's copy, copies back, the buckets on the wire, and the communication that nothing hides. An arrow
leads from the instant a bucket is ready to its start, and a counter shows the bytes in flight. Times are
microseconds from the start of backward.
"""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from sim.nouns.timeline import Timeline
from sim.truth.scoring import CandidateAgreement

PREDICTED, MEASURED = 0, 1
COMPUTE, EXPOSED, COPY_BACK, COMMUNICATION = 0, 1, 2, 10  # lanes; those of further channels follow

Event = dict[str, Any]
_LANES = {COMPUTE: "compute", EXPOSED: "exposed communication", COPY_BACK: "copy back"}
# Within one instant a viewer ties an arrow to the span that is open: it leaves before the next span begins,
# and lands after its own has begun.
_ORDER = "sXfC"


def perfetto_json(
    timeline: Timeline,
    measured: CandidateAgreement | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> str:
    """Chrome trace JSON of a predicted step, and beside it the same assignment on real ranks, where measured.

    ``provenance`` is what else to write under ``otherData`` (versions, digests).
    """
    events = _named(PREDICTED, f"predicted: {timeline.assignment.policy}", _predicted(timeline))
    if measured is not None:
        events += _named(MEASURED, f"measured: {measured.name}", _measured(measured))
    about = {
        "workload": timeline.workload.name,
        "hardware": timeline.hardware.name,
        "policy": timeline.assignment.policy,
        "engine": timeline.engine,
        "measured": None if measured is None else measured.name,
        **(provenance or {}),
    }
    document = {"displayTimeUnit": "ms", "traceEvents": events, "otherData": about}
    return json.dumps(document, allow_nan=False, ensure_ascii=False) + "\n"


def _span(tid: int, name: str, start_ns: int, end_ns: int, **args: Any) -> Event:
    times = {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {"ph": "X", "tid": tid, "name": name, "cat": name.split()[0], **times, "args": args}


def _named(pid: int, name: str, spans: list[Event]) -> list[Event]:
    """A process with its spans, arrows and counter, and the names of its lanes before them."""
    rows = [(0, "process_name", {"name": name}), (0, "process_sort_index", {"sort_index": pid})]
    for tid in sorted({span["tid"] for span in spans}):
        lane = _LANES.get(tid, f"communication {tid - COMMUNICATION}")
        rows += [(tid, "thread_name", {"name": lane}), (tid, "thread_sort_index", {"sort_index": tid})]
    told = [{"ph": "M", "tid": tid, "name": what, "args": args} for tid, what, args in rows]
    found, more_bytes = list(spans), Counter[float]()  # by instant, than before it
    for number, span in enumerate(spans):
        if "ready_us" in span["args"]:
            arrow = {"name": "ready", "cat": "ready", "id": f"{pid}.{number}"}
            found.append({"ph": "s", "tid": COMPUTE, "ts": span["args"]["ready_us"], **arrow})
            found.append({"ph": "f", "tid": span["tid"], "ts": span["ts"], "bp": "e", **arrow})
        if "bytes" in span["args"]:
            more_bytes.update({span["ts"]: span["args"]["bytes"]})
            more_bytes.update({span["ts"] + span["dur"]: -span["args"]["bytes"]})
    instants = sorted(more_bytes)
    for ts, total in zip(instants, accumulate(map(more_bytes.__getitem__, instants)), strict=True):
        found.append({"ph": "C", "tid": 0, "ts": ts, "name": "bytes in flight", "args": {"bytes": total}})
    found.sort(key=lambda event: (event["ts"], _ORDER.index(event["ph"])))
    return [{**event, "pid": pid} for event in (*told, *found)]


def _predicted(timeline: Timeline) -> list[Event]:
    spans = []
    for span in timeline.compute:
        args: dict[str, Any] = {"bucket": span.bucket, "gradient": span.gradient}
        if span.gradient is not None:
            args["parameter"] = timeline.workload.gradients[span.gradient].name
        spans.append(_span(COMPUTE, span.kind.replace("_", " "), span.start_ns, span.end_ns, **args))
    for played in timeline.collectives:
        what, name = played.collective, f"{played.collective.kind} {played.collective.purpose}"
        told: dict[str, Any] = {"bytes": what.num_bytes}
        if what.bucket is not None:
            bucket = timeline.buckets[what.bucket]
            times = bucket.ready_ns, played.launch_ns, bucket.available_ns
            names, name = ("ready_us", "launch_us", "available_us"), f"bucket {bucket.index}"
            told["gradients"] = list(timeline.assignment.bucket_indices[bucket.index])
            told |= {key: ns / 1000 for key, ns in zip(names, times, strict=True)}
        spans.append(_span(COMMUNICATION + played.channel, name, played.start_ns, played.end_ns, **told))
    for one in timeline.buckets:
        if one.available_ns > one.copy_out_start_ns:
            back = COPY_BACK, f"bucket {one.index}", one.copy_out_start_ns, one.available_ns
            spans.append(_span(*back))
    if timeline.sync_end_ns > timeline.backward_end_ns:
        spans.append(_span(EXPOSED, "exposed", timeline.backward_end_ns, timeline.sync_end_ns))
    return spans


def _measured(row: CandidateAgreement) -> list[Event]:
    """From its start, else its launch, else the instant it was ready, to its end each bucket has the lowest
    lane that is free: launches overlap the collective before."""
    backward_ns, sync_ns = row.measured_backward_end_ns, row.measured_sync_end_ns
    spans = [_span(COMPUTE, "backward", 0, backward_ns)]
    if sync_ns > backward_ns:
        spans.append(_span(EXPOSED, "exposed", backward_ns, sync_ns))
    found, busy_until = [], list[int]()
    for bucket in row.buckets:
        known = (bucket.start_ns, bucket.launch_ns, bucket.ready_ns)
        began_ns = next((time for time in known if time is not None), None)
        if began_ns is not None and bucket.end_ns is not None:
            found.append((began_ns, bucket.end_ns, bucket.index, bucket.ready_ns))
    for start_ns, end_ns, index, ready_ns in sorted(found, key=lambda one: one[:3]):
        lane = next((lane for lane, busy in enumerate(busy_until) if busy <= start_ns), len(busy_until))
        busy_until[lane : lane + 1] = [end_ns]
        told = {"bytes": row.predicted.buckets[index].num_bytes, "gradients": list(row.bucket_indices[index])}
        told |= {} if ready_ns is None else {"ready_us": ready_ns / 1000}
        spans.append(_span(COMMUNICATION + lane, f"bucket {index}", start_ns, end_ns, **told))
    return spans
