"""What holds a step up: the chain of spans that decides its end, in the graph of what released what, and one
sentence, of the first cause that matches, with its figures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple, get_args

import networkx

from sim.costs.not_measured import not_measured
from sim.costs.service_time import service_ns
from sim.metrics.intervals import intersection_length
from sim.nouns.collective import Collective, CollectiveKind, CollectiveTimes
from sim.nouns.hardware import SLOWDOWNS
from sim.nouns.timeline import BucketTimes, PathSpan, Timeline
from sim.nouns.workload import Gradient
from sim.units import format_ms, format_percent, format_size

_START = -1  # of backward, among the numbers of links


def dependencies(timeline: Timeline) -> "networkx.DiGraph[int]":
    """The links of a step by number: an edge from each one's cause to it.

    Every link has one, so that one way leads to each, without a gap, from the start of backward.
    """
    return networkx.DiGraph((link.cause, number) for number, link in enumerate(timeline.spans))


def critical_path(timeline: Timeline) -> tuple[PathSpan, ...]:
    """The spans that decide when the last gradient is available, in time order; all take time."""
    if timeline.released_by == _START:
        return ()
    way = networkx.shortest_path(dependencies(timeline), _START, timeline.released_by)
    return tuple(
        PathSpan(
            kind=link.kind,
            start_ns=link.start_ns,
            end_ns=link.end_ns,
            bucket=link.bucket,
            gradient=link.gradient,
            collective=link.collective,
        )
        for link in (timeline.spans[number] for number in way[1:])
        if link.end_ns > link.start_ns
    )


_SENT = get_args(CollectiveKind)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A timeline and figures read off it, each computed once and only if it is asked for.

    Micro-batches follow each other, so the critical path of the step is that of each, one after the other.
    ``step_ns`` is the whole step, ``known_path`` the path of the last micro-batch where it was found before.
    """

    timeline: Timeline
    step_ns: int
    known_path: Sequence[PathSpan] | None = None

    @property
    def exposed_words(self) -> str:
        """What is exposed in the step, and in how many micro-batches if in several."""
        count = len(self.timeline.reducing)
        return format_ms(self.timeline.exposed_ns) + (f" in {count} micro-batches" if count > 1 else "")

    @cached_property
    def paths(self) -> list[Sequence[PathSpan]]:
        """The critical path of each micro-batch that reduces: one after the other, that of the step."""
        walked = {} if self.known_path is None else {id(self.timeline): self.known_path}
        for batch in self.timeline.reducing:
            if id(batch) not in walked:
                walked[id(batch)] = critical_path(batch)
        return [walked[id(batch)] for batch in self.timeline.reducing]

    @cached_property
    def path(self) -> list[PathSpan]:
        """The spans of all ``paths``."""
        return list(chain.from_iterable(self.paths))

    @cached_property
    def sent_in(self) -> list[list[PathSpan]]:
        """The collectives on each of ``paths``."""
        return [[span for span in path if span.kind in _SENT] for path in self.paths]

    @cached_property
    def carried_in(self) -> list[list[Collective]]:
        """What the collectives on each of ``paths`` carry."""
        return [
            [batch.collectives[span.collective].collective for span in sent if span.collective is not None]
            for batch, sent in zip(self.timeline.reducing, self.sent_in, strict=True)
        ]

    @property
    def sent(self) -> list[PathSpan]:
        """The collectives on the critical path."""
        return list(chain.from_iterable(self.sent_in))

    @property
    def carried(self) -> list[Collective]:
        """What they carry."""
        return list(chain.from_iterable(self.carried_in))

    def latency_ns(self, sent: Sequence[Collective]) -> int:
        """The part of what ``sent`` take alone that is latency: of each, the smallest time on its curve."""
        return sum(map(self._latency_ns, sent))

    def halving_saves_ns(self, sent: Sequence[Collective]) -> int:
        """How much twice the bandwidth takes from ``sent``, one after the other; each is rounded."""
        return sum(-(-(one.service_ns - self._latency_ns(one)) // 2) for one in sent)

    def merging_saves_ns(self, sent: Sequence[Collective]) -> int:
        """How much one collective would save in place of ``sent``; of several kinds there is none."""
        kinds = {one.kind for one in sent}
        if len(kinds) != 1 or "broadcast" in kinds:
            return 0
        curve = self.timeline.hardware.curve(sent[0].kind)
        together = 0 if curve is None else service_ns(curve, sum(one.num_bytes for one in sent))
        return max(0, services_ns(sent) - together)

    def _latency_ns(self, one: Collective) -> int:
        curve = self.timeline.hardware.curve(one.kind)
        whole = service_ns(curve, one.num_bytes) if curve else 0
        least = min((point.duration_ns for point in curve or ()), default=0)
        return least * one.service_ns // whole if whole else 0  # one that is queued takes a share of both

    def taken_ns(self, taken: Callable[[Sequence[Collective]], int], *, at_most_exposed: bool = False) -> int:
        """By how much the step is shorter at most where ``taken`` tells what collectives one after the other
        lose: those on the critical path (of no backward more than it exposes, if so asked), and those outside
        of backward. Where callbacks launch as collectives end, other times are another order: all that is
        exposed may be saved.
        """
        total = self.outside_ns(taken)
        for batch, sent in zip(self.timeline.reducing, self.carried_in, strict=True):
            lost = batch.own_exposed_ns if _reorders(batch) else taken(sent)
            total += min(lost, batch.own_exposed_ns) if at_most_exposed else lost
        return total

    def outside_ns(self, taken: Callable[[Sequence[Collective]], int]) -> int:
        """``taken_ns`` outside of backward; what is hidden behind forward is lost to nobody."""
        total = 0
        for batch in self.timeline.micro_batches:
            before = min(taken(batch.before), batch.pre_forward_ns)
            is_fixed = self.is_calm and batch.hardware.queued_gather_factor == 1
            if not is_fixed and any(map(_is_of_parameters, batch.before)):
                before = batch.pre_forward_ns  # gathers that are faster may also be queued, or slow forward
            total += before + min(taken(batch.after), batch.post_sync_ns)
        return total

    @property
    def other_work_ns(self) -> int:
        """What copies and hooks outside of micro-batches that reduce may take."""
        total = 0
        for batch in self.timeline.micro_batches:
            blocking = [one for one in batch.before if not _is_of_parameters(one)]
            for around_ns, sent in ((batch.pre_forward_ns, blocking), (batch.post_sync_ns, batch.after)):
                launches = len(sent) * self.timeline.hardware.launch_cost_ns
                total += max(0, around_ns - services_ns(sent) - launches)
            if not any(batch is one for one in self.timeline.reducing):
                total += batch.own_exposed_ns
        return total

    def on_path_ns(self, *kinds: str) -> int:
        """How long spans of these ``kinds`` are on the critical path."""
        return sum(map(length_of, (span for span in self.path if span.kind in kinds)))

    @cached_property
    def stretch_ns(self) -> int:
        """By how much backward's own work on the critical path is longer than it would be alone."""
        workload, before = self.timeline.workload, 0
        alone: dict[int | None, int] = {}
        for index in workload.order():
            ready = workload.gradients[index].ready_ns or 0
            alone[index], before = ready - before, ready
        alone[None] = workload.backward_ns - before
        return sum(length_of(span) - alone[span.gradient] for span in self.path if span.kind == "backward")

    @cached_property
    def standing_ns(self) -> int:
        """How long the compute lane stands still before the ends of backwards."""
        total = 0
        for batch in self.timeline.reducing:
            spans = [(span.start_ns, span.end_ns) for span in batch.compute]
            spans += [(bucket.copy_out_start_ns, bucket.available_ns) for bucket in batch.buckets]
            total += batch.backward_end_ns - intersection_length(spans, [(0, batch.backward_end_ns)])
        return total

    @cached_property
    def hidden_ns(self) -> int:
        """How long collectives and the compute lane are at work side by side."""
        return sum(
            intersection_length(
                [(span.start_ns, span.end_ns) for span in batch.compute],
                [(played.start_ns, played.end_ns) for played in batch.collectives],
            )
            for batch in self.timeline.reducing
        )

    @property
    def is_additive(self) -> bool:
        """Whether a step gets shorter by no more than what is taken from its critical path.

        That holds with one channel where nothing slows anything else down.
        """
        return self.timeline.hardware.comm_channels == 1 and self.is_calm

    @property
    def is_calm(self) -> bool:
        """Whether nothing slows anything else down."""
        return all(getattr(self.timeline.hardware, name) == 1 for name in SLOWDOWNS)

    @property
    def is_alone(self) -> bool:
        """``is_additive``, and no other rank's step changes with this one's."""
        return self.is_additive and self.timeline.slowest is None


def services_ns(sent: Iterable[Collective]) -> int:
    """How long ``sent`` take one after the other, each alone on its channel."""
    return sum(one.service_ns for one in sent)


def length_of(span: PathSpan) -> int:
    """How long a span lasts, in ns."""
    return span.end_ns - span.start_ns


def _reorders(batch: Timeline) -> bool:
    """Whether what is launched next may depend on how long collectives take."""
    sent = (played.collective for played in batch.collectives)
    return any(one.after is not None and not one.holds_channel for one in sent)


def _is_of_parameters(one: Collective) -> bool:
    return one.purpose == "parameters" and one.service_ns > 0


NEGLIGIBLE = 0.01  # of the step: below this, communication is hidden for all that matters
TOLD = 0.005  # of the step: a part beside backward that takes more is told
_AFTERWARDS = ("end of backward", "after backward", "step")


class Bottleneck(NamedTuple):
    """A cause by code, the sentence with the figures behind it, and the time that it is about, in ns.

    Without it, all else the same, the whole step would be shorter by at most ``part_ns``; this holds where
    ``Evidence.is_additive``. ``saves_ns`` is what the change that the sentence proposes saves at most;
    None where it proposes none, or where no bound is known.
    """

    code: str
    sentence: str
    part_ns: int
    saves_ns: int | None = None


def find_bottleneck(timeline: Timeline, step_ns: int, path: Sequence[PathSpan] | None = None) -> Bottleneck:
    """What to tell the user first: the first of ``CAUSES`` that matches, and what the optimizer's step adds.

    ``step_ns`` is the whole step, ``path`` the critical path of its last micro-batch where that is known.
    Parts of the step before forward and after the optimizer, which no critical path of a backward has, follow
    with what avoids them; bounds hold them too.
    """
    evidence = Evidence(timeline=timeline, step_ns=step_ns, known_path=path)
    found = (cause(evidence) for cause in CAUSES)
    first = next(bottleneck for bottleneck in found if bottleneck is not None)
    parts: dict[str, int] = {}
    for what, took in chain.from_iterable(batch.before_forward for batch in timeline.micro_batches):
        parts[what] = parts.get(what, 0) + took
    before = [
        _BEFORE.get(what, f"{what} before forward: {{}}").format(format_ms(took))
        for what, took in parts.items()
        if took > TOLD * step_ns
    ]
    after = []
    afterwards = sum(batch.post_sync_ns for batch in timeline.micro_batches)
    if afterwards > TOLD * step_ns:
        what = "gathering parameters" if timeline.hardware.all_gather else "all but gathering parameters"
        after = [f"{what} in the optimizer's step adds {format_ms(afterwards)}"]
    sent = [one.collective.num_bytes for one in timeline.collectives if one.collective.kind == "all_reduce"]
    rests_on = not_measured(timeline.hardware, sent)
    rests = [f"this rests on {'; '.join(rests_on)}"] if rests_on else []
    return first._replace(sentence="; ".join((first.sentence, *before, *after, *rests)))


_BEFORE = {
    "buffers": "buffers are broadcast before forward: {}; broadcast_buffers=False would save it",
    "rebuilt buckets": "the rebuilt buckets are told to all ranks before forward, once: {}",
    "unused parameters": "forward looks for unused parameters: {}; find_unused_parameters=False "
    "would save it",
    "common rank": "ranks agree before forward who sends the buffers: {}",
    "parameters": "forward waits for parameters: {}",
    "zeroed gradients": "gradients are zeroed before forward: {}",
}


def _negligible(evidence: Evidence) -> Bottleneck | None:
    """Nothing is sent, or what backward does not hide is next to nothing."""
    timeline, step = evidence.timeline, evidence.step_ns
    batches = timeline.micro_batches
    sent = [one for batch in batches for one in (*batch.before, *batch.after)]
    played = [one for batch in batches for one in batch.collectives]
    sent += [one.collective for one in played]
    if not services_ns(sent) and not any(one.late_ns for one in played):
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


def _straggler_bound(evidence: Evidence) -> Bottleneck | None:
    """Collectives on the path wait for the slowest rank for half of what is exposed."""
    timeline, waits = evidence.timeline, evidence.on_path_ns("straggler")
    if timeline.slowest is None or not waits or waits < timeline.exposed_ns / 2:
        return None
    count = sum(span.kind == "straggler" for span in evidence.path)
    saves_ns = 0
    for batch, path in zip(timeline.reducing, evidence.paths, strict=True):
        waited = sum(length_of(span) for span in path if span.kind == "straggler")
        saves_ns += min(waited, batch.own_exposed_ns)
    for batch in timeline.micro_batches:  # others wait in gathers, too; a broadcast's root waits for nobody
        saves_ns += batch.pre_forward_ns * any(one.root is None for one in batch.before)
        saves_ns += batch.post_sync_ns * bool(batch.after)
    saved = _saving(saves_ns, evidence.is_additive)
    return Bottleneck(
        code="straggler-bound",
        sentence=f"straggler-bound: the critical path waits {format_ms(waits)} for the slowest rank, in "
        f"{_count(count, 'collective')}; backward takes {format_ms(timeline.slowest.backward_ns)} there and "
        f"{format_ms(timeline.workload.backward_ns)} here; {evidence.exposed_words} is exposed, "
        f"without that rank {saved} less",
        part_ns=waits,
        saves_ns=saves_ns if evidence.is_additive else None,
    )


def _lane_held(evidence: Evidence) -> Bottleneck | None:
    """Collectives are launched after backward, or backward stands still for them: for all, or for enough to
    be half of what is exposed."""
    timeline, words = evidence.timeline, evidence.exposed_words
    sent = [played.collective for batch in timeline.reducing for played in batch.collectives]
    if all(one.phase in _AFTERWARDS for one in sent):
        all_are = "all" if len(sent) > 1 else "the"
        sentence = (
            f"no overlap: {all_are} {_count(len(sent), 'collective')} {'are' if len(sent) > 1 else 'is'} "
            f"launched after backward, which hides none of the {words} that are exposed"
        )
        return Bottleneck("no-overlap", sentence, timeline.exposed_ns)
    standing = evidence.standing_ns
    if standing and not evidence.hidden_ns:
        sentence = (
            f"no overlap: backward stands still for {format_ms(standing)}, waiting for each collective, and "
            f"nothing hides any of the {words} that are exposed"
        )
        return Bottleneck("no-overlap", sentence, timeline.exposed_ns)
    if not standing or standing < timeline.exposed_ns / 2:
        return None
    sentence = (
        f"backward stands still for {format_ms(standing)}, waiting for collectives before it goes on, with "
        f"{words} exposed"
    )
    return Bottleneck("lane-held", sentence, standing)


def _head_of_line(evidence: Evidence) -> Bottleneck | None:
    """A bucket is ready and the link idle for a quarter of what is exposed, but an earlier one is not."""
    timeline = evidence.timeline
    blocked = find_blocked(timeline)
    if blocked is None or blocked[2] < timeline.own_exposed_ns / 4:
        return None
    waiting, blocking, idle = blocked
    found = map(find_blocked, timeline.reducing)
    return Bottleneck(
        code="head-of-line",
        sentence=f"head-of-line blocked by {_last_gradient(timeline, blocking.index).name}: bucket "
        f"{waiting.index} was ready at {format_ms(waiting.ready_ns)} but waited for bucket "
        f"{blocking.index}, which that parameter completes at {format_ms(blocking.ready_ns)}, with the link "
        f"idle for {format_ms(idle)}",
        part_ns=sum(one[2] for one in found if one is not None),
    )


def _last_gradient(timeline: Timeline, bucket: int) -> Gradient:
    """The gradient of a bucket that is ready last."""
    order = {index: place for place, index in enumerate(timeline.workload.order())}
    members = timeline.assignment.bucket_indices[bucket]
    return timeline.workload.gradients[max(members, key=lambda index: order.get(index, -1))]


def _lane_bound(evidence: Evidence) -> Bottleneck | None:
    """Work on the lane takes half of what is exposed; the largest part, without a collective on the path."""
    hooks, launches = evidence.on_path_ns("hook", "settle"), evidence.on_path_ns("launch")
    copies, back = evidence.on_path_ns("copy_in", "copy_out"), evidence.on_path_ns("copy_out")
    stretch, timeline = evidence.stretch_ns, evidence.timeline
    half = timeline.exposed_ns / 2 if evidence.sent else max(hooks, launches, copies, stretch)
    exposed, other = f"with {evidence.exposed_words} exposed", evidence.other_work_ns
    if hooks and hooks >= half:
        sentence = f"hook-bound: what hooks compute takes {format_ms(hooks)} of the critical path, {exposed}"
        return Bottleneck("hook-bound", sentence, hooks + other)
    if launches and launches >= half:
        count = sum(span.kind == "launch" for span in evidence.path)
        outside = sum(len(batch.before) + len(batch.after) for batch in timeline.micro_batches)
        sentence = (
            f"launch-bound: {_count(count, 'launch', 'launches')} x {format_ms(launches / count)} = "
            f"{format_ms(launches)} on the critical path, {exposed}"
        )
        return Bottleneck("launch-bound", sentence, launches + outside * timeline.hardware.launch_cost_ns)
    if copies and copies >= half:
        advice = f"; gradient_as_bucket_view removes {format_ms(back)} of them" if back else ""
        sentence = (
            f"copy-bound: copies into and out of buckets take {format_ms(copies)} of the critical path, "
            f"{exposed}{advice}"
        )
        # what hooks, and callbacks between collectives, do is copying too in some systems
        return Bottleneck("copy-bound", sentence, copies + hooks + other)
    if not stretch or stretch < half:
        return None
    longer = f"backward {format_ms(stretch)} longer, {exposed}"
    if evidence.is_calm:
        sentence = f"accumulation-bound: adding gradients to those of earlier micro-batches makes {longer}"
        return Bottleneck("accumulation-bound", sentence, stretch + other)
    return Bottleneck(
        "interference-bound", f"interference-bound: collectives beside it make {longer}", stretch
    )


def _latency_bound(evidence: Evidence) -> Bottleneck | None:
    """Latency, the time of as many empty collectives, is at least half of the path's collectives."""
    sent, latency = evidence.sent, evidence.latency_ns(evidence.carried)
    if 2 * latency < services_ns(evidence.carried):
        return None
    name = _name(evidence)
    merged = sum(map(evidence.merging_saves_ns, evidence.carried_in))
    saved = evidence.taken_ns(evidence.merging_saves_ns, at_most_exposed=True)
    each = "" if len(evidence.paths) == 1 else " a micro-batch"
    advice = f"; one {name}{each} in their place would save {_saving(saved, evidence.is_alone)}"
    return Bottleneck(
        code="latency-bound",
        sentence=f"latency-bound: {_count(len(sent), name)} x {format_ms(latency / len(sent))} = "
        f"{format_ms(latency)} of latency in {format_ms(sum(map(length_of, sent)))} on the wire, with "
        f"{evidence.exposed_words} exposed{advice if merged else ''}",
        part_ns=evidence.taken_ns(evidence.latency_ns),
        saves_ns=saved if merged and evidence.is_alone else None,
    )


def _tail_exposed(evidence: Evidence) -> Bottleneck | None:
    """One collective alone is on the path, in each micro-batch."""
    timeline = evidence.timeline
    if not evidence.sent_in[-1] or any(len(sent) > 1 for sent in evidence.sent_in):
        return None
    (span,) = evidence.sent_in[-1]
    assert span.collective is not None
    played = timeline.collectives[span.collective]
    what, kind = played.collective, played.collective.kind.replace("_", "-")
    ready = played.launch_ns
    subject = f"tail exposed: the {kind} of {what.purpose} ({format_size(what.num_bytes)}) is launched"
    alone = ""
    if what.bucket is not None:
        ready = timeline.buckets[what.bucket].ready_ns
        subject = f"tail bucket exposed: bucket {what.bucket} ({format_size(what.num_bytes)}) is ready"
        alone = _alone_words(evidence, what)
    left = max(0, timeline.backward_end_ns - ready)
    several = f"; {evidence.exposed_words} is exposed" if len(evidence.paths) > 1 else ""
    return Bottleneck(
        code="tail-exposed",
        sentence=f"{subject} at {format_ms(ready)}, and its {kind} takes {format_ms(length_of(span))}"
        f"{_beside_words(played)} with only {format_ms(left)} of backward left to hide it{alone}{several}",
        part_ns=evidence.taken_ns(services_ns),
    )


def _bandwidth_bound(evidence: Evidence) -> Bottleneck:
    """What is left: collectives one after the other, most of whose time grows with their bytes."""
    sent, num_bytes = evidence.sent, sum(one.num_bytes for one in evidence.carried)
    wire = sum(map(length_of, sent))
    pairs = chain.from_iterable(map(pairwise, evidence.sent_in))
    is_gapless = all(before.end_ns == after.start_ns for before, after in pairs)
    saves_ns = evidence.taken_ns(evidence.halving_saves_ns, at_most_exposed=True)
    # Where others share the link or slow it down, the path does not tell what more bandwidth would save.
    advice = ""
    if evidence.is_alone:
        more = f"twice the bandwidth would save at most {format_ms(saves_ns)}"
        outside = evidence.outside_ns(evidence.halving_saves_ns)
        told = f", {format_ms(outside)} of it outside of backward"
        advice = f"; {more}{told}" if outside else f", of which {more}"
    return Bottleneck(
        code="bandwidth-bound",
        sentence=f"bandwidth-bound: {_count(len(sent), _name(evidence))}"
        f"{' back to back' if is_gapless else ''}, "
        f"{format_size(num_bytes)} at {num_bytes / wire:.2f} GB/s{_sharing_words(evidence)}, "
        f"{'keep the link busy for' if is_gapless else 'are on the critical path for'} "
        f"{format_ms(wire)}; {evidence.exposed_words} is exposed{advice}",
        part_ns=evidence.taken_ns(services_ns),
        saves_ns=saves_ns if evidence.is_alone else None,
    )


def _sharing_words(evidence: Evidence) -> str:
    """Why the rate is below the wire's, where collectives of several channels travel at the same time."""
    channels = {played.channel for played in evidence.timeline.collectives}
    each = f" for each {_name(evidence)} ({len(channels)} channels share the link)"
    return each if len(channels) > 1 else ""


def _beside_words(played: CollectiveTimes) -> str:
    """What a collective would take if neither compute nor another one ran beside it, where that counts."""
    alone = played.collective.service_ns
    delayed = played.end_ns - played.start_ns - alone
    return f" ({format_ms(alone)} if nothing ran beside it)" if delayed > NEGLIGIBLE * alone else ""


CAUSES: tuple[Callable[[Evidence], Bottleneck | None], ...] = (
    _negligible,
    _straggler_bound,
    _lane_held,
    _head_of_line,
    _lane_bound,
    _latency_bound,
    _tail_exposed,
    _bandwidth_bound,
)


def _alone_words(evidence: Evidence, what: Collective) -> str:
    """What the last gradient of the bucket that ``what`` carries would take without the others."""
    timeline, bucket = evidence.timeline, what.bucket
    if bucket is None or len(timeline.assignment.bucket_indices[bucket]) == 1:
        return ""
    last, gradients = _last_gradient(timeline, bucket), timeline.workload.gradients
    whole = sum(gradients[index].on_wire for index in timeline.assignment.bucket_indices[bucket])
    sent = last.on_wire * what.num_bytes // max(whole, 1)  # as a communication hook has it on the wire
    alone = service_ns(getattr(timeline.hardware, what.kind), sent)
    return f"; {last.name}, which completes it, would take {format_ms(alone)} alone"


def _saving(ns: int, is_bound: bool) -> str:
    return f"{'at most' if is_bound else 'some'} {format_ms(ns)}"


def _name(evidence: Evidence) -> str:
    """What to call collectives: buckets, where each carries one of its own."""
    for sent in evidence.sent_in:
        buckets = {span.bucket for span in sent}
        if None in buckets or len(buckets) < len(sent):
            return "collective"
    return "bucket"


def _count(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def find_blocked(timeline: Timeline) -> tuple[BucketTimes, BucketTimes, int] | None:
    """The bucket that waited longest for an earlier one to become ready while the link was idle.

    Returns the bucket that waited, the bucket that it waited for, and for how many ns the link was idle
    meanwhile; None where no bucket waited so. A system that does not launch in DDP's order (A3.5) launches
    the first before the second is ready, so that nothing is blocked. While a collective waits for another
    rank, its link is not idle.
    """
    worst: tuple[BucketTimes, BucketTimes, int] | None = None
    taken = [(played.start_ns - played.late_ns, played.end_ns) for played in timeline.collectives]
    latest: BucketTimes | None = None  # of those before, the one that was ready last
    for k, waiting in enumerate(timeline.buckets):
        blocking = latest
        if blocking is not None and blocking.ready_ns > waiting.launch_ns:  # without DDP's order
            earlier = [other for other in timeline.buckets[:k] if other.ready_ns <= waiting.launch_ns]
            blocking = max(earlier, key=lambda bucket: bucket.ready_ns, default=None)
        if latest is None or waiting.ready_ns > latest.ready_ns:
            latest = waiting
        if blocking is None or blocking.ready_ns <= waiting.ready_ns:
            continue
        waited = blocking.ready_ns - waiting.ready_ns
        if worst is not None and waited <= worst[2]:
            continue
        idle = waited - intersection_length([(waiting.ready_ns, blocking.ready_ns)], taken)
        if worst is None or idle > worst[2]:
            worst = (waiting, blocking, idle)
    return worst
