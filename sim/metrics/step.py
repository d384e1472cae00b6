"""The figures of a step, as CONTRACT defines them."""

from dataclasses import fields
from typing import Any

from sim.costs.doubts import notes_of
from sim.metrics.bottleneck import find_bottleneck
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.report import Report
from sim.nouns.timeline import BucketRow, Timeline

EXPOSED = "exposed communication"


def overlap_ratio(timeline: Timeline) -> float:
    """Time in which compute lane and collectives are busy over time in which collectives are busy.

    HolisticTraceAnalysis's definition, on interval unions; 0.0 without communication.
    """
    collectives = [(played.start_ns, played.end_ns) for played in timeline.collectives]
    busy = length(union(collectives))
    compute = [(span.start_ns, span.end_ns) for span in timeline.compute]
    return intersection_length(compute, collectives) / busy if busy else 0.0


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
        which = f"es {first + 1} to {number + 1}" if number > first else f" {number + 1}"
        place = f"micro-batch{which}: " if len(batches) > 1 else ""
        found |= {place + name: took * (number + 1 - first) for name, took in parts.items()}
        first = number + 1
    found["optimizer"] = sum(batch.optimizer_ns for batch in batches)
    found["after the optimizer: parameters"] = sum(batch.post_sync_ns for batch in batches)
    found["rest"] = timeline.rest_ns
    return {name: took for name, took in found.items() if took}


# What a report has as its timeline has it.
_SAME = (
    *("iteration", "pre_forward_ns", "backward_end_ns", "sync_end_ns", "post_sync_ns", "accumulation_ns"),
    *("optimizer_ns", "rest_ns", "step_ns", "outside_ns", "engine", "early_launches", "buffer_bytes"),
)


def summarize(timeline: Timeline) -> Report:
    """The report of a timeline: its figures, the sentence that names the bottleneck, its buckets."""
    verdict, rows = find_bottleneck(timeline), [one.name for one in fields(BucketRow)]
    same: dict[str, Any] = {name: getattr(timeline, name) for name in _SAME}
    return Report(
        **same,
        policy=timeline.assignment.policy,
        exposed_comm_ns=timeline.exposed_ns,
        exposed_by_micro_batch_ns=tuple(batch.own_exposed_ns for batch in timeline.reducing),
        parts_ns=parts_ns(timeline),
        overlap_ratio=overlap_ratio(timeline),
        verdict=verdict.sentence,
        verdict_code=verdict.code,
        verdict_ns=verdict.part_ns,
        verdict_saves_ns=verdict.saves_ns,
        buckets=tuple(BucketRow(**{row: getattr(one, row) for row in rows}) for one in timeline.buckets),
        bucket_indices=timeline.assignment.bucket_indices,
        notes=notes_of(
            timeline.workload,
            timeline.hardware,
            (note for batch in timeline.micro_batches for note in batch.notes),
        ),
        provenance={
            "workload": timeline.workload.name,
            "hardware": timeline.hardware.name,
            "ddp_kwargs": timeline.assignment.ddp_kwargs,
            **({} if timeline.slowest is None else {"slowest": timeline.slowest.name}),
        },
    )
