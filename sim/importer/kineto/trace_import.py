"""``import kineto``: what ranks did, as a workload, a hardware, a record, and sentences."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from sim.errors import InputError
from sim.importer.imported import Imported, ImportOptions, Kind, Note, count_of, few
from sim.importer.kineto.buckets import Layout, lay_out
from sim.importer.kineto.events import NODE
from sim.importer.kineto.ranks import (
    FEWEST,
    Clocks,
    Rank,
    Slowdown,
    Transfer,
    align,
    find_comm_slowdown,
    rank_rows,
    read_rank,
)
from sim.importer.kineto.steps import Step
from sim.importer.samples import (
    SHORTEST_OVER_RANKS,
    left_out,
    median_curve,
    quiet_numbers,
    scatter_by_size,
)
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.devices import device_type
from sim.nouns.hardware import GLOO_CHANNELS, CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import ReadyIncludes, Workload
from sim.systems.compile_cuts import AS_RECORDED
from sim.units import NS_PER_S, format_ms, format_percent, format_size, median_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the traces of a job show: its ranks on one clock, and the place of the one whose backward is the
    longest, of whose steps the import is made. ``complete``: no rank of the group is missing. ``slowed``:
    what backward does to all-reduces; ``notes``: what was left out so far.
    """

    name: str
    ranks: Sequence[Rank]
    world_size: int | None
    complete: bool
    place: int
    clocks: Clocks
    layout: Layout | None
    slowed: Slowdown | None
    notes: Sequence[Note]

    @property
    def rank(self) -> Rank:
        """The rank that the import is made of."""
        return self.ranks[self.place]

    @property
    def steps(self) -> Sequence[Step]:
        """Its steps."""
        return self.clocks.steps[self.place]


def read_kineto(paths: Sequence[Path], options: ImportOptions) -> Imported:
    """Traces of one job, one file a rank.

    Raises:
        InputError: a file that is no trace, lacks what is needed, or belongs to another job.
        NotModelledError: sharded, tensor or pipeline parallel training, inference.
    """
    return import_of(see(paths, options))


def import_of(job: Job) -> Imported:
    """What is made of what the traces show."""
    workload = hardware = measurement = None
    if job.layout is not None:
        workload = _workload(job, job.layout)
        hardware = _hardware(job, job.layout)
        if hardware is not None and job.layout.buckets:
            measurement = _measurement(job, job.layout, workload, hardware.world_size)
    return Imported(
        format="kineto",
        name=job.name,
        workload=workload,
        hardware=() if hardware is None else (hardware,),
        measurements=() if measurement is None else (measurement,),
        ranks=rank_rows(job.ranks, job.clocks, complete=job.complete),
        notes=(*job.notes, *_notes(job, workload, hardware, measurement)),
    )


def see(paths: Sequence[Path], options: ImportOptions) -> Job:
    """What the traces show, before anything is made of it. Raises as ``read_kineto``."""
    ranks = sorted((read_rank(path, options.progress) for path in paths), key=lambda one: one.trace.rank or 0)
    world_size, source, notes = _world_size(ranks, options), ranks[0].trace.source, list[Note]()
    regular = [_regular_steps(rank, notes) for rank in ranks]
    lengths: dict[int, int] = {}
    for number in set.intersection(*({step.number for step in kept} for kept in regular)):
        same = [step for kept in regular for step in kept if step.number == number]
        lengths[number] = max(step.end_ns - step.start_ns for step in same)
    quiet = quiet_numbers(lengths, on_gpu=ranks[0].on_gpu)
    if lengths and not quiet:
        raise InputError(f"{source}: no two steps in it take about as long; profile more steps")
    if said := left_out(lengths, quiet):
        notes.append(Note("doubtful", said))
    clocks = align(ranks, [[step for step in kept if step.number in quiet] for kept in regular])
    lasted = [median_ns([step.backward_ns for step in steps]) for steps in clocks.steps]
    place = lasted.index(max(lasted))
    rank = ranks[place]
    complete = len(ranks) == world_size if world_size is not None else len(ranks) > 1
    return Job(
        name=options.name or Path(rank.trace.source).name.split(".")[0],
        ranks=ranks,
        world_size=world_size,
        complete=complete,
        place=place,
        clocks=clocks,
        layout=lay_out(clocks.steps[place][0], options.model, rank.trace.source),
        # gloo's threads run on the CPU: how backward slows them is in their durations already.
        slowed=find_comm_slowdown(clocks, complete=complete) if rank.on_gpu else None,
        notes=notes,
    )


