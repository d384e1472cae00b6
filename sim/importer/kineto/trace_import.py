"""``import kineto``: what ranks did, as a workload, a hardware, a record, and sentences."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sim.errors import InputError
from sim.importer.kineto.assembling import make_hardware, make_measurement, make_workload, regular_steps
from sim.importer.kineto.layout import lay_out, size_of
from sim.importer.kineto.rank_trace import read_rank
from sim.importer.kineto.seen import SeenRank, SeenStep
from sim.importer.kineto.several_ranks import align, group_size, number_alike, rank_rows
from sim.importer.kineto.slowed import find_comm_slowdown
from sim.importer.kineto.telling import Told
from sim.importer.quiet_steps import left_out, quiet_numbers
from sim.metrics.intervals import intersection_length, union
from sim.nouns.hardware import GLOO_CHANNELS
from sim.nouns.imported import Imported, ImportOptions
from sim.units import format_percent, median_ns

_TELLING = 0.1  # of what a step takes longer


def read_kineto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Traces of one job, one file a rank.

    Raises:
        InputError: a file that is no trace, lacks what is needed, or belongs to another job.
        NotModelledError: FSDP, tensor or pipeline parallelism, inference.
    """
    ranks, still_open = number_alike(_one_job([read_rank(path, options.progress) for path in paths]))
    regular = [regular_steps(rank) for rank in ranks]
    everywhere = set.intersection(*({step.number for step in kept} for kept, _ in regular))
    lengths: dict[int, int] = {}
    for step in (step for kept, _ in regular for step in kept if step.number in everywhere):
        lengths[step.number] = max(lengths.get(step.number, 0), step.end_ns - step.start_ns)
    quiet = quiet_numbers(lengths, on_gpu=ranks[0].on_gpu)
    said = left_out(lengths, quiet, _filling(ranks, lengths, quiet))
    doubtful = (said,) if said else ()
    if lengths and not quiet:
        return Imported(
            format="kineto",
            name=options.name or Path(ranks[0].source).name.split(".")[0],
            dropped=tuple(f"{one.source}: {what}" for one in ranks for what in one.dropped),
            missing=("a workload: no two steps take about as long; profile more steps",),
            doubtful=doubtful,
        )
    everywhere = quiet
    sizes = {
        step.number: [size_of(one) for one in step.reductions]
        for step in regular[0][0]
        if step.number in everywhere
    }
    world_size = _world_size(ranks, options)
    aligned = align(ranks, sizes, world_size)
    place = max(range(len(ranks)), key=lambda number: _backward_ns(regular[number][0], everywhere))
    rank = ranks[place]
    dropped = tuple(
        f"{one.source}: {what}"
        for one, (_, sentences) in zip(ranks, regular, strict=True)
        for what in (*one.dropped, *sentences)
    )
    common = {one.step for one in aligned.transfers} or set(sizes)
    steps = tuple(step for step in regular[place][0] if step.number in common)
    layout = lay_out(steps[0], options.model, rank.source)
    # gloo's threads run on the CPU: how backward slows them is in their durations already.
    slowed = find_comm_slowdown(aligned.transfers, complete=aligned.complete) if rank.on_gpu else None
    name = options.name or Path(rank.source).name.split(".")[0]
    workload = hardware = measurement = None
    if layout is not None:
        workload = make_workload(rank, steps, layout, name, world_size)
        if world_size is not None:
            hardware = make_hardware(aligned, steps, layout, slowed, world_size=world_size, name=name)
        if hardware is not None and rank.backend == "gloo":
            hardware = replace(hardware, comm_channels=GLOO_CHANNELS)
        if layout.buckets and hardware is not None:
            measurement = make_measurement(
                aligned,
                place,
                steps,
                layout,
                workload,
                world_size=hardware.world_size,
                dropped=len(rank.steps) - len(steps),
            )
    told = Told(aligned, rank, steps, layout, world_size, workload, hardware, measurement, slowed)
    return Imported(
        format="kineto",
        name=name,
        workload=workload,
        hardware=() if hardware is None else (hardware,),
        measurements=() if measurement is None else (measurement,),
        ranks=rank_rows(aligned),
        found=told.found(),
        assumed=(*told.assumed(), *([still_open] if still_open else ())),
        missing=told.missing(),
        dropped=dropped,
        doubtful=doubtful,
        details=told.details(),
    )


def _one_job(ranks: Sequence[SeenRank]) -> list[SeenRank]:
    """The ranks in order. Raises ``InputError`` where two files are of one rank, or of several jobs."""
    by_rank: dict[int, SeenRank] = {}
    for one in ranks:
        if one.rank is None:
            if len(ranks) > 1:
                raise InputError(
                    f"{one.source}: distributedInfo: does not say which rank it is; give one such file alone"
                )
            continue
        if one.rank in by_rank:
            raise InputError(
                f"{one.source}: distributedInfo.rank: {one.rank}, as in {by_rank[one.rank].source}; give one "
                f"file of each rank"
            )
        by_rank[one.rank] = one
        if one.world_size != ranks[0].world_size:
            raise InputError(
                f"{one.source}: distributedInfo.world_size: {one.world_size}, in {ranks[0].source} "
                f"{ranks[0].world_size}; give the traces of one job"
            )
    return sorted(ranks, key=lambda one: one.rank or 0)


def _backward_ns(steps: Sequence[SeenStep], numbers: set[int]) -> int:
    used = [step for step in steps if step.number in numbers] or steps
    return median_ns([step.backward_end_ns - step.backward_start_ns for step in used])


def _world_size(ranks: Sequence[SeenRank], options: ImportOptions) -> int | None:
    """How many ranks reduce gradients together: those of their process group, not of the whole job."""
    told = group_size(ranks)
    if told is not None and options.world_size is not None and told != options.world_size:
        raise InputError(
            f"{ranks[0].source}: gradients are reduced over {told} ranks, but --world-size says "
            f"{options.world_size}; leave it out"
        )
    world_size = told or options.world_size
    if world_size is not None and len(ranks) > world_size:
        raise InputError(
            f"{ranks[0].source}: gradients are reduced over {world_size} ranks, and there are {len(ranks)} "
            f"traces; give those of one process group"
        )
    return world_size


def _filling(ranks: Sequence[SeenRank], lengths_ns: Mapping[int, int], quiet: Collection[int]) -> str:
    """The call of the runtime that takes most of what loud steps take longer than quiet ones, if any are."""
    loud = [number for number in lengths_ns if number not in quiet]
    if not loud:
        return ""
    base = median_ns([lengths_ns[number] for number in quiet]) if quiet else min(lengths_ns.values())
    usual = quiet or [min(lengths_ns, key=lengths_ns.__getitem__)]
    longer = sum(max(0, lengths_ns[number] - base) for number in loud)
    best, name = 0.0, ""
    for rank in ranks:
        spans = {step.number: [(step.start_ns, step.end_ns)] for step in rank.steps}
        for call in sorted({one for _, _, one in rank.long_calls}):
            busy = union((start, end) for start, end, one in rank.long_calls if one == call)
            inside = {number: intersection_length(busy, spans[number]) for number in lengths_ns}
            plain = median_ns([inside[number] for number in usual])
            share = sum(max(0, inside[number] - plain) for number in loud) / longer if longer else 0.0
            if share > best:
                best, name = share, call
    if best < _TELLING:
        return "nothing that the trace names"
    return f"the host in {name} for {format_percent(min(best, 1), 0)} of what they take longer"
