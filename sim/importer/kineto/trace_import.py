"""``import kineto``: what ranks did, as a workload, a hardware, a record, and sentences."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions
from sim.importer.kineto.layout import Layout, lay_out, size_of
from sim.importer.kineto.rank import SeenRank, read_rank
from sim.importer.kineto.several_ranks import (
    AlignedRanks,
    CommSlowdown,
    Transfer,
    align,
    alone_ns,
    find_comm_slowdown,
    group_size,
    number_alike,
    rank_rows,
)
from sim.importer.kineto.steps import SeenStep
from sim.importer.kineto.telling import Told
from sim.importer.quiet_steps import left_out, quiet_numbers
from sim.importer.sampled_curve import SHORTEST_OVER_RANKS, median_curve, scatter_by_size
from sim.metrics.intervals import intersection_length, union
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.devices import device_type
from sim.nouns.hardware import GLOO_CHANNELS, Curve, CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import Gradient, ReadyIncludes, Workload
from sim.systems.compile_cuts import AS_RECORDED
from sim.units import NS_PER_S, format_percent, median_ns

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


# ---- workload, hardware and record

_SENT: tuple[ReadyIncludes, ...] = ("copy_in", "launch", "interference")
_ALONE: tuple[ReadyIncludes, ...] = ("copy_in", "launch")


def make_workload(
    rank: SeenRank, steps: Sequence[SeenStep], layout: Layout, name: str, world_size: int | None
) -> Workload:
    """Medians over ``steps`` of one rank. They contain DDP's work in backward, as ``ready_includes`` says."""
    backward_ns = median_ns([step.backward_end_ns - step.backward_start_ns for step in steps])
    samples = [layout.ready_ns(step) for step in steps]
    ready = [min(median_ns(column), backward_ns) for column in zip(*samples, strict=True)]
    order: list[int] = []
    latest = 0
    for gradient in layout.gradients:  # hook order: the lane has them in it, to the nanosecond
        latest = max(latest, ready[gradient.index])
        ready[gradient.index] = latest
        order.append(gradient.index)
    reductions = [one for step in steps for one in step.reductions]
    sent = any(one.timed for one in reductions) or (bool(reductions) and not rank.on_gpu)
    return Workload(
        name=name,
        gradients=tuple(
            replace(gradient, ready_ns=ready[gradient.index], device=device_in(rank, gradient))
            for gradient in sorted(layout.gradients, key=lambda one: one.index)
        ),
        forward_ns=median_ns([step.backward_start_ns - step.start_ns for step in steps]),
        backward_ns=backward_ns,
        optimizer_ns=median_ns([step.end_ns - step.sync_end_ns for step in steps]),
        ready_order=tuple(order),
        ready_includes=_SENT if sent else _ALONE if reductions else (),
        samples=tuple(samples) if len(samples) > 1 else (),
        whole_buckets=layout.is_of_whole_buckets or None,
        extensions=AS_RECORDED if rank.is_compiled else {},
        provenance={
            **provenance(rank),
            **({} if world_size is None else {"world_size": world_size}),
            "made_from": f"{len(steps)} steps",
            "rank": rank.rank,
            "gradients": layout.told_by,
        },
    )


def device_in(rank: SeenRank, gradient: Gradient) -> str | None:
    """Where ``gradient`` was in the trace: a model that its sizes were taken from may have been elsewhere."""
    told = gradient.device
    where = "cuda" if rank.on_gpu else "cpu"
    return told if told is None or device_type(told) == where else where


def provenance(rank: SeenRank) -> dict[str, Any]:
    """Where a noun comes from."""
    return {
        "source": "bucketsim import kineto",
        "trace": rank.source,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": rank.device,
        "device_type": "cuda" if rank.on_gpu else "cpu",
        "host": rank.host,
        **rank.header,
    }


