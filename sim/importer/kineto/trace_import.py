"""``import kineto``: what ranks did, as a workload, a hardware, a record, and sentences."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions, Note, Notes, count_of, few
from sim.importer.kineto.layout import Layout, lay_out, size_of
from sim.importer.kineto.rank import SeenRank, read_rank
from sim.importer.kineto.several_ranks import AlignedRanks, align, group_size, rank_rows
from sim.importer.kineto.slowdowns import FEWEST, Slowdown, Transfer, alone_ns, find_comm_slowdown
from sim.importer.kineto.steps import SeenStep
from sim.importer.samples import (
    SHORTEST_OVER_RANKS,
    left_out,
    median_curve,
    quiet_numbers,
    scatter_by_size,
)
from sim.metrics.intervals import intersection_length, union
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.devices import device_type
from sim.nouns.hardware import GLOO_CHANNELS, Curve, CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import Gradient, ReadyIncludes, Workload
from sim.systems.compile_cuts import AS_RECORDED
from sim.units import NS_PER_MS, NS_PER_S, format_ms, format_percent, format_size, median_ns

_TELLING = 0.1  # of what a step takes longer


@dataclass(frozen=True, slots=True)
class Seen:
    """What the traces of a job show: its ranks on one clock, and the steps of ``rank``, whose backward is the
    longest, that the import is made of. ``slowed``: what backward does to all-reduces; ``notes``: what was
    left out so far. Without two quiet steps alike there are none, and ``aligned`` is None.
    """

    name: str
    ranks: Sequence[SeenRank]
    world_size: int | None
    notes: list[Note]
    rank: SeenRank
    aligned: AlignedRanks | None = None
    steps: tuple[SeenStep, ...] = ()
    layout: Layout | None = None
    slowed: Slowdown | None = None


def read_kineto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Traces of one job, one file a rank.

    Raises:
        InputError: a file that is no trace, lacks what is needed, or belongs to another job.
        NotModelledError: FSDP, tensor or pipeline parallelism, inference.
    """
    return import_of(see(paths, options))


def import_of(seen: Seen) -> Imported:
    """What is made of what the traces show."""
    if seen.aligned is None:
        return Imported(format="kineto", name=seen.name, notes=tuple(seen.notes))
    workload = hardware = measurement = None
    if seen.layout is not None:
        workload = make_workload(seen, seen.layout)
        hardware = make_hardware(seen, seen.aligned, seen.layout)
    if hardware is not None and workload is not None and seen.layout is not None and seen.layout.buckets:
        measurement = make_measurement(seen, seen.aligned, seen.layout, workload, hardware.world_size)
    return Imported(
        format="kineto",
        name=seen.name,
        workload=workload,
        hardware=() if hardware is None else (hardware,),
        measurements=() if measurement is None else (measurement,),
        ranks=rank_rows(seen.aligned),
        notes=(*seen.notes, *_notes(seen, seen.aligned, workload, hardware, measurement)),
    )


