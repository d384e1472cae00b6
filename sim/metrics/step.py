"""The figures of a step, as CONTRACT defines them."""

from collections.abc import Sequence

from sim.costs.doubts import doubts_about
from sim.costs.own_costs import told_unmeasured
from sim.metrics.bottleneck import find_bottleneck
from sim.metrics.bucket_memory import buffer_memory
from sim.metrics.curve_reach import outside_curves
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.path import PathSpan
from sim.nouns.report import BucketRow, Report
from sim.nouns.timeline import Timeline


def overlap_ratio(timeline: Timeline) -> float:
    """Time in which compute lane and collectives are busy over time in which collectives are busy.

    HolisticTraceAnalysis's definition, on interval unions; 0.0 without communication.
    """
    collectives = [(played.start_ns, played.end_ns) for played in timeline.collectives]
    busy = length(union(collectives))
    compute = [(span.start_ns, span.end_ns) for span in timeline.compute]
    return intersection_length(compute, collectives) / busy if busy else 0.0


def step_ns(timeline: Timeline) -> int:
    """``accumulation + pre_forward + forward + loss + sync_end + optimizer + post_sync``, in ns."""
    workload = timeline.workload
    return (
        timeline.accumulation_ns
        + timeline.pre_forward_ns
        + workload.forward_ns
        + workload.loss_ns
        + timeline.sync_end_ns
        + timeline.optimizer_ns
        + timeline.post_sync_ns
    )


def parts_ns(timeline: Timeline) -> dict[str, int]:
    """The parts of a step that take time, in the order in which they come; they add up to the step."""
    workload = timeline.workload
    found = {
        "earlier micro-batches": timeline.accumulation_ns,
        **{f"before forward: {what}": took for what, took in timeline.before_forward},
        "forward": workload.forward_ns,
        "loss": workload.loss_ns,
        "backward": workload.backward_ns,
        "exposed communication": timeline.last_exposed_ns,
        "optimizer": timeline.optimizer_ns,
        "after the optimizer: parameters": timeline.post_sync_ns,
    }
    return {name: took for name, took in found.items() if took}


def summarize(timeline: Timeline, path: Sequence[PathSpan] | None = None) -> Report:
    """The report of a timeline: its figures, the sentence that names the bottleneck, its buckets.

    ``path`` is its critical path where that is known, else it is found as far as it is needed.
    """
    step = step_ns(timeline)
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
        exposed_by_micro_batch_ns=(*timeline.earlier_exposed_ns, timeline.last_exposed_ns),
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
            *timeline.notes,
            *outside_curves(timeline, step),
            *told_unmeasured(timeline.hardware),
            *doubts_about(timeline.workload, timeline.hardware),
        ),
        memory=buffer_memory(timeline),
        provenance={
            "workload": timeline.workload.name,
            "hardware": timeline.hardware.name,
            "ddp_kwargs": timeline.assignment.ddp_kwargs,
            **({} if timeline.slowest is None else {"slowest": timeline.slowest.name}),
        },
    )
