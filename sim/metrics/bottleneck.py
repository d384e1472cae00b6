"""What holds a step up: the chain of spans that decides its end, in the graph of what released what, and one
sentence, of the first cause that matches, with its figures."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, get_args

import networkx

from sim.costs.doubts import rests_on
from sim.costs.service_time import service_ns, without_latency
from sim.metrics.intervals import intersection_length
from sim.nouns.collective import Collective, CollectiveKind
from sim.nouns.hardware import CURVES, SLOWDOWNS
from sim.nouns.timeline import BucketTimes, Span, Timeline
from sim.nouns.workload import Gradient
from sim.units import format_ms, format_percent, format_size

_START = -1  # of backward, among the numbers of spans
_SENT = get_args(CollectiveKind)
NEGLIGIBLE = 0.01  # of the step: below this, communication is hidden for all that matters
_TOLD = 0.005  # of the step: a part beside backward that takes more is told
_AFTERWARDS = ("end of backward", "after backward", "step")
_AVOIDED_BY = {
    "before forward: buffers": " (broadcast_buffers=False would save it)",
    "before forward: unused parameters": " (find_unused_parameters=False would save it)",
}


def critical_path(timeline: Timeline) -> tuple[Span, ...]:
    """The spans that decide when the last gradient is available, in time order; all take time.

    Every span has a cause, so that one way leads to each, without a gap, from the start of backward.
    """
    if timeline.released_by == _START:
        return ()
    causes = networkx.DiGraph((cause, number) for number, cause in enumerate(timeline.causes))
    way = networkx.shortest_path(causes, _START, timeline.released_by)
    return tuple(span for span in map(timeline.spans.__getitem__, way[1:]) if _length(span))


class Bottleneck(NamedTuple):
    """A cause by code, the sentence with the figures behind it, and the time that it is about, in ns.

    Without it, all else the same, the whole step would be shorter by at most ``part_ns``; this holds where
    ``_Evidence.is_additive``. ``saves_ns`` is what a step without the slowest rank saves at most; None
    where no bound is known.
    """

    code: str
    sentence: str
    part_ns: int
    saves_ns: int | None = None


class _Batch(NamedTuple):
    """A micro-batch that reduces, its critical path, the collectives among its spans, and what they carry."""

    played: Timeline
    path: Sequence[Span]
    sent: list[Span]
    carried: list[Collective]


def _walk(batch: Timeline) -> _Batch:
    path = critical_path(batch)
    sent = [span for span in path if span.kind in _SENT]
    places = (span.collective for span in sent)
    carried = [batch.collectives[place].collective for place in places if place is not None]
    return _Batch(batch, path, sent, carried)


class _Evidence:
    """What is read off a timeline: micro-batches follow each other, and so do their critical paths.

    A step ``is_additive`` that gets shorter by no more than what is taken from its critical path.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, self.hardware, count = timeline, timeline.hardware, len(timeline.reducing)
        self.is_calm = all(getattr(timeline.hardware, name) == 1 for name in SLOWDOWNS)
        self.is_additive = timeline.hardware.comm_channels == 1 and self.is_calm
        different = {id(batch): batch for batch in timeline.reducing}
        made = {key: _walk(batch) for key, batch in different.items()}
        self.batches = [made[id(batch)] for batch in timeline.reducing]
        self.path = [span for batch in self.batches for span in batch.path]
        self.sent = [span for batch in self.batches for span in batch.sent]
        self.carried = [one for batch in self.batches for one in batch.carried]
        self.exposed = format_ms(timeline.exposed_ns) + (f" in {count} micro-batches" if count > 1 else "")
        # Collectives are buckets where each carries one of its own.
        buckets = [[span.bucket for span in batch.sent] for batch in self.batches]
        are_buckets = all(None not in one and len(set(one)) == len(one) for one in buckets)
        self.name = "bucket" if are_buckets else "collective"

    def on_path_ns(self, *kinds: str) -> int:
        """How long spans of these ``kinds`` are on the critical path."""
        return sum(_length(span) for span in self.path if span.kind in kinds)

    def latency_ns(self, sent: Iterable[Collective]) -> int:
        """The part of what ``sent`` take alone that is latency, that they lose on curves without."""
        curves, total = {kind: curve for kind in CURVES if (curve := self.hardware.curve(kind))}, 0
        on_bytes = {kind: without_latency(curve) for kind, curve in curves.items()}
        for one in sent:
            if whole := service_ns(curves[one.kind], one.num_bytes) if one.kind in curves else 0:
                latency = whole - service_ns(on_bytes[one.kind], one.num_bytes)
                total += latency * one.service_ns // whole  # one that is queued takes a share
        return total

    def taken_ns(self, taken: Callable[[Sequence[Collective]], int]) -> int:
        """By how much the step is shorter at most where ``taken`` tells what collectives one after the other
        lose: those on the critical path, and those outside of backward. Where callbacks launch as collectives
        end, other times are another order: all that is exposed may be saved.
        """
        total = self.outside_ns(taken)
        for batch in self.batches:
            played = (one.collective for one in batch.played.collectives)
            reorders = any(one.after is not None and not one.holds_channel for one in played)
            total += batch.played.own_exposed_ns if reorders else taken(batch.carried)
        return total

    def outside_ns(self, taken: Callable[[Sequence[Collective]], int]) -> int:
        """``taken_ns`` outside of backward; what is hidden behind forward is lost to nobody."""
        total = 0
        is_fixed = self.is_calm and self.hardware.queued_gather_factor == 1
        for batch in self.timeline.micro_batches:
            before = min(taken(batch.before), batch.pre_forward_ns)
            if not is_fixed and any(map(_is_of_parameters, batch.before)):
                before = batch.pre_forward_ns  # gathers that are faster may also be queued, or slow forward
            total += before + min(taken(batch.after), batch.post_sync_ns)
        return total

    @property
    def other_work_ns(self) -> int:
        """What copies and hooks outside of micro-batches that reduce may take."""
        total = sum(batch.own_exposed_ns for batch in self.timeline.earlier if not batch.collectives)
        for batch in self.timeline.micro_batches:
            blocking = [one for one in batch.before if not _is_of_parameters(one)]
            for around_ns, sent in ((batch.pre_forward_ns, blocking), (batch.post_sync_ns, batch.after)):
                launches = len(sent) * self.hardware.launch_cost_ns
                total += max(0, around_ns - _services_ns(sent) - launches)
        return total

    @property
    def stretch_ns(self) -> int:
        """By how much backward's own work on the critical path is longer than it would be alone."""
        workload, before = self.timeline.workload, 0
        alone: dict[int | None, int] = {}
        for index in workload.order():
            ready = workload.gradients[index].ready_ns or 0
            alone[index], before = ready - before, ready
        alone[None] = workload.backward_ns - before
        return sum(_length(span) - alone[span.gradient] for span in self.path if span.kind == "backward")