def _world_size(ranks: Sequence[Rank], options: ImportOptions) -> int | None:
    """How many ranks reduce gradients together: those of their process group, not of the whole job.

    Raises:
        InputError: two files of one rank, or of several jobs, or another number of ranks than was given.
    """
    traces, first, count = [rank.trace for rank in ranks], ranks[0].trace, len(ranks)
    reductions = (one for rank in ranks for step in rank.steps for one in step.reductions)
    sizes = {one.group_size for one in reductions} - {None}
    told = sizes.pop() if len(sizes) == 1 else first.world_size
    world_size = told or options.world_size
    files = Counter(one.rank for one in traces)
    rows = [
        count > 1
        and None in files
        and "files that do not say of which rank they are; give one such file alone",
        max(files.values()) > 1 and "two files of one rank; give one file of each rank",
        len({one.world_size for one in traces}) > 1
        and "of jobs of several sizes; give the traces of one job",
        count > 1
        and not all("step" in one.kinds for one in traces)
        and "steps without numbers, so that nothing tells which of several ranks belong together; call "
        "profiler.step() each iteration, or give one file alone",
        told
        and options.world_size not in (None, told)
        and f"gradients are reduced over {told} ranks, but --world-size says {options.world_size}",
        world_size
        and count > world_size
        and f"gradients are reduced over {world_size} ranks, and there are {count} traces; give those of one "
        f"process group",
    ]
    if why := next(filter(None, rows), None):
        raise InputError(f"{first.source}{f' and {count - 1} more' if count > 1 else ''}: {why}")
    return world_size


def _regular_steps(rank: Rank, notes: list[Note]) -> list[Step]:
    """The steps that did what most did; notes what is left out of a rank."""
    done = [
        (len(step.gradients), step.micro_batches, *((one.num_bytes, one.dtype) for one in step.reductions))
        for step in rank.steps
    ]
    often = Counter[Any](done)
    # Of equally many the fuller: a step that the profiler cut has less in it.
    usual = max(often, key=lambda one: (often[one], one[0], len(one)))
    kept = [step for step, one in zip(rank.steps, done, strict=True) if one == usual]
    left = [f"{count} {what}" for what, count in rank.trace.dropped.items()]
    if others := [str(step.number) for step in rank.steps if step not in kept]:
        most = f"{usual[0]} gradients in {len(usual) - 2} all-reduces, {count_of(usual[1], 'micro-batch')}"
        left.append(f"steps {few(others)} whose gradients or all-reduces are not those of most ({most})")
    notes += [Note("dropped", f"{rank.trace.source}: {what}") for what in left]
    return kept


# ---- workload, hardware and record

_SENT: tuple[ReadyIncludes, ...] = ("copy_in", "launch", "interference")
_FASTEST = 2.0**62  # bytes a second that a hardware may have


