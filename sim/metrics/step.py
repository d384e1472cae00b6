"""The figures of a step, as CONTRACT defines them."""

from collections.abc import Sequence
from itertools import chain

from sim.costs.doubts import doubts_about
from sim.costs.not_measured import FAR, guesses
from sim.costs.own_costs import told_unmeasured
from sim.costs.service_time import service_ns
from sim.metrics.bottleneck import find_bottleneck
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.collective import CollectiveKind
from sim.nouns.hardware import Curve
from sim.nouns.report import BucketRow, Report
from sim.nouns.timeline import PathSpan, Timeline
from sim.units import format_ms, format_size

EXPOSED = "exposed communication"


def overlap_ratio(timeline: Timeline) -> float:
    """Time in which compute lane and collectives are busy over time in which collectives are busy.

    HolisticTraceAnalysis's definition, on interval unions; 0.0 without communication.
    """
    collectives = [(played.start_ns, played.end_ns) for played in timeline.collectives]
    busy = length(union(collectives))
    compute = [(span.start_ns, span.end_ns) for span in timeline.compute]
    return intersection_length(compute, collectives) / busy if busy else 0.0


def step_ns(timeline: Timeline) -> int:
    """How long the whole step takes."""
    return timeline.step_ns


def parts_ns(timeline: Timeline) -> dict[str, int]:
    """The parts of a step that take time, in the order in which they come; they add up to the step.

    Of several micro-batches each has its own; neighbours that are alike are told together.
    """
    batches, workload = timeline.micro_batches, timeline.workload
    found: dict[str, int] = {}
    first = 0
    for number, batch in enumerate(batches):
        if number + 1 < len(batches) and batches[number + 1] is batch:
            continue
        reduces = batch.collectives or batch is timeline
        parts = {
            **{f"before forward: {what}": took for what, took in batch.before_forward},
            "forward": workload.forward_ns,
            "loss": workload.loss_ns,
            "backward": workload.backward_ns,
            EXPOSED if reduces else "adding to gradients": batch.own_exposed_ns,
        }
        place = _place(first, number, len(batches))
        found |= {place + name: took * (number + 1 - first) for name, took in parts.items()}
        first = number + 1
    found["optimizer"] = sum(batch.optimizer_ns for batch in batches)
    found["after the optimizer: parameters"] = sum(batch.post_sync_ns for batch in batches)
    return {name: took for name, took in found.items() if took}


def _place(first: int, last: int, count: int) -> str:
    """How the names of parts of these micro-batches (from 0) begin, of ``count``."""
    if count == 1:
        return ""
    return f"micro-batch {first + 1}: " if first == last else f"micro-batches {first + 1} to {last + 1}: "


def summarize(timeline: Timeline, path: Sequence[PathSpan] | None = None) -> Report:
    """The report of a timeline: its figures, the sentence that names the bottleneck, its buckets.

    ``path`` is its critical path where that is known, else it is found as far as it is needed.
    """
    step = timeline.step_ns
    verdict = find_bottleneck(timeline, step, path)
    return Report(
        policy=timeline.assignment.policy,
        iteration=timeline.iteration,  # type: ignore[arg-type]
        pre_forward_ns=timeline.pre_forward_ns,
        backward_end_ns=timeline.backward_end_ns,
        sync_end_ns=timeline.sync_end_ns,
        post_sync_ns=timeline.post_sync_ns,
        accumulation_ns=timeline.accumulation_ns,
        optimizer_ns=timeline.optimizer_ns,
        step_ns=step,
        exposed_comm_ns=timeline.exposed_ns,
        exposed_by_micro_batch_ns=tuple(batch.own_exposed_ns for batch in timeline.reducing),
        outside_ns=timeline.outside_ns,
        parts_ns=parts_ns(timeline),
        overlap_ratio=overlap_ratio(timeline),
        verdict=verdict.sentence,
        verdict_code=verdict.code,
        verdict_ns=verdict.part_ns,
        verdict_saves_ns=verdict.saves_ns,
        buckets=tuple(
            BucketRow(
                index=bucket.index,
                num_bytes=bucket.num_bytes,
                ready_ns=bucket.ready_ns,
                launch_ns=bucket.launch_ns,
                start_ns=bucket.start_ns,
                end_ns=bucket.end_ns,
                available_ns=bucket.available_ns,
                late_ns=bucket.late_ns,
            )
            for bucket in timeline.buckets
        ),
        bucket_indices=timeline.assignment.bucket_indices,
        engine=timeline.engine,
        early_launches=timeline.early_launches,
        notes=(
            *dict.fromkeys(note for batch in timeline.micro_batches for note in batch.notes),
            *outside_curves(timeline, step),
            *told_unmeasured(timeline.hardware),
            *doubts_about(timeline.workload, timeline.hardware),
        ),
        buffer_bytes=timeline.buffer_bytes,
        provenance={
            "workload": timeline.workload.name,
            "hardware": timeline.hardware.name,
            "ddp_kwargs": timeline.assignment.ddp_kwargs,
            **({} if timeline.slowest is None else {"slowest": timeline.slowest.name}),
        },
    )