def find_bottleneck(timeline: Timeline) -> Bottleneck:
    """What to tell the user first: the first of ``CAUSES`` that matches.

    Parts of the step before forward and after the optimizer follow with what avoids them, and what of the
    machine is not measured.
    """
    evidence = _Evidence(timeline)
    first = next(found for cause in CAUSES if (found := cause(evidence)) is not None)
    parts: Counter[str] = Counter()
    for batch in timeline.micro_batches:
        for what, took in batch.before_forward:
            parts[f"before forward: {what}"] += took
        parts["after the optimizer: parameters"] += batch.post_sync_ns
    said = [
        f"{what}, {format_ms(took)}{_AVOIDED_BY.get(what, '')}"
        for what, took in parts.items()
        if took > _TOLD * timeline.step_ns
    ]
    sizes = [one.collective.num_bytes for one in timeline.collectives if one.collective.kind == "all_reduce"]
    said += rests_on(timeline.hardware, sizes)
    return first._replace(sentence="; ".join((first.sentence, *said)))


def _negligible(evidence: _Evidence) -> Bottleneck | None:
    """Nothing is sent, or what backward does not hide is next to nothing."""
    timeline, step = evidence.timeline, evidence.timeline.step_ns
    played = [one for batch in timeline.micro_batches for one in batch.collectives]
    around = [one for batch in timeline.micro_batches for one in (*batch.before, *batch.after)]
    times = [_services_ns(around), *(one.collective.service_ns + one.late_ns for one in played)]
    if not any(times):
        return Bottleneck("no-communication", "no communication: all-reduces cost nothing here", 0)
    exposed, outside = timeline.exposed_ns, timeline.outside_ns
    added = exposed + outside
    if added <= NEGLIGIBLE * step:
        share = format_percent(added / step if step else 0.0)
        sentence = (
            f"compute-bound: synchronising adds {format_ms(added)}, {share} of the step; "
            f"no other buckets can gain more than that"
        )
        return Bottleneck("compute-bound", sentence, added)
    if exposed > NEGLIGIBLE * step:
        return None
    sentence = (
        f"outside of backward: before forward and after the optimizer synchronising adds "
        f"{format_ms(outside)}, {format_percent(outside / step)} of the step; beside "
        f"backward {format_ms(exposed)} is exposed"
    )
    return Bottleneck("outside-backward", sentence, added)