def _workload(job: Job, layout: Layout) -> Workload:
    """Medians over the steps of one rank. They contain DDP's work in backward, as ``ready_includes`` says."""
    rank, steps = job.rank, job.steps
    backward_ns = median_ns([step.backward_ns for step in steps])
    samples = [layout.ready_ns(step) for step in steps]
    ready = [min(median_ns(column), backward_ns) for column in zip(*samples, strict=True)]
    latest, where = 0, "cuda" if rank.on_gpu else "cpu"
    gradients = []
    for one in layout.gradients:  # hook order: the lane has them in it, to the nanosecond
        latest = max(latest, ready[one.index])
        # A model that sizes were taken from may have been elsewhere.
        device = where if one.device and device_type(one.device) != where else one.device
        gradients.append(replace(one, ready_ns=latest, device=device))
    reductions = [one for step in steps for one in step.reductions]
    ran = any(one.timed for one in reductions) or not rank.on_gpu
    return Workload(
        name=job.name,
        gradients=tuple(gradients),
        forward_ns=median_ns([step.backward_start_ns - step.start_ns for step in steps]),
        backward_ns=backward_ns,
        optimizer_ns=median_ns([step.end_ns - step.sync_end_ns for step in steps]),
        ready_order=tuple(one.index for one in gradients),
        ready_includes=(_SENT if ran else _SENT[:2]) if reductions else (),
        samples=tuple(samples) if len(samples) > 1 else (),
        whole_buckets=layout.is_of_whole_buckets or None,
        extensions=AS_RECORDED if NODE + "CompiledFunctionBackward" in rank.trace.names else {},
        provenance={
            **_provenance(rank),
            **({} if job.world_size is None else {"world_size": job.world_size}),
            "made_from": f"{len(steps)} steps",
            "rank": rank.trace.rank,
            "gradients": layout.told_by,
        },
    )


def _provenance(rank: Rank) -> dict[str, Any]:
    """Where a noun comes from."""
    told = {"backend": rank.backend, "nccl_version": rank.trace.nccl_version}
    return {
        "source": "bucketsim import kineto",
        "trace": rank.trace.source,
        "device": rank.device,
        "device_type": "cuda" if rank.on_gpu else "cpu",
        "host": rank.trace.host,
        **{key: text for key, text in told.items() if text},
    }