COUNTS = 0.01  # the share of a step from which on it is said


def outside_curves(timeline: Timeline, step_ns: int) -> tuple[str, ...]:
    """A sentence for each curve and each of its ends where a guess may change the step; mostly none.

    A curve is constant below its first point and goes on straight beyond its last (CONTRACT, Hardware): where
    that, or a line between two points far apart, is a guess (``sim.costs.not_measured``).
    """
    if timeline.hardware.world_size == 1:
        return ()
    sizes: dict[CollectiveKind, list[int]] = {}
    for played in chain.from_iterable(batch.collectives for batch in timeline.micro_batches):
        if played.collective.purpose == "gradients":
            sizes.setdefault(played.collective.kind, []).append(played.collective.num_bytes)
    said = []
    for kind, sent in sizes.items():
        curve = timeline.hardware.curve(kind)
        if curve is not None:
            words = kind.replace("_", "-")
            said += [_below(words, curve, sent, step_ns), _beyond(words, curve, sent, step_ns)]
            said.append(_between(words, curve, sent, step_ns))
    return tuple(sentence for sentence in said if sentence is not None)


def _far(curve: Curve) -> int:
    return FAR if len(curve) > 1 else 1


def _below(kind: str, curve: Curve, sent: Sequence[int], step_ns: int) -> str | None:
    first = curve[0]
    small = [size for size in sent if size * _far(curve) < first.num_bytes]
    too_much = sum(first.duration_ns * (first.num_bytes - size) // first.num_bytes for size in small)
    if not small or too_much < COUNTS * step_ns:
        return None
    return (
        f"{len(small)} of {len(sent)} {kind}s, down to {format_size(min(small))}, are taken to last as long "
        f"as {format_size(first.num_bytes)}, {_measured(curve, 'the least')}: {format_ms(first.duration_ns)} "
        f"each, up to {format_ms(too_much)} too much in all; measure smaller ones"
    )


def _beyond(kind: str, curve: Curve, sent: Sequence[int], step_ns: int) -> str | None:
    last = curve[-1]
    if last.num_bytes == 0:  # a constant, as it was meant
        return None
    large = [size for size in sent if size > _far(curve) * last.num_bytes]
    beyond = sum(service_ns(curve, size) - last.duration_ns for size in large)
    if not large or beyond < COUNTS * step_ns:
        return None
    return (
        f"{len(large)} of {len(sent)} {kind}s, up to {format_size(max(large))}, are larger than "
        f"{format_size(last.num_bytes)}, {_measured(curve, 'the greatest')}, and {format_ms(beyond)} in all "
        f"are a straight line beyond it; measure larger ones"
    )


def _between(kind: str, curve: Curve, sent: Sequence[int], step_ns: int) -> str | None:
    """Messages in gaps of the curve, or where it bends."""
    found = []
    for size in sent:
        inside = [one for one in guesses(curve, size, size + 1) if one.where == "between"]
        found += [(one, service_ns(curve, size) * max(one.high - 1, 1 - one.low)) for one in inside]
    open_ns = round(sum(ns for _, ns in found))
    if open_ns < COUNTS * step_ns or not found:
        return None
    gaps = " and ".join(dict.fromkeys(one.words for one, _ in found))
    return (
        f"{len(found)} of {len(sent)} {kind}s are {gaps}, where nothing was measured: up to "
        f"{format_ms(open_ns)} more or less in all; measure sizes between"
    )


def _measured(curve: Curve, end: str) -> str:
    return f"{end} size of the curve" if len(curve) > 1 else "the only size of the curve"