def _straggler_bound(evidence: _Evidence) -> Bottleneck | None:
    """Collectives on the path wait for the slowest rank for half of what is exposed."""
    timeline, waits = evidence.timeline, evidence.on_path_ns("straggler")
    if timeline.slowest is None or not waits or waits < timeline.exposed_ns / 2:
        return None
    saves_ns = 0
    for one in evidence.batches:
        waited = sum(_length(span) for span in one.path if span.kind == "straggler")
        saves_ns += min(waited, one.played.own_exposed_ns)
    for batch in timeline.micro_batches:  # others wait in gathers, too; a broadcast's root waits for nobody
        saves_ns += batch.pre_forward_ns * any(one.root is None for one in batch.before)
        saves_ns += batch.post_sync_ns * bool(batch.after)
    count = sum(span.kind == "straggler" for span in evidence.path)
    sentence = (
        f"straggler-bound: the critical path waits {format_ms(waits)} for the slowest rank, in "
        f"{_count(count, 'collective')}; backward takes {format_ms(timeline.slowest.backward_ns)} there and "
        f"{format_ms(timeline.workload.backward_ns)} here; {evidence.exposed} is exposed, without that rank "
        f"{'at most' if evidence.is_additive else 'some'} {format_ms(saves_ns)} less"
    )
    return Bottleneck("straggler-bound", sentence, waits, saves_ns if evidence.is_additive else None)


def _lane_held(evidence: _Evidence) -> Bottleneck | None:
    """Collectives are launched after backward, or backward stands still for them: for all, or for enough to
    be half of what is exposed."""
    timeline, standing, hidden = evidence.timeline, 0, 0
    for batch in timeline.reducing:
        lane = [(span.start_ns, span.end_ns) for span in batch.compute]
        back = [(bucket.copy_out_start_ns, bucket.available_ns) for bucket in batch.buckets]
        standing += batch.backward_end_ns - intersection_length(lane + back, [(0, batch.backward_end_ns)])
        hidden += intersection_length(lane, [(one.start_ns, one.end_ns) for one in batch.collectives])
    phases = [played.collective.phase for batch in timeline.reducing for played in batch.collectives]
    is_after = all(phase in _AFTERWARDS for phase in phases)
    still = f"backward stands still for {format_ms(standing)}, waiting for collectives before it goes on"
    if is_after or (standing and not hidden):
        why = f"{_count(len(phases), 'collective')} launched after backward" if is_after else still
        sentence = f"no overlap: {why}, and nothing hides any of the {evidence.exposed} that are exposed"
        return Bottleneck("no-overlap", sentence, timeline.exposed_ns)
    if not standing or standing < timeline.exposed_ns / 2:
        return None
    return Bottleneck("lane-held", f"{still}, with {evidence.exposed} exposed", standing)


