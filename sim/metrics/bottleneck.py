"""One sentence that names what holds the step up: the first cause that matches, with its figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sim.costs.not_measured import not_measured
from sim.costs.service_time import service_ns
from sim.metrics.evidence import Evidence
from sim.metrics.head_of_line import find_blocked
from sim.nouns.collective import CollectiveTimes
from sim.nouns.path import PathSpan
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Gradient
from sim.units import format_ms, format_size

NEGLIGIBLE = 0.01  # of the step: below this, communication is hidden for all that matters
TOLD = 0.005  # of the step: a part beside backward that takes more is told
_AFTERWARDS = ("end of backward", "after backward", "step")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """A cause by code, the sentence with the figures behind it, and the time that it is about, in ns.

    Without it, all else the same, the step would be shorter by at most ``part_ns``; this holds where
    ``Evidence.is_additive``. ``saves_ns`` is what the change that the sentence proposes saves at most;
    None where it proposes none, or where no bound is known.
    """

    code: str
    sentence: str
    part_ns: int
    saves_ns: int | None = None


def find_bottleneck(timeline: Timeline, step_ns: int, path: Sequence[PathSpan] | None = None) -> Bottleneck:
    """What to tell the user first: the first of ``CAUSES`` that matches, and what the optimizer's step adds.

    ``step_ns`` is the whole step, ``path`` its critical path where that is known. Parts of the step before
    forward and after the optimizer, which no critical path of a backward has, follow with what avoids them.
    """
    evidence = Evidence(timeline=timeline, step_ns=step_ns, known_path=path)
    found = (cause(evidence) for cause in CAUSES)
    first = next(bottleneck for bottleneck in found if bottleneck is not None)
    first = replace(first, part_ns=first.part_ns + evidence.earlier_exposed_ns)
    before = [
        _BEFORE.get(what, f"{what} before forward: {{}}").format(format_ms(took))
        for what, took in timeline.before_forward
        if took > TOLD * step_ns
    ]
    after = []
    if timeline.post_sync_ns > TOLD * step_ns:
        what = "gathering parameters" if timeline.hardware.all_gather else "all but gathering parameters"
        after = [f"{what} in the optimizer's step adds {format_ms(timeline.post_sync_ns)}"]
    sent = [one.collective.num_bytes for one in timeline.collectives if one.collective.kind == "all_reduce"]
    rests_on = not_measured(timeline.hardware, sent)
    rests = [f"this rests on {'; '.join(rests_on)}"] if rests_on else []
    return replace(first, sentence="; ".join((first.sentence, *before, *after, *rests)))


_BEFORE = {
    "buffers": "buffers are broadcast before forward: {}; broadcast_buffers=False would save it",
    "rebuilt buckets": "the rebuilt buckets are told to all ranks before forward, once: {}",
    "unused parameters": "forward looks for unused parameters: {}; find_unused_parameters=False "
    "would save it",
    "common rank": "ranks agree before forward who sends the buffers: {}",
    "parameters": "forward waits for parameters: {}",
    "zeroed gradients": "gradients are zeroed before forward: {}",
}


def _no_communication(evidence: Evidence) -> Bottleneck | None:
    if any(played.collective.service_ns or played.late_ns for played in evidence.timeline.collectives):
        return None
    return Bottleneck(
        code="no-communication",
        sentence="no communication: all-reduces cost nothing here",
        part_ns=0,
    )


def _compute_bound(evidence: Evidence) -> Bottleneck | None:
    exposed = evidence.timeline.exposed_ns
    share = exposed / evidence.step_ns if evidence.step_ns else 0.0
    if share > NEGLIGIBLE:
        return None
    return Bottleneck(
        code="compute-bound",
        sentence=f"compute-bound: synchronising adds {format_ms(exposed)}, {share:.1%} of the step; "
        f"no assignment can gain more than that",
        part_ns=evidence.exposed_ns,
    )


def _straggler_bound(evidence: Evidence) -> Bottleneck | None:
    """Collectives on the path wait for the slowest rank for half of what is exposed."""
    timeline, waits = evidence.timeline, evidence.on_path_ns("straggler")
    if timeline.slowest is None or not waits or waits < evidence.exposed_ns / 2:
        return None
    count = sum(span.kind == "straggler" for span in evidence.path)
    saves_ns = evidence.saved_ns(waits, evidence.timeline.exposed_ns)
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


def _no_overlap(evidence: Evidence) -> Bottleneck | None:
    timeline = evidence.timeline
    if any(played.collective.phase not in _AFTERWARDS for played in timeline.collectives):
        return None
    count = len(timeline.collectives)
    return Bottleneck(
        code="no-overlap",
        sentence=f"no overlap: {'all' if count > 1 else 'the'} {_count(count, 'collective')} "
        f"{'are' if count > 1 else 'is'} launched after backward, which hides none of the "
        f"{evidence.exposed_words} that are exposed",
        part_ns=evidence.exposed_ns,
    )


def _lane_held(evidence: Evidence) -> Bottleneck | None:
    """Collectives for which backward stands still: all of them, or enough to be half of what is exposed."""
    standing, exposed = evidence.standing_ns, evidence.exposed_ns
    if standing and not evidence.hidden_ns:
        sentence = (
            f"no overlap: backward stands still for {format_ms(standing)}, waiting for each collective, and "
            f"nothing hides any of the {evidence.exposed_words} that are exposed"
        )
        return Bottleneck(code="no-overlap", sentence=sentence, part_ns=exposed)
    if not standing or standing < exposed / 2:
        return None
    return Bottleneck(
        code="lane-held",
        sentence=f"backward stands still for {format_ms(standing)}, waiting for collectives before it "
        f"goes on, with {evidence.exposed_words} exposed",
        part_ns=standing,
    )


def _head_of_line(evidence: Evidence) -> Bottleneck | None:
    """A bucket is ready and the link idle for a quarter of what is exposed, but an earlier one is not."""
    timeline = evidence.timeline
    blocked = find_blocked(timeline)
    if blocked is None or blocked[2] < evidence.exposed_ns / 4:
        return None
    waiting, blocking, idle = blocked
    return Bottleneck(
        code="head-of-line",
        sentence=f"head-of-line blocked by {_last_gradient(timeline, blocking.index).name}: bucket "
        f"{waiting.index} was ready at {format_ms(waiting.ready_ns)} but waited for bucket "
        f"{blocking.index}, which that parameter completes at {format_ms(blocking.ready_ns)}, with the link "
        f"idle for {format_ms(idle)}",
        part_ns=idle,
    )


def _last_gradient(timeline: Timeline, bucket: int) -> Gradient:
    """The gradient of a bucket that is ready last."""
    order = {index: place for place, index in enumerate(timeline.workload.order())}
    members = timeline.assignment.bucket_indices[bucket]
    return timeline.workload.gradients[max(members, key=lambda index: order.get(index, -1))]


def _hook_bound(evidence: Evidence) -> Bottleneck | None:
    hooks = evidence.on_path_ns("hook", "settle")
    if not hooks or hooks < evidence.threshold_ns:
        return None
    return Bottleneck(
        code="hook-bound",
        sentence=f"hook-bound: what hooks compute takes {format_ms(hooks)} of the critical path, "
        f"with {evidence.exposed_words} exposed",
        part_ns=hooks,
    )


def _launch_bound(evidence: Evidence) -> Bottleneck | None:
    launches = evidence.on_path_ns("launch")
    if not launches or launches < evidence.threshold_ns:
        return None
    count = sum(span.kind == "launch" for span in evidence.path)
    return Bottleneck(
        code="launch-bound",
        sentence=f"launch-bound: {_count(count, 'launch', 'launches')} x "
        f"{format_ms(launches / count)} = {format_ms(launches)} on the critical path, with "
        f"{evidence.exposed_words} exposed",
        part_ns=launches,
    )


def _copy_bound(evidence: Evidence) -> Bottleneck | None:
    copies, back = evidence.on_path_ns("copy_in", "copy_out"), evidence.on_path_ns("copy_out")
    if not copies or copies < evidence.threshold_ns:
        return None
    advice = f"; gradient_as_bucket_view removes {format_ms(back)} of them" if back else ""
    return Bottleneck(
        code="copy-bound",
        sentence=f"copy-bound: copies into and out of buckets take {format_ms(copies)} of the "
        f"critical path, with {evidence.exposed_words} exposed{advice}",
        part_ns=copies,
    )


def _interference_bound(evidence: Evidence) -> Bottleneck | None:
    if not evidence.stretch_ns or evidence.stretch_ns < evidence.threshold_ns:
        return None
    return Bottleneck(
        code="interference-bound",
        sentence=f"interference-bound: collectives beside it make backward {format_ms(evidence.stretch_ns)} "
        f"longer, with {evidence.exposed_words} exposed",
        part_ns=evidence.stretch_ns,
    )


def _latency_bound(evidence: Evidence) -> Bottleneck | None:
    """Latency, the time of as many empty collectives, is at least half of the path's collectives."""
    sent, latency = evidence.sent, evidence.latency_ns
    if latency < evidence.moving_ns:
        return None
    name = _name(sent)
    saved = evidence.saved_ns(evidence.merging_saves_ns, evidence.timeline.exposed_ns)
    advice = (
        f"; one {name} in their place would save {_saving(saved, evidence.is_alone)}"
        if evidence.merging_saves_ns
        else ""
    )
    return Bottleneck(
        code="latency-bound",
        sentence=f"latency-bound: {_count(len(sent), name)} x {format_ms(latency / len(sent))} = "
        f"{format_ms(latency)} of latency in {format_ms(evidence.wire_ns)} on the wire, with "
        f"{evidence.exposed_words} exposed{advice}",
        part_ns=latency,
        saves_ns=saved if evidence.merging_saves_ns and evidence.is_alone else None,
    )


