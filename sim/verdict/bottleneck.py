"""One sentence that names what holds the step up: the first of these causes that matches."""

from dataclasses import dataclass

from sim.nouns.timeline import BucketTimes, Timeline
from sim.units import format_ms, format_size
from sim.verdict.critical_path import PathSpan, critical_path
from sim.verdict.intervals import intersection_length

NEGLIGIBLE = 0.01  # of the step: below this, communication is hidden for all that matters
_AFTERWARDS = ("end of backward", "after backward", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A cause by code, and the sentence with the figures behind it."""

    code: str
    sentence: str


def _total(path: list[PathSpan], *kinds: str) -> int:
    return sum(span.end_ns - span.start_ns for span in path if span.kind in kinds)


def _blocked(timeline: Timeline) -> tuple[BucketTimes, BucketTimes, int] | None:
    """The bucket that waited longest for an earlier one to become ready while the link was idle:
    (waiting, blocking, idle ns). Systems without DDP's order (A3.5) launch it before that one is ready."""
    worst: tuple[BucketTimes, BucketTimes, int] | None = None
    for k, waiting in enumerate(timeline.buckets):
        earlier = [
            other for other in timeline.buckets[:k] if waiting.ready_ns < other.ready_ns <= waiting.launch_ns
        ]
        if not earlier:
            continue
        blocking = max(earlier, key=lambda bucket: bucket.ready_ns)
        waited = [(waiting.ready_ns, blocking.ready_ns)]
        busy = intersection_length(waited, [(other.start_ns, other.end_ns) for other in timeline.buckets])
        idle = blocking.ready_ns - waiting.ready_ns - busy
        if worst is None or idle > worst[2]:
            worst = (waiting, blocking, idle)
    return worst


def _stretch(timeline: Timeline, path: list[PathSpan]) -> int:
    """By how much backward's own work on the path is longer than it would be alone, in ns."""
    alone = 0
    for span in path:
        if span.kind == "backward":
            gradient = None if span.gradient is None else timeline.workload.gradients[span.gradient]
            alone = timeline.workload.backward_ns if gradient is None else gradient.ready_ns or 0
    return _total(path, "backward") - alone


def _late_parameter(timeline: Timeline, bucket: int) -> str:
    members = timeline.assignment.bucket_indices[bucket]
    gradients = timeline.workload.gradients
    order = {index: place for place, index in enumerate(timeline.workload.order())}
    return gradients[max(members, key=lambda index: order.get(index, -1))].name


def find_bottleneck(timeline: Timeline, step_ns: int) -> Bottleneck:
    """What to tell the user first. ``step_ns`` is the whole step, in ns.

    The causes, in order: no communication, compute-bound, no overlap, head-of-line, hook-, launch-, copy- and
    interference-bound, latency-bound, tail bucket exposed, bandwidth-bound.
    """
    buckets = timeline.buckets
    exposed = timeline.sync_end_ns - timeline.workload.backward_ns
    if all(bucket.service_ns == 0 for bucket in buckets):
        return Bottleneck(code="no-communication", sentence="no communication: all-reduces cost nothing here")
    share = exposed / step_ns if step_ns else 0.0
    if share <= NEGLIGIBLE:
        return Bottleneck(
            code="compute-bound",
            sentence=f"compute-bound: synchronising adds {format_ms(exposed)}, {share:.1%} of the step; "
            f"no assignment can gain more than that",
        )
    if all(played.collective.phase in _AFTERWARDS for played in timeline.collectives):
        return Bottleneck(
            code="no-overlap",
            sentence=f"no overlap: all {len(timeline.collectives)} collectives are launched after backward, "
            f"which hides none of the {format_ms(exposed)} that are exposed",
        )
    path = critical_path(timeline)
    blocked = _blocked(timeline)
    if blocked is not None and blocked[2] >= exposed / 4:
        waiting, blocking, idle = blocked
        return Bottleneck(
            code="head-of-line",
            sentence=f"head-of-line blocked: bucket {waiting.index} was ready at "
            f"{format_ms(waiting.ready_ns)} but waited for bucket {blocking.index} "
            f"({_late_parameter(timeline, blocking.index)}), with the link idle for {format_ms(idle)}",
        )
    copies = _total(path, "copy_in", "copy_out")
    launches = _total(path, "launch")
    stretch = _stretch(timeline, path)
    reduces = [span for span in path if span.kind == "all_reduce"]
    hooks = _total(path, "hook", "settle")
    # Half of what is exposed; without an all-reduce on the path, one of these is the cause.
    enough = exposed / 2 if reduces else max(launches, copies, stretch, hooks)
    if hooks and hooks >= enough:
        return Bottleneck(
            code="hook-bound",
            sentence=f"hook-bound: what hooks compute takes {format_ms(hooks)} of the critical path, of "
            f"{format_ms(exposed)} exposed",
        )
    if launches and launches >= enough:
        count = sum(span.kind == "launch" for span in path)
        return Bottleneck(
            code="launch-bound",
            sentence=f"launch-bound: {count} launches x {format_ms(launches / count)} = "
            f"{format_ms(launches)} on the critical path, of {format_ms(exposed)} exposed",
        )
    if copies >= enough:
        back = _total(path, "copy_out")
        advice = f"; gradient_as_bucket_view removes {format_ms(back)} of them" if back else ""
        return Bottleneck(
            code="copy-bound",
            sentence=f"copy-bound: copies into and out of buckets take {format_ms(copies)} of the "
            f"critical path, of {format_ms(exposed)} exposed{advice}",
        )
    if stretch >= enough:
        return Bottleneck(
            code="interference-bound",
            sentence=f"interference-bound: collectives beside it make backward {format_ms(stretch)} "
            f"longer, of {format_ms(exposed)} exposed",
        )
    reduced = _total(path, "all_reduce")
    latency = min(point.duration_ns for point in timeline.hardware.all_reduce)
    if latency * len(reduces) >= reduced / 2:
        return Bottleneck(
            code="latency-bound",
            sentence=f"latency-bound: {len(reduces)} buckets x {format_ms(latency)} = "
            f"{format_ms(latency * len(reduces))} of latency, of {format_ms(exposed)} exposed",
        )
    num_bytes = sum(buckets[span.bucket].num_bytes for span in reduces if span.bucket is not None)
    rate = num_bytes / reduced if reduced else 0.0
    if len(reduces) == 1:
        tail = buckets[reduces[0].bucket or 0]
        return Bottleneck(
            code="tail-exposed",
            sentence=f"tail bucket exposed: bucket {tail.index} ({format_size(tail.num_bytes)}) is ready "
            f"at {format_ms(tail.ready_ns)}, and its all-reduce takes "
            f"{format_ms(tail.end_ns - tail.start_ns)} with only "
            f"{format_ms(max(0, timeline.backward_end_ns - tail.ready_ns))} of backward left to hide it",
        )
    return Bottleneck(
        code="bandwidth-bound",
        sentence=f"bandwidth-bound: {len(reduces)} buckets on end, {format_size(num_bytes)} at "
        f"{rate:.2f} GB/s, keep the link busy without a gap for {format_ms(reduced)}; "
        f"{format_ms(exposed)} is exposed",
    )
