"""What the import of a job under FSDP2 says: what it found, assumed and missed, and its figures."""

from collections.abc import Sequence
from typing import Any

from sim.importer.kineto.layout import size_of
from sim.importer.kineto.seen import SeenRank, SeenStep
from sim.importer.kineto.several_ranks import AlignedRanks, rank_rows
from sim.importer.kineto.sharded_job import ShardedJob
from sim.importer.wording import count_of, few
from sim.nouns.hardware import Hardware
from sim.nouns.imported import Imported, ImportOptions
from sim.nouns.workload import Workload
from sim.systems.fsdp2_settings import SHARDED
from sim.units import format_ms, format_size, median_ns


def import_sharded(
    aligned: AlignedRanks,
    rank: SeenRank,
    steps: Sequence[SeenStep],
    world_size: int | None,
    dropped: tuple[str, ...],
    options: ImportOptions,
) -> Imported:
    """A job that ``fully_shard`` or ``replicate`` trained.

    Args:
        aligned: the ranks by their reductions.
        rank: the one whose backward is the longest; ``steps``: its steps.
        world_size: over how many ranks gradients are reduced.
        dropped: what was read and left out.

    Raises:
        InputError: a model that is not the one that was trained.
        NotModelledError: units that are not modelled.
    """
    job = ShardedJob(aligned, rank, steps, world_size, options)
    workload, hardware = job.workload(), job.hardware()
    if left := len(steps) - len(job.steps):
        dropped = (*dropped, f"{count_of(left, 'step')} with other units of FSDP2 than most")
    return Imported(
        format="kineto",
        name=job.name,
        workload=workload,
        hardware=() if hardware is None else (hardware,),
        ranks=rank_rows(aligned),
        found=_found(job, workload),
        assumed=_assumed(job, hardware),
        missing=_missing(job, workload, hardware),
        dropped=dropped,
        details=_details(job),
    )


def _found(job: ShardedJob, workload: Workload | None) -> tuple[str, ...]:
    units = ["+".join(unit.modules) or "the root" for unit in job.first.units]
    sizes = [size_of(one) for one in job.steps[0].reductions]
    flags = [
        f"{name}={str(value).lower() if value is False else value}" for name, value in job.settings().items()
    ]
    forward, backward = (
        format_ms(median_ns([getattr(one, name) for one in job.shardings]))
        for name in ("forward_ns", "backward_ns")
    )
    return (
        f"{count_of(len(job.aligned.ranks), 'rank')}{f' of {job.world_size}' if job.world_size else ''}, "
        f"{job.rank.backend or 'backend unknown'}, on {job.rank.device}; {count_of(len(job.steps), 'step')} "
        f"of {format_ms(median_ns([step.end_ns - step.start_ns for step in job.steps]))}",
        f"trained by FSDP2's {job.policy}: {count_of(len(units), 'unit')}, as they are reduced: {few(units)}",
        f"{count_of(len(sizes), 'reduction')} a step: "
        f"{few(['?' if size is None else format_size(size) for size in sizes])}; "
        f"{count_of(len(job.first.gathers), 'all-gather')}",
        f"work alone, without what FSDP2 does and waits for: forward {forward}, backward {backward}",
        *(
            [f"{len(workload.gradients)} gradients, {format_size(workload.total_bytes)}"]
            if workload is not None
            else []
        ),
        f"simulate it with --policy {job.policy}" + "".join(f' --fsdp "{flag}"' for flag in flags),
    )


def _assumed(job: ShardedJob, hardware: Hardware | None) -> tuple[str, ...]:
    lines = [job.told_by()]
    on_gpu = job.rank.on_gpu
    if job.policy == SHARDED:
        lines.append(
            "the optimizer's time is that of a rank's share, taken times the parameters over it; the dtype "
            "that parameters are kept in is not in the trace: that of their gradients is taken"
        )
    if on_gpu:
        lines.append(
            "work is what the compute stream ran: where it was idle for other reasons than FSDP2's waits (a "
            "host that does not keep up), a prediction is too short"
        )
    lines += dict.fromkeys(f"WARNING: {doubt}" for rank in job.aligned.ranks for doubt in rank.doubts)
    if hardware is None:
        return tuple(lines)
    if not on_gpu:
        lines.append(
            "a collective lasts from when a thread of gloo takes it to its end on that rank; on the CPU "
            "FSDP2 waits for each one, a prediction overlaps them as on a GPU"
        )
    if job.policy == SHARDED:
        lines.append(
            "all-reduces are not in the trace: "
            + (
                "each is taken for a reduce-scatter and an all-gather"
                if on_gpu
                else "gloo runs a reduce-scatter as one, so they are taken to last as long"
            )
        )
    if not job.aligned.complete:
        lines.append(
            f"WARNING: {len(job.aligned.ranks)} of {job.world_size} ranks: a collective lasts from its own "
            f"rank's arrival, not the last one's: an upper bound; give the traces of all ranks"
        )
    return tuple(lines)


def _missing(job: ShardedJob, workload: Workload | None, hardware: Hardware | None) -> tuple[str, ...]:
    lines = ["a record of the run, which a prediction could be held against: not made of FSDP2's traces"]
    if workload is None:
        lines.append(
            "sizes of gradients: give --model, or profile with record_shapes=True; without them there is no "
            "workload"
        )
    if hardware is None:
        lines.append(
            "curves of collectives: "
            + ("the job had one rank" if job.world_size == 1 else "no reduction of known size and time")
        )
    return tuple(lines)


def _details(job: ShardedJob) -> dict[str, Any]:
    """Figures for the summary: steps, and units as buckets."""
    return {
        "settings": {"policy": job.policy, **job.settings()},
        "steps": [
            {
                "number": step.number,
                "step_ns": step.end_ns - step.start_ns,
                "forward_ns": sharding.forward_ns,
                "backward_ns": sharding.backward_ns,
                "copy_in_ns": sharding.copy_in_ns,
                "copy_out_ns": sharding.copy_out_ns,
            }
            for step, sharding in zip(job.steps, job.shardings, strict=True)
        ],
        "buckets": [
            {
                "index": place,
                "num_elements": one.num_elements,
                "dtype": one.dtype,
                "num_bytes": size_of(one),
                "transfer_ns": [move.duration_ns for move in job.aligned.transfers if move.place == place],
            }
            for place, one in enumerate(job.steps[0].reductions)
        ],
        "matched_collectives": job.aligned.matched,
    }