def _tail_exposed(evidence: Evidence) -> Bottleneck | None:
    """One collective alone is on the path."""
    timeline, wire = evidence.timeline, evidence.wire_ns
    if len(evidence.sent) > 1:
        return None
    played = evidence.played[0]
    what, kind = played.collective, played.collective.kind.replace("_", "-")
    ready = played.launch_ns
    subject = f"tail exposed: the {kind} of {what.purpose} ({format_size(what.num_bytes)}) is launched"
    alone = ""
    if what.bucket is not None:
        ready = timeline.buckets[what.bucket].ready_ns
        subject = f"tail bucket exposed: bucket {what.bucket} ({format_size(what.num_bytes)}) is ready"
        alone = _alone_words(evidence, what.bucket)
    left = max(0, timeline.backward_end_ns - ready)
    return Bottleneck(
        code="tail-exposed",
        sentence=f"{subject} at {format_ms(ready)}, and its {kind} takes {format_ms(wire)}"
        f"{_beside_words(played)} with only {format_ms(left)} of backward left to hide it{alone}",
        part_ns=wire,
    )


def _bandwidth_bound(evidence: Evidence) -> Bottleneck:
    """What is left: collectives one after the other, most of whose time grows with their bytes."""
    sent, wire, num_bytes = evidence.sent, evidence.wire_ns, evidence.wire_bytes
    is_gapless = all(before.end_ns == after.start_ns for before, after in pairwise(sent))
    saves_ns = evidence.saved_ns(-(-evidence.moving_ns // 2), -(-evidence.all_moving_ns // 2))
    # Where others share the link or slow it down, the path does not tell what more bandwidth would save.
    advice = (
        f", of which twice the bandwidth would save at most {format_ms(saves_ns)}"
        if evidence.is_alone
        else ""
    )
    return Bottleneck(
        code="bandwidth-bound",
        sentence=f"bandwidth-bound: {_count(len(sent), _name(sent))}{' back to back' if is_gapless else ''}, "
        f"{format_size(num_bytes)} at {num_bytes / wire:.2f} GB/s{_sharing_words(evidence)}, "
        f"{'keep the link busy for' if is_gapless else 'are on the critical path for'} "
        f"{format_ms(wire)}; {evidence.exposed_words} is exposed{advice}",
        part_ns=wire,
        saves_ns=saves_ns if evidence.is_alone else None,
    )


def _sharing_words(evidence: Evidence) -> str:
    """Why the rate is below the wire's, where collectives of several channels travel at the same time."""
    channels = {played.channel for played in evidence.timeline.collectives}
    each = f" for each {_name(evidence.sent)} ({len(channels)} channels share the link)"
    return each if len(channels) > 1 else ""


def _beside_words(played: CollectiveTimes) -> str:
    """What a collective would take if neither compute nor another one ran beside it, where that counts."""
    alone = played.collective.service_ns
    delayed = played.end_ns - played.start_ns - alone
    return f" ({format_ms(alone)} if nothing ran beside it)" if delayed > NEGLIGIBLE * alone else ""


CAUSES: tuple[Callable[[Evidence], Bottleneck | None], ...] = (
    _no_communication,
    _compute_bound,
    _straggler_bound,
    _no_overlap,
    _lane_held,
    _head_of_line,
    _hook_bound,
    _launch_bound,
    _copy_bound,
    _interference_bound,
    _latency_bound,
    _tail_exposed,
    _bandwidth_bound,
)


def _alone_words(evidence: Evidence, bucket: int) -> str:
    """What the bucket's last gradient would take without the others."""
    timeline = evidence.timeline
    if len(timeline.assignment.bucket_indices[bucket]) == 1:
        return ""
    last, gradients = _last_gradient(timeline, bucket), timeline.workload.gradients
    whole = sum(gradients[index].on_wire for index in timeline.assignment.bucket_indices[bucket])
    sent = last.on_wire * evidence.wire_bytes // max(whole, 1)  # as a communication hook has it on the wire
    alone = service_ns(evidence.curves[0], sent)
    return f"; {last.name}, which completes it, would take {format_ms(alone)} alone"


def _saving(ns: int, is_bound: bool) -> str:
    return f"{'at most' if is_bound else 'some'} {format_ms(ns)}"


def _name(sent: Sequence[PathSpan]) -> str:
    """What to call collectives: buckets, where each carries one of its own."""
    buckets = {span.bucket for span in sent}
    return "bucket" if None not in buckets and len(buckets) == len(sent) else "collective"


def _count(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"