def see(paths: Sequence[Path], options: ImportOptions) -> Seen:
    """What the traces show, before anything is made of it. Raises as ``read_kineto``."""
    ranks = _one_job([read_rank(path, options.progress) for path in paths])
    regular = [regular_steps(rank) for rank in ranks]
    everywhere = set.intersection(*({step.number for step in kept} for kept, _ in regular))
    lengths: dict[int, int] = {}
    for step in (step for kept, _ in regular for step in kept if step.number in everywhere):
        lengths[step.number] = max(lengths.get(step.number, 0), step.end_ns - step.start_ns)
    quiet = quiet_numbers(lengths, on_gpu=ranks[0].on_gpu)
    said = left_out(lengths, quiet, _filling(ranks, lengths, quiet))
    notes = [Note("doubtful", said)] if said else []
    for one, (_, sentences) in zip(ranks, regular, strict=True):
        notes += [Note("dropped", f"{one.source}: {what}") for what in (*one.dropped, *sentences)]
    world_size = _world_size(ranks, options)
    if lengths and not quiet:
        notes.append(
            Note("missing", "a workload: no two steps take about as long; profile more steps", "workload")
        )
        name = options.name or Path(ranks[0].source).name.split(".")[0]
        return Seen(name, ranks, world_size, notes, ranks[0])
    sizes = {
        step.number: [size_of(one) for one in step.reductions]
        for step in regular[0][0]
        if step.number in quiet
    }
    aligned = align(ranks, sizes, world_size)
    common = {one.step for one in aligned.transfers} or set(sizes)

    def backward_ns(place: int) -> int:
        kept = regular[place][0]
        used = [step for step in kept if step.number in quiet] or kept
        return median_ns([step.backward_end_ns - step.backward_start_ns for step in used])

    place = max(range(len(ranks)), key=backward_ns)
    rank, steps = ranks[place], tuple(step for step in regular[place][0] if step.number in common)
    return Seen(
        name=options.name or Path(rank.source).name.split(".")[0],
        ranks=ranks,
        world_size=world_size,
        notes=notes,
        rank=rank,
        aligned=aligned,
        steps=steps,
        layout=lay_out(steps[0], options.model, rank.source),
        # gloo's threads run on the CPU: how backward slows them is in their durations already.
        slowed=find_comm_slowdown(aligned.transfers, complete=aligned.complete) if rank.on_gpu else None,
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
    if not all(one.is_marked for one in ranks) and len({one.steps[-1].number for one in ranks}) > 1:
        raise InputError(
            f"{ranks[0].source}: the profiler did not number steps, and the traces of ranks have several "
            f"numbers of them: nothing tells which belong together; profile with a schedule and prof.step()"
        )
    return sorted(ranks, key=lambda one: one.rank or 0)


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


def make_workload(seen: Seen, layout: Layout) -> Workload:
    """Medians over the steps of one rank. They contain DDP's work in backward, as ``ready_includes`` says."""
    rank, steps = seen.rank, seen.steps
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
        name=seen.name,
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
            **({} if seen.world_size is None else {"world_size": seen.world_size}),
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
        "device": rank.device,
        "device_type": "cuda" if rank.on_gpu else "cpu",
        "host": rank.host,
        **{
            key: text
            for key, text in (("backend", rank.backend), ("nccl_version", rank.nccl_version))
            if text
        },
    }


def make_hardware(seen: Seen, aligned: AlignedRanks, layout: Layout) -> Hardware | None:
    """The all-reduces as they ran within the step; None where no kernel shows how long one takes.

    The shortest kernel of a collective over all ranks is its transfer, and the median over steps is taken.
    If all-reduces are slowed by backward, a transfer beside it counts as long as it would have taken alone.
    Where ranks are missing there are upper bounds: the median of those in which nobody waited, else the least
    over steps; and no size has a larger bound than a larger size.
    """
    steps, slowed = seen.steps, seen.slowed
    by_size: dict[int, list[int]] = defaultdict(list)
    waitless: dict[int, list[int]] = defaultdict(list)
    slowdown = 1.0 if slowed is None else slowed.slowdown
    for one in aligned.transfers:
        if one.num_bytes:
            by_size[one.num_bytes].append(alone_ns(one, slowdown))
            if one.is_waitless:
                waitless[one.num_bytes].append(alone_ns(one, slowdown))
    is_timed = any(one.timed for step in steps for one in step.reductions)
    if seen.world_size is None or seen.world_size == 1 or not by_size or not is_timed:
        return None
    first = aligned.ranks[0]
    launches = _launches(aligned)
    beside = [rank.interference for rank in aligned.ranks if rank.interference is not None]
    interference = sorted(beside, key=lambda one: one.slowdown)[len(beside) // 2] if beside else None
    total = sum(gradient.on_wire for gradient in layout.gradients)
    spread: dict[str, Any] = {}
    if interference is not None:
        spread["compute_slowdown"] = _scatter(interference)
    if slowed is not None:
        spread["comm_slowdown"] = _scatter(slowed)
    spread["all_reduce"] = scatter_by_size(
        by_size, SHORTEST_OVER_RANKS if aligned.complete else "upper bound"
    )
    return Hardware(
        name=seen.name,
        world_size=seen.world_size,
        all_reduce=median_curve(by_size) if aligned.complete else upper_bounds(by_size, waitless),
        launch_cost_ns=median_ns(launches) if launches else 0,
        copy_in_bytes_per_s=rate_of(total, [step.copy_in_ns for step in steps]),
        copy_out_bytes_per_s=rate_of(total, [step.copy_out_ns for step in steps]),
        compute_slowdown=1.0 if interference is None else round(interference.slowdown, 4),
        comm_slowdown=round(slowdown, 4),
        comm_channels=GLOO_CHANNELS if seen.rank.backend == "gloo" else 1,
        spread=spread,
        provenance={
            **provenance(first),
            "curve": "within the training step, by last arriver"
            if aligned.complete
            else "ranks are missing: an upper bound",
            "ranks": [rank.rank for rank in aligned.ranks],
        },
    )


def _scatter(seen: Slowdown) -> dict[str, Any]:
    low, middle, high = seen.quartiles
    return {"count": seen.count, "p25": low, "median": middle, "p75": high}


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
    seen: Seen, aligned: AlignedRanks, layout: Layout, workload: Workload, world_size: int
) -> Measurement:
    """What the cluster did, as a candidate of a record; buckets as the clock of the rank shown has them."""
    rank, steps, place = seen.rank, seen.steps, aligned.ranks.index(seen.rank)
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
        dropped_warmup=len(rank.steps) - len(steps),
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