def make_hardware(
    aligned: AlignedRanks,
    steps: Sequence[SeenStep],
    layout: Layout,
    slowed: CommSlowdown | None,
    *,
    world_size: int,
    name: str,
) -> Hardware | None:
    """The all-reduces as they ran within the step; None where no kernel shows how long one takes.

    The shortest kernel of a collective over all ranks is its transfer, and the median over steps is taken. If
    ``slowed`` is given, a transfer beside backward counts as long as it would have taken alone. Where ranks
    are missing there are upper bounds: the median of those in which nobody waited, else the least over steps;
    and no size has a larger bound than a larger size.
    """
    by_size: dict[int, list[int]] = defaultdict(list)
    waitless: dict[int, list[int]] = defaultdict(list)
    slowdown = 1.0 if slowed is None else slowed.slowdown
    for one in aligned.transfers:
        if one.num_bytes:
            by_size[one.num_bytes].append(alone_ns(one, slowdown))
            if one.is_waitless:
                waitless[one.num_bytes].append(alone_ns(one, slowdown))
    if world_size == 1 or not by_size or not any(one.timed for step in steps for one in step.reductions):
        return None
    first = aligned.ranks[0]
    launches = _launches(aligned)
    seen = [rank.interference for rank in aligned.ranks if rank.interference is not None]
    interference = sorted(seen, key=lambda one: one.slowdown)[len(seen) // 2] if seen else None
    total = sum(gradient.on_wire for gradient in layout.gradients)
    spread: dict[str, Any] = {}
    if interference is not None:
        spread["compute_slowdown"] = _scatter(interference.kernels, interference.quartiles)
    if slowed is not None:
        spread["comm_slowdown"] = _scatter(slowed.beside, slowed.quartiles)
    spread["all_reduce"] = scatter_by_size(
        by_size, SHORTEST_OVER_RANKS if aligned.complete else "upper bound"
    )
    return Hardware(
        name=name,
        world_size=world_size,
        all_reduce=median_curve(by_size) if aligned.complete else upper_bounds(by_size, waitless),
        launch_cost_ns=median_ns(launches) if launches else 0,
        copy_in_bytes_per_s=rate_of(total, [step.copy_in_ns for step in steps]),
        copy_out_bytes_per_s=rate_of(total, [step.copy_out_ns for step in steps]),
        compute_slowdown=1.0 if interference is None else round(interference.slowdown, 4),
        comm_slowdown=round(slowdown, 4),
        spread=spread,
        provenance={
            **provenance(first),
            "curve": "within the training step, by last arriver"
            if aligned.complete
            else "ranks are missing: an upper bound",
            "ranks": [rank.rank for rank in aligned.ranks],
        },
    )


def _scatter(count: int, quartiles: tuple[float, float, float]) -> dict[str, Any]:
    low, middle, high = quartiles
    return {"count": count, "p25": low, "median": middle, "p75": high}


def _launches(aligned: AlignedRanks) -> list[int]:
    """ns from a bucket's being ready to its collective's start on a rank, if no other ran in between."""
    steps = {one.step for one in aligned.transfers}
    costs = []
    for step in (step for rank in aligned.ranks for step in rank.steps if step.number in steps):
        for one in step.reductions:
            ready = step.backward_start_ns if one.ready_ns is None else one.ready_ns
            behind = any(
                other is not one and other.start_ns < one.start_ns and other.end_ns > ready
                for other in step.collectives
            )
            if not behind:
                costs.append(max(0, one.start_ns - ready))
    return costs


def upper_bounds(by_size: Mapping[int, Sequence[int]], waitless: Mapping[int, Sequence[int]]) -> Curve:
    """An upper bound in ns for each size, for traces in which ranks are missing."""
    points: list[CurvePoint] = []
    least: int | None = None
    for size, times in sorted(by_size.items(), reverse=True):
        bound = median_ns(waitless[size]) if waitless.get(size) else min(times)
        least = bound if least is None else min(least, bound)
        points.append(CurvePoint(num_bytes=size, duration_ns=least))
    return tuple(reversed(points))


def rate_of(num_bytes: int, times_ns: Sequence[int]) -> float | None:
    """Bytes a second; None where no copies were seen."""
    middle = median(times_ns)
    return num_bytes * NS_PER_S / middle if middle > 0 and num_bytes else None


def make_measurement(
    aligned: AlignedRanks,
    place: int,
    steps: Sequence[SeenStep],
    layout: Layout,
    workload: Workload,
    *,
    world_size: int,
    dropped: int,
) -> Measurement:
    """What the cluster did, as a candidate of a record; buckets as the ``place``-th rank's clock has them."""
    rank = aligned.ranks[place]
    by_step: dict[int, list[Transfer]] = defaultdict(list)
    for one in aligned.transfers:
        by_step[one.step].append(one)
    asked = Assignment(
        policy="explicit" if sends_from_hooks(steps[0], layout) else "after-backward",
        bucket_indices=layout.buckets,
        bucket_bytes=bucket_bytes(workload, layout.buckets),
        made_for=made_for(workload, world_size),
        provenance=provenance(rank),
    )
    iterations = tuple(
        _iteration(step, by_step[step.number], aligned.offsets_ns[step.number][place]) for step in steps
    )
    return Measurement(
        name="as run",
        role="candidate",
        mode="trace",
        backend=rank.backend or "unknown",
        world_size=world_size,
        asked=asked,
        observed=layout.buckets,
        iterations=iterations,
        traced=iterations,
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
        dropped_warmup=dropped,
        environment={"place": rank.device, "traced_ranks": len(aligned.ranks)},
        provenance=provenance(rank),
    )


def sends_from_hooks(step: SeenStep, layout: Layout) -> bool:
    """Whether buckets were sent as they became ready, which DDP does; else all after the last gradient.

    All after the last is DDP's own way too where the first bucket holds the last gradient (A3.5).
    """
    if len(step.reductions) < 2 or step.reductions[0].launched_ns <= step.gradients[-1].hooked_at_ns:
        return True
    return layout.gradients[-1].index in layout.buckets[0]


def _iteration(step: SeenStep, transfers: Sequence[Transfer], offset_ns: int) -> MeasuredIteration:
    begin = step.backward_start_ns
    buckets = []
    for one, seen in zip(transfers, step.reductions, strict=True):
        ready = (seen.ready_ns or begin) - begin
        buckets.append(
            MeasuredBucket(
                index=one.place,
                ready_ns=max(0, ready),
                launch_ns=max(0, ready, seen.launched_ns - begin),
                start_ns=max(0, one.start_ns + offset_ns - begin) if seen.timed else None,
                end_ns=max(0, one.end_ns + offset_ns - begin) if seen.timed else None,
            )
        )
    return MeasuredIteration(
        step_ns=step.end_ns - step.start_ns,
        backward_end_ns=step.backward_end_ns - begin,
        sync_end_ns=step.sync_end_ns - begin,
        buckets=tuple(buckets),
    )


def regular_steps(rank: SeenRank) -> tuple[tuple[SeenStep, ...], tuple[str, ...]]:
    """The steps that did what most did, and a sentence for each that did not."""

    def signature(step: SeenStep) -> tuple[Any, ...]:
        return (
            len(step.gradients),
            step.micro_batches,
            tuple((one.num_elements, one.dtype) for one in step.reductions),
        )

    often = Counter(signature(step) for step in rank.steps)
    # Of equally many the fuller: a step that the profiler cut has less in it.
    usual = max(often, key=lambda one: (often[one], one[0], len(one[2])))
    kept = tuple(step for step in rank.steps if signature(step) == usual)
    dropped = tuple(
        f"step {step.number}: {len(step.gradients)} gradients in {len(step.reductions)} all-reduces, where "
        f"{len(kept)} others have {usual[0]} in {len(usual[2])}"
        for step in rank.steps
        if signature(step) != usual
    )
    return kept, dropped