def _hardware(job: Job, layout: Layout) -> Hardware | None:
    """The all-reduces as they ran within the step; None where no kernel shows how long one takes.

    The shortest kernel of a collective over all ranks is its transfer, and the median over steps is taken.
    If all-reduces are slowed by backward, a transfer beside it counts as long as it would have taken alone.
    Where ranks are missing there are upper bounds: the median of those in which nobody waited, else the least
    over steps; and no size has a larger bound than a larger size.
    """
    steps, slowed, complete = job.steps, job.slowed, job.complete
    by_size, waitless = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    slowdown = 1.0 if slowed is None else slowed.slowdown
    for one in (one for of_step in job.clocks.transfers for one in of_step):
        if one.num_bytes:
            by_size[one.num_bytes].append(one.alone_ns(slowdown))
            if one.is_waitless:
                waitless[one.num_bytes].append(one.alone_ns(slowdown))
    if job.world_size in (None, 1) or not by_size or not any(one.timed for one in steps[0].reductions):
        return None
    curve = median_curve(by_size)
    if not complete:
        bounds: dict[int, int] = {}
        for size, times in sorted(by_size.items(), reverse=True):
            bound = median_ns(waitless[size]) if waitless[size] else min(times)
            bounds[size] = min([bound, *bounds.values()])
        curve = tuple(CurvePoint(num_bytes=size, duration_ns=bounds[size]) for size in reversed(bounds))
    beside = sorted(one.interference for one in job.ranks if one.interference is not None)
    interference = beside[len(beside) // 2] if beside else None
    launches = _launches(job)
    total = sum(gradient.on_wire for gradient in layout.gradients)
    spread: dict[str, Any] = {
        key: {"count": one.seen, **dict(zip(("p25", "median", "p75"), one.quartiles, strict=True))}
        for key, one in (("compute_slowdown", interference), ("comm_slowdown", slowed))
        if one is not None
    }
    spread["all_reduce"] = scatter_by_size(by_size, SHORTEST_OVER_RANKS if complete else "upper bound")
    return Hardware(
        name=job.name,
        world_size=job.world_size or 0,
        all_reduce=curve,
        launch_cost_ns=median_ns(launches) if launches else 0,
        copy_in_bytes_per_s=_rate(total, [step.copy_in_ns for step in steps]),
        copy_out_bytes_per_s=_rate(total, [step.copy_out_ns for step in steps]),
        compute_slowdown=1.0 if interference is None else round(interference.slowdown, 4),
        comm_slowdown=round(slowdown, 4),
        comm_channels=GLOO_CHANNELS if job.rank.backend == "gloo" else 1,
        spread=spread,
        provenance={
            **_provenance(job.ranks[0]),
            "curve": "within the training step, by last arriver"
            if complete
            else "ranks are missing: an upper bound",
            "ranks": [rank.trace.rank for rank in job.ranks],
        },
    )


def _launches(job: Job) -> list[int]:
    """ns from a bucket's being ready to its collective's start on a rank, if no other ran in between."""
    return [
        max(0, one.start_ns - one.ready_ns)
        for steps in job.clocks.steps
        for step in steps
        for one in step.reductions
        if not any(
            other is not one and other.start_ns < one.start_ns and other.end_ns > one.ready_ns
            for other in step.collectives
        )
    ]


def _rate(num_bytes: int, times_ns: Sequence[int]) -> float | None:
    """Bytes a second; None where no copies were seen, or times that no copy takes."""
    middle = median(times_ns)
    rate = num_bytes * NS_PER_S / middle if middle > 0 else 0.0
    return min(rate, _FASTEST) if rate >= 1 else None


def _measurement(job: Job, layout: Layout, workload: Workload, world_size: int) -> Measurement:
    """What the cluster did, as a candidate of a record; buckets as the clock of the rank shown has them."""
    rank, steps, clocks = job.rank, job.steps, job.clocks
    # All after the last gradient is DDP's own way too where the first bucket holds it (A3.5).
    first, last = steps[0].reductions[0].launched_ns, steps[0].gradients[-1].hooked_at_ns
    is_ddps = len(layout.buckets) < 2 or first <= last or layout.gradients[-1].index in layout.buckets[0]
    iterations = tuple(
        _iteration(step, transfers, offsets[job.place])
        for step, transfers, offsets in zip(steps, clocks.transfers, clocks.offsets_ns, strict=True)
    )
    return Measurement(
        name="as run",
        role="candidate",
        mode="trace",
        backend=rank.backend or "unknown",
        world_size=world_size,
        asked=Assignment(
            policy="explicit" if is_ddps else "after-backward",
            bucket_indices=layout.buckets,
            bucket_bytes=bucket_bytes(workload, layout.buckets),
            made_for=made_for(workload, world_size),
            provenance=_provenance(rank),
        ),
        observed=layout.buckets,
        iterations=iterations,
        traced=iterations,
        plain_backward_ns=workload.backward_ns,
        plain_step_ns=workload.forward_ns + workload.backward_ns + workload.optimizer_ns,
        dropped_warmup=len(rank.steps) - len(steps),
        environment={"place": rank.device, "traced_ranks": len(job.ranks)},
        provenance=_provenance(rank),
    )


def _iteration(step: Step, transfers: Sequence[Transfer], offset_ns: int) -> MeasuredIteration:
    begin = step.backward_start_ns
    buckets = []
    for index, (one, seen) in enumerate(zip(transfers, step.reductions, strict=True)):
        ready = max(0, seen.ready_ns - begin)
        buckets.append(
            MeasuredBucket(
                index=index,
                ready_ns=ready,
                launch_ns=max(ready, seen.launched_ns - begin),
                start_ns=max(0, max(one.starts_ns) + offset_ns - begin) if seen.timed else None,
                end_ns=max(0, one.end_ns + offset_ns - begin) if seen.timed else None,
            )
        )
    return MeasuredIteration(
        step_ns=step.end_ns - step.start_ns,
        backward_end_ns=step.backward_ns,
        sync_end_ns=step.sync_end_ns - begin,
        buckets=tuple(buckets),
    )


# ---- what is said of it


def _notes(
    job: Job, workload: Workload | None, hardware: Hardware | None, measurement: Measurement | None
) -> list[Note]:
    """A sentence on each fact that there is."""
    rank, steps, layout, complete, group = job.rank, job.steps, job.layout, job.complete, job.world_size
    beside, slowed, count = rank.interference, job.slowed, len(job.ranks)
    sizes = ["?" if (size := one.num_bytes) is None else format_size(size) for one in steps[0].reductions]
    others = [[one for one in step.collectives if one.role == "other"] for step in steps]
    curve = hardware.all_reduce if hardware is not None else ()

    def lasted(since: str, until: str) -> str:
        return format_ms(median_ns([getattr(step, until) - getattr(step, since) for step in steps]))

    found = [
        f"{count_of(count, 'rank')}{f' of {group}' if group else ''}, {rank.backend or 'backend unknown'}, "
        f"on {rank.device}; {count_of(len(steps), 'step')} of {lasted('start_ns', 'end_ns')}, backward "
        f"{lasted('backward_start_ns', 'backward_end_ns')}"
        + (f", gradients synchronised after {lasted('backward_start_ns', 'sync_end_ns')}" if sizes else "")
        + (f": those of rank {rank.trace.rank}, whose backward is the longest" if count > 1 else ""),
        group
        and rank.trace.world_size not in (None, group)
        and f"gradients are reduced over {group} of the job's {rank.trace.world_size} ranks",
        workload and f"{len(workload.gradients)} gradients, {format_size(workload.total_bytes)}",
        sizes and f"{len(sizes)} all-reduces of gradients a step: {few(sizes)}",
        rank.overlap is not None
        and f"computation overlaps {format_percent(rank.overlap)} of all communication kernels",
        beside
        and f"computation takes {beside.slowdown:.2f} times as long beside a collective ({beside.seen} "
        f"kernels that ran alone in another step)",
        slowed
        and f"all-reduces take {slowed.slowdown:.2f} times as long beside backward as after it "
        f"({slowed.seen} of them): the curve is that of nothing beside",
        any(others)
        and f"{median_ns(list(map(len, others)))} other collectives a step "
        f"({', '.join(sorted({one.kind for each in others for one in each}))}), "
        f"{format_ms(median_ns([sum(one.duration_ns for one in each) for each in others]))}: part of the "
        f"times, not modelled",
        steps[0].micro_batches > 1
        and f"{steps[0].micro_batches} micro-batches a step; all before the last one's backward, all-reduces "
        f"too, is in forward_ns",
    ]
    assumed = [
        layout and layout.told_by,
        *dict.fromkeys(f"WARNING: {line}" for one in job.ranks for line in one.doubts),
        any(one.dtype is None for one in steps[0].reductions)
        and "the trace names no dtype for all-reduces; float32 is assumed",
        workload
        and workload.ready_includes
        and f"the times contain {', '.join(workload.ready_includes)} as they were with these buckets; a "
        f"prediction for others keeps them",
        curve
        and not complete
        and f"WARNING: {count} of {group} ranks: a kernel lasts from its own rank's arrival, not the last "
        f"one's: an upper bound of the transfer; give the traces of all ranks",
        curve
        and rank.on_gpu
        and not slowed
        and f"what computation beside them costs all-reduces is not known (no size ran {FEWEST} times "
        f"beside backward and after it{'' if complete else ', without a wait for ranks that are missing'})",
        curve
        and not rank.on_gpu
        and "an all-reduce lasts from when a thread of gloo takes it to its end on that rank",
        0 < len(curve) < 3
        and f"the curve has {count_of(len(curve), 'size')}; others are drawn from them (give an nccl-tests "
        f"log as well: bucketsim import auto)",
        measurement
        and measurement.asked
        and measurement.asked.policy != "explicit"
        and "all-reduces were sent after the last gradient, one by one: no DDP",
    ]
    missing = [layout and not layout.buckets and "buckets: no all-reduce of gradients in the trace"]
    said: tuple[tuple[Kind, list[Any]], ...] = (("found", found), ("assumed", assumed), ("missing", missing))
    notes = [Note(kind, text) for kind, texts in said for text in texts if text]
    if workload is None:
        text = "sizes of gradients, and so a workload; give --model, or profile with record_shapes=True"
        notes.append(Note("missing", text, "workload"))
    if hardware is None:
        why = (
            "the job had one rank"
            if group == 1
            else "the world size is not in the trace; give --world-size"
            if group is None
            else "the trace shows when all-reduces were sent, not when they ran"
            if sizes and not any(one.timed for one in steps[0].reductions)
            else "no all-reduce of gradients of known size"
        )
        notes.append(Note("missing", f"an all-reduce curve: {why}", "curve"))
    return notes