# ---- what is said of it


def behind_others_ns(step: SeenStep) -> list[int]:
    """By reduction: how long it was ready and launched while collectives that are not modelled ran."""
    others = [(one.start_ns, one.end_ns) for one in step.collectives if not one.is_ddps]
    return [
        intersection_length(others, [(max(one.ready_ns or 0, one.launched_ns), one.start_ns)])
        for one in step.reductions
    ]


def _notes(
    seen: Seen,
    aligned: AlignedRanks,
    workload: Workload | None,
    hardware: Hardware | None,
    measurement: Measurement | None,
) -> list[Note]:
    rank, steps, layout, reductions = seen.rank, seen.steps, seen.layout, seen.steps[0].reductions
    notes = Notes()
    found, assumed = partial(notes.add, "found"), partial(notes.add, "assumed")
    ranks = len(aligned.ranks)
    of = f" of {seen.world_size}" if seen.world_size else ""
    whose = f"rank {rank.rank}: " if ranks > 1 else ""
    found(
        f"{count_of(ranks, 'rank')}{of}, {rank.backend or 'backend unknown'}, on {rank.device}; "
        f"{count_of(len(steps), 'step')} of {_middle(steps, 'start_ns', 'end_ns')}"
    )
    after = f", gradients synchronised after {_middle(steps, 'backward_start_ns', 'sync_end_ns')}"
    backward = f"{whose}backward {_middle(steps, 'backward_start_ns', 'backward_end_ns')}"
    found(backward + (after if reductions else ""))
    job = rank.world_size
    if seen.world_size and job and job != seen.world_size:
        found(f"gradients are reduced over {seen.world_size} of the job's {job} ranks")
    if workload is not None:
        found(f"{len(workload.gradients)} gradients, {format_size(workload.total_bytes)}")
    if reductions:
        sizes = ["?" if (size := size_of(one)) is None else format_size(size) for one in reductions]
        found(f"{len(sizes)} all-reduces of gradients a step: {few(sizes)}")
    if rank.overlap is not None:
        of_all = f"{whose}computation overlaps {format_percent(rank.overlap)} of all communication kernels"
        part = rank.all_reduce_overlap
        found(of_all + ("" if part is None else f", {format_percent(part)} of the all-reduces"))
    if (beside := rank.interference) is not None:
        low, _, high = beside.quartiles
        found(
            f"computation takes {beside.slowdown:.2f} times as long beside a collective ({beside.count} "
            f"kernels that ran alone in another step; quartiles {low:.2f} and {high:.2f})"
        )
    if (slowed := seen.slowed) is not None:
        low, _, high = slowed.quartiles
        found(
            f"all-reduces take {slowed.slowdown:.2f} times as long beside backward as after it "
            f"({slowed.count} beside it, {slowed.after} after it of {count_of(slowed.sizes, 'size')}; "
            f"quartiles {low:.2f} and {high:.2f}): the curve is that of nothing beside"
        )
    if waited := _waited_ns(seen, aligned, hardware):
        whom = (
            ", waiting for ranks that came later"
            if aligned.complete
            else " as they are taken: they waited for ranks that are missing, or transfers vary"
        )
        found(
            f"{whose}all-reduces lasted {format_ms(waited)} a step longer than their transfers{whom}; a "
            f"prediction of these steps misses that"
        )
    if behind := median_ns([sum(behind_others_ns(step)) for step in steps]):
        found(
            f"all-reduces waited {format_ms(behind)} a step behind other collectives: a prediction of these "
            "steps misses that"
        )
    others = [[one for one in step.collectives if one.role == "other"] for step in steps]
    if any(others):
        kinds = sorted({one.kind for each in others for one in each})
        took = _over_steps([sum(one.duration_ns for one in each) for each in others])
        found(
            f"{_span(sorted(map(len, others)))} other collectives a step ({', '.join(kinds)}), {took}: part "
            "of the times, not modelled"
        )
    batches, reduced = steps[0].micro_batches, sorted(step.synchronised_batches for step in steps)
    if batches > 1:
        which = "each of them reduced" if {*reduced} == {batches} else f"{_span(reduced)} of them reduced"
        found(
            f"{batches} micro-batches a step, {which}; all before the last one's backward, with its "
            "all-reduces, is in forward_ns"
        )
    if rank.unseen_calls:
        found(
            f"{count_of(rank.unseen_calls, 'call')} of collectives without a known communication kernel: "
            "the trace's communication is incomplete"
        )
    if layout is not None:
        assumed(layout.told_by)
    curve = hardware.all_reduce if hardware is not None and aligned.complete else ()
    for line in contradictions(rank.steps, steps, rank.interference, slowed, curve):
        assumed(line)
    for line in dict.fromkeys(doubt for one in aligned.ranks for doubt in one.doubts):
        assumed(f"WARNING: {line}")
    if rank.calls_alone:
        assumed(
            f"{count_of(rank.calls_alone, 'AccumulateGrad')} shown by the engine's call alone (a sampled "
            "trace leaves out what is inside): its hooks are taken to begin with the call"
        )
    if any(one.dtype is None for one in reductions):
        assumed("the trace names no dtype for all-reduces; float32 is assumed")
    if workload is not None and workload.ready_includes:
        assumed(
            f"the times contain {', '.join(workload.ready_includes)} as they were with these buckets; a "
            "prediction for others keeps them"
        )
    if ranks > 1:
        assumed(f"the workload is rank {rank.rank}'s, whose backward is the longest")
        if not all(one.is_marked for one in aligned.ranks):
            assumed(
                "the profiler did not number steps (prof.step() with a schedule does): those that come "
                "equally late in each rank's trace are taken for one, and clocks are known up to whole steps"
            )
    if workload is None:
        text = (
            "sizes of gradients: the trace has neither Input Dims nor In msg nelems; give --model, or "
            "profile with record_shapes=True; without them there is no workload"
        )
        notes.add("missing", text, "workload")
    if hardware is None:
        notes.add("missing", f"an all-reduce curve: {_why_no_curve(seen)}", "curve")
    else:
        _note_curve(seen, aligned, hardware, assumed)
    asked = None if measurement is None else measurement.asked
    if asked is not None and asked.policy != "explicit":
        assumed("all-reduces were sent after the last gradient, one by one: no DDP")
    if hardware is not None and hardware.copy_out_bytes_per_s is None:
        assumed("no copies out of buckets were seen: gradient_as_bucket_view=True, or no DDP")
    if layout is not None and not layout.buckets:
        notes.add("missing", "buckets: no all-reduce of gradients in the trace")
    return notes