def _head_of_line(evidence: _Evidence) -> Bottleneck | None:
    """A bucket is ready and the link idle for a quarter of what is exposed, but an earlier one is not."""
    timeline = evidence.timeline
    blocked = _find_blocked(timeline)
    if blocked is None or blocked[2] < timeline.own_exposed_ns / 4:
        return None
    waiting, blocking, idle = blocked
    sentence = (
        f"head-of-line blocked by {_last_gradient(timeline, blocking.index).name}: bucket {waiting.index} "
        f"was ready at {format_ms(waiting.ready_ns)} but waited for bucket {blocking.index}, which that "
        f"parameter completes at {format_ms(blocking.ready_ns)}, with the link idle for {format_ms(idle)}"
    )
    found = map(_find_blocked, timeline.reducing)
    return Bottleneck("head-of-line", sentence, sum(one[2] for one in found if one is not None))


def _find_blocked(timeline: Timeline) -> tuple[BucketTimes, BucketTimes, int] | None:
    """The bucket that waited longest for an earlier one to become ready while the link was idle, the one that
    it waited for, and for how many ns the link was idle meanwhile; None where no bucket waited so.

    A system that does not launch in DDP's order (A3.5) has launched the first before the second is ready.
    While a collective waits for another rank, its link is not idle.
    """
    worst: tuple[BucketTimes, BucketTimes, int] | None = None
    taken = [(played.start_ns - played.late_ns, played.end_ns) for played in timeline.collectives]
    latest = timeline.buckets[0]  # of those so far, the one that was ready last
    for waiting in timeline.buckets[1:]:
        waited = latest.ready_ns - waiting.ready_ns
        if waited < 0:
            latest = waiting
        elif waited > (worst[2] if worst else 0) and latest.ready_ns <= waiting.launch_ns:
            idle = waited - intersection_length([(waiting.ready_ns, latest.ready_ns)], taken)
            if idle > (worst[2] if worst else -1):
                worst = (waiting, latest, idle)
    return worst


def _last_gradient(timeline: Timeline, bucket: int) -> Gradient:
    """The gradient of a bucket that is ready last."""
    order = {index: place for place, index in enumerate(timeline.workload.order())}
    members = timeline.assignment.bucket_indices[bucket]
    return timeline.workload.gradients[max(members, key=lambda index: order.get(index, -1))]


def _lane_bound(evidence: _Evidence) -> Bottleneck | None:
    """Work on the lane takes half of what is exposed; the largest part, without a collective on the path."""
    timeline, other = evidence.timeline, evidence.other_work_ns
    hooked = (span for span in evidence.path if span.kind == "copy_in" and span.gradient is not None)
    own = sum(min(evidence.hardware.hook_cost_ns, _length(span)) for span in hooked)  # no copying
    hooks, launches = evidence.on_path_ns("hook", "settle") + own, evidence.on_path_ns("launch")
    copies, back = evidence.on_path_ns("copy_in", "copy_out") - own, evidence.on_path_ns("copy_out")
    stretch, count = evidence.stretch_ns, sum(span.kind == "launch" for span in evidence.path)
    outside = sum(len(batch.before) + len(batch.after) for batch in timeline.micro_batches)
    each = f"{_count(count, 'launch', 'launches')} x {format_ms(launches / max(count, 1))}"
    code, why, whose = "interference-bound", "collectives beside it make", " of gradients" * (own == hooks)
    if evidence.is_calm:
        code, why = "accumulation-bound", "adding gradients to those of earlier micro-batches makes"
    path, in_step = "the critical path", launches + outside * evidence.hardware.launch_cost_ns
    # A cause, its time on the path and in the step, and its words. In some systems what hooks do is copying.
    rows = (
        ("hook-bound", hooks, hooks + other, f"hooks{whose} take {format_ms(hooks)} of {path}"),
        ("launch-bound", launches, in_step, f"{each} = {format_ms(launches)} on {path}"),
        ("copy-bound", copies, copies + hooks + other, f"copies take {format_ms(copies)} of {path}"),
        (code, stretch, stretch + other * evidence.is_calm, f"{why} backward {format_ms(stretch)} longer"),
    )
    half = timeline.exposed_ns / 2 if evidence.sent else max(row[1] for row in rows)
    for code, took, part, words in rows:
        if took and took >= half:
            views = f"; gradient_as_bucket_view removes {format_ms(back)} of them"
            advice = views if code == "copy-bound" and back else ""
            return Bottleneck(code, f"{code}: {words}, with {evidence.exposed} exposed{advice}", part)
    return None


