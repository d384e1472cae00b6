"""The figures of a step, as CONTRACT defines them."""

from collections.abc import Iterator, Sequence
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
    said: list[str] = []
    for kind, sent in sizes.items():
        if (curve := timeline.hardware.curve(kind)) is not None:
            said += _guessed(kind.replace("_", "-"), curve, sent, COUNTS * step_ns)
    return tuple(said)


def _guessed(kind: str, curve: Curve, sent: Sequence[int], counts_ns: float) -> Iterator[str]:
    """Sentences on messages below the curve, beyond it, in gaps of it or where it bends, if these count."""
    first, last = curve[0], curve[-1]
    far, only = (FAR, "") if len(curve) > 1 else (1, "the only")
    small = [size for size in sent if size * far < first.num_bytes]
    too_much = sum(first.duration_ns * (first.num_bytes - size) // first.num_bytes for size in small)
    if small and too_much >= counts_ns:
        yield (
            f"{len(small)} of {len(sent)} {kind}s, down to {format_size(min(small))}, are taken to last as "
            f"long as {format_size(first.num_bytes)}, {only or 'the least'} size of the curve: "
            f"{format_ms(first.duration_ns)} each, up to {format_ms(too_much)} too much in all; measure "
            f"smaller ones"
        )
    large = [size for size in sent if size > far * last.num_bytes > 0]  # else a constant, as it was meant
    beyond = sum(service_ns(curve, size) - last.duration_ns for size in large)
    if large and beyond >= counts_ns:
        yield (
            f"{len(large)} of {len(sent)} {kind}s, up to {format_size(max(large))}, are larger than "
            f"{format_size(last.num_bytes)}, {only or 'the greatest'} size of the curve, and "
            f"{format_ms(beyond)} in all are a straight line beyond it; measure larger ones"
        )
    found = [
        (one.words, service_ns(curve, size) * max(one.high - 1, 1 - one.low))
        for size in sent
        for one in guesses(curve, size, size + 1)
        if one.where == "between"
    ]
    open_ns = round(sum(ns for _, ns in found))
    if found and open_ns >= counts_ns:
        gaps = " and ".join(dict.fromkeys(words for words, _ in found))
        yield (
            f"{len(found)} of {len(sent)} {kind}s are {gaps}, where nothing was measured: up to "
            f"{format_ms(open_ns)} more or less in all; measure sizes between"
        )