def _note_curve(
    seen: Seen, aligned: AlignedRanks, hardware: Hardware, assumed: Callable[[str], None]
) -> None:
    """What is assumed of the all-reduces as they ran."""
    if not aligned.complete:
        assumed(
            f"WARNING: {len(aligned.ranks)} of {seen.world_size} ranks: a kernel lasts from its own "
            "rank's arrival, not the last one's; the least over steps is taken (the median of those that "
            "were ready longer than they then took), an upper bound of the transfer, also below the "
            "smallest size; give the traces of all ranks"
        )
    if seen.rank.on_gpu and seen.slowed is None:
        clear = "" if aligned.complete else ", without a wait for ranks that are missing"
        assumed(
            f"what computation beside them costs all-reduces is not known (no size ran {FEWEST} times "
            f"beside backward and after it{clear}): they are taken to last as long as in these steps"
        )
    if not seen.rank.on_gpu:
        assumed(
            "an all-reduce lasts from when a thread of gloo takes it to its end on that rank; gloo runs "
            f"{GLOO_CHANNELS} at once, and the curve is as they ran beside one another"
        )
    if len(hardware.all_reduce) < 3:
        assumed(
            f"the curve has {count_of(len(hardware.all_reduce), 'size')}; others are drawn from them (give "
            "an nccl-tests log as well: bucketsim import auto)"
        )