def _latency_bound(evidence: _Evidence) -> Bottleneck | None:
    """Latency, the time of as many empty collectives, is at least half of the path's collectives."""
    sent, latency = evidence.sent, evidence.latency_ns(evidence.carried)
    if 2 * latency < _services_ns(evidence.carried):
        return None
    sentence = (
        f"latency-bound: {_count(len(sent), evidence.name)} x {format_ms(latency / len(sent))} = "
        f"{format_ms(latency)} of latency in {format_ms(sum(map(_length, sent)))} on the wire, with "
        f"{evidence.exposed} exposed"
    )
    return Bottleneck("latency-bound", sentence, evidence.taken_ns(evidence.latency_ns))


def _tail_exposed(evidence: _Evidence) -> Bottleneck | None:
    """One collective alone is on the path, in each micro-batch."""
    timeline = evidence.timeline
    if not evidence.batches[-1].sent or any(len(batch.sent) > 1 for batch in evidence.batches):
        return None
    (span,) = evidence.batches[-1].sent
    assert span.collective is not None
    played = timeline.collectives[span.collective]
    what, kind = played.collective, played.collective.kind.replace("_", "-")
    ready = played.launch_ns
    subject = f"tail exposed: the {kind} of {what.purpose} ({format_size(what.num_bytes)}) is launched"
    if what.bucket is not None:
        ready = timeline.buckets[what.bucket].ready_ns
        subject = f"tail bucket exposed: bucket {what.bucket} ({format_size(what.num_bytes)}) is ready"
    delayed = played.end_ns - played.start_ns - what.service_ns
    beside = f" ({format_ms(what.service_ns)} if nothing ran beside it)"
    several = f"; {evidence.exposed} is exposed" if len(evidence.batches) > 1 else ""
    sentence = (
        f"{subject} at {format_ms(ready)}, and its {kind} takes {format_ms(_length(span))}"
        f"{beside if delayed > NEGLIGIBLE * what.service_ns else ''} with only "
        f"{format_ms(max(0, timeline.backward_end_ns - ready))} of backward left to hide it{several}"
    )
    return Bottleneck("tail-exposed", sentence, evidence.taken_ns(_services_ns))


def _bandwidth_bound(evidence: _Evidence) -> Bottleneck:
    """What is left: collectives one after the other, most of whose time grows with their bytes."""
    sent, num_bytes = evidence.sent, sum(one.num_bytes for one in evidence.carried)
    wire = sum(map(_length, sent))
    is_gapless = all(a.end_ns == b.start_ns for batch in evidence.batches for a, b in pairwise(batch.sent))
    channels = len({played.channel for played in evidence.timeline.collectives})
    sharing = f" for each {evidence.name} ({channels} channels share the link)" if channels > 1 else ""
    sentence = (
        f"bandwidth-bound: {_count(len(sent), evidence.name)}{' back to back' if is_gapless else ''}, "
        f"{format_size(num_bytes)} at {num_bytes / wire:.2f} GB/s{sharing}, "
        f"{'keep the link busy for' if is_gapless else 'are on the critical path for'} "
        f"{format_ms(wire)}; {evidence.exposed} is exposed"
    )
    return Bottleneck("bandwidth-bound", sentence, evidence.taken_ns(_services_ns))


CAUSES: tuple[Callable[[_Evidence], Bottleneck | None], ...] = (
    *(_negligible, _straggler_bound, _lane_held, _head_of_line),
    *(_lane_bound, _latency_bound, _tail_exposed, _bandwidth_bound),
)


def _services_ns(sent: Iterable[Collective]) -> int:
    """How long ``sent`` take one after the other, each alone on its channel."""
    return sum(one.service_ns for one in sent)


def _length(span: Span) -> int:
    return span.end_ns - span.start_ns


def _is_of_parameters(one: Collective) -> bool:
    return one.purpose == "parameters" and one.service_ns > 0


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