def _waited_ns(seen: Seen, aligned: AlignedRanks, hardware: Hardware | None) -> int:
    """ns a step by which the rank's all-reduces lasted longer than their transfers are taken to last."""
    if hardware is None or not seen.rank.on_gpu:
        return 0
    place = aligned.ranks.index(seen.rank)
    by_step: dict[int, int] = defaultdict(int)
    for one in aligned.transfers:
        if aligned.complete:
            by_step[one.step] += one.waits_ns[place]
        elif one.num_bytes:
            by_step[one.step] += one.duration_ns - service_ns(hardware.all_reduce, one.num_bytes)
    return max(0, median_ns(list(by_step.values()))) if by_step else 0


def _why_no_curve(seen: Seen) -> str:
    reductions = seen.steps[0].reductions
    if seen.world_size == 1:
        return "the job had one rank"
    if seen.world_size is None:
        return "the world size is not in the trace; give --world-size"
    if reductions and not any(one.timed for one in reductions):
        return "the trace shows when all-reduces were sent, not when they ran"
    return "no all-reduce of gradients of known size"


def _span(ordered: Sequence[int]) -> str:
    """``7``, or ``2 to 3`` where they differ."""
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def _over_steps(times_ns: Sequence[int]) -> str:
    """A time of each step as one: their median, and its range where that is a tenth of the median or more."""
    middle, low, high = median_ns(times_ns), min(times_ns), max(times_ns)
    if 10 * (high - low) < middle:
        return format_ms(middle)
    return (
        f"{format_ms(middle)} (median of {len(times_ns)} steps: {low / NS_PER_MS:.2f} to {format_ms(high)})"
    )


def _middle(steps: Sequence[SeenStep], since: str, until: str) -> str:
    return format_ms(median_ns([getattr(step, until) - getattr(step, since) for step in steps]))


# ---- what cannot be true together

# What ranks, clocks and single steps differ by in sound traces.
TOLERANCE = 0.05
_CLOCKS_NS = 10_000


def contradictions(
    every: Sequence[SeenStep],
    used: Sequence[SeenStep],
    interference: Slowdown | None,
    slowed: Slowdown | None,
    curve: Curve,
) -> list[str]:
    """Sentences on what cannot be true of one rank's import; none if all can be.

    Args:
        every: all its whole steps.
        used: those that the workload is made of.
        interference: what collectives do to kernels.
        slowed: what backward does to collectives.
        curve: the all-reduce of all ranks; empty where waits are in it.
    """
    said = [_of_plain(every, used)]
    if interference is not None and interference.ratio < 1 - TOLERANCE:
        said.append(
            f"computation took {interference.ratio:.2f} times as long beside a collective as the same "
            f"kernels alone in another step: the device's clock or its load changed between steps; "
            f"compute_slowdown is taken as 1"
        )
    if slowed is not None and slowed.ratio < 1 - TOLERANCE:
        said.append(
            f"all-reduces took {slowed.ratio:.2f} times as long beside backward as after it: what ran after "
            f"it was held up by something else; comm_slowdown is taken as 1"
        )
    drops = [(small.duration_ns - large.duration_ns, small, large) for small, large in pairwise(curve)]
    for drop, small, large in sorted(drops, key=lambda one: -one[0])[:1]:
        if drop > max(_CLOCKS_NS, TOLERANCE * small.duration_ns):
            said.append(
                f"{format_size(small.num_bytes)} took {format_ms(small.duration_ns)} and "
                f"{format_size(large.num_bytes)} {format_ms(large.duration_ns)}: one of them is no transfer "
                f"alone; give an nccl-tests log as well (bucketsim import auto)"
            )
    return [f"WARNING: cannot be: {sentence}" for sentence in said if sentence]


def _of_plain(every: Sequence[SeenStep], used: Sequence[SeenStep]) -> str:
    """A sentence, if backwards without communication took longer than those beside it; otherwise empty."""
    gradients = len(used[0].gradients)
    plain = [time for step in every for time in step.plain_busy_ns]
    plain += [
        step.busy_ns
        for step in every
        if not step.reductions and step.micro_batches == 1 and len(step.gradients) == gradients
    ]
    if not plain or not used[0].reductions:
        return ""
    beside = median_ns([step.busy_ns for step in used])
    if median_ns(plain) <= (1 + TOLERANCE) * beside:
        return ""
    return (
        f"backward computed for {format_ms(median_ns(plain))} where nothing was reduced "
        f"({count_of(len(plain), 'backward')}) and {format_ms(beside)} beside all-reduces "
        f"({count_of(len(used), 'backward')}): the former were slowed by something else"
    )
