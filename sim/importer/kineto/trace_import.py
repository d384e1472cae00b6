"""``import kineto``: what ranks did, as a workload, a hardware, a record, and sentences.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np

from sim.costs.doubts import odd_points
from sim.errors import InputError
from sim.importer.imported import About, Imported, ImportOptions, Note, RankRow, few
from sim.importer.kineto.events import NODE, Times
from sim.importer.kineto.steps import ASSUMED_DTYPE, Collective, Rank, Step, read_rank
from sim.importer.samples import SHORTEST_OVER_RANKS, median_curve, own_step, quiet_steps, scatter_by_size
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import GLOO_CHANNELS, Hardware
from sim.nouns.measurement import LAST, MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.workload import DTYPE_BYTES, AsRun, Gradient, ReadyIncludes, Workload
from sim.systems.ddp_assignment import AS_RECORDED
from sim.units import NS_PER_S, count_of, format_ms, format_percent, format_size, median_ns

Buckets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The gradients of a step and its buckets.

    ``gradients`` in hook order, without times, numbered against it; ``places``: of each its place among the
    step's gradients or, where ``is_of_whole_buckets`` (each stands for a bucket, as nothing tells apart what
    is in it), among its reductions. ``buckets`` are indices in launch order, empty where nothing was reduced.
    ``told_by``: a sentence on where all this is from.
    """

    gradients: tuple[Gradient, ...]
    places: Sequence[int]
    buckets: Buckets
    told_by: str
    is_of_whole_buckets: bool = False

    def ready_ns(self, step: Step) -> tuple[int, ...]:
        """By index: when each gradient was ready, from the start of the step's backward."""
        seen = [one.ready_ns for one in (step.reductions if self.is_of_whole_buckets else step.gradients)]
        return tuple(max(0, seen[place] - step.backward_start_ns) for place in reversed(self.places))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Ranks on the first rank's clock, and the all-reduces of gradients over them; times in ns.

    ``steps``: by rank, those that are compared, the same of each. ``offsets``, by step and rank: what its
    clock shows more than the first rank's; ``scatters``, by rank: the largest distance of an aligned end from
    its collective's median. By step, rank and reduction: ``starts``, when its kernel began, and ``launches``,
    how long after the bucket was ready, -1 where another collective ran in between.

    By step and reduction: ``ends``, the median over ranks; ``transfers``: the shortest kernel, which is the
    transfer itself, or an upper bound of it where ranks are missing; ``was_queued``: on some rank another
    collective still ran when the rank came to it; ``is_waitless``: probably no rank waited in it, as far as
    the rank of the shortest kernel can tell: that was queued behind another collective, and either was queued
    for at least as long as it then ran, or began after the end of backward.
    """

    steps: Sequence[Sequence[Step]]
    offsets: Times
    scatters: Times
    starts: Times
    launches: Times
    ends: Times
    transfers: Times
    was_queued: Times
    is_waitless: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the traces of a job show: its ranks on one clock, and the ``rank`` whose backward is the longest,
    at its ``place``: of its ``steps`` the import is made. ``complete``: no rank of the group is missing;
    ``notes``: what was left out so far.
    """

    name: str
    ranks: Sequence[Rank]
    world_size: int | None
    complete: bool
    place: int
    rank: Rank
    steps: Sequence[Step]
    clocks: Clocks
    layout: Layout | None
    notes: Sequence[Note]

    @property
    def is_of_ddp(self) -> bool:
        """Whether its buckets went as DDP's do: all after the last gradient only where the first bucket holds
        it (A3.5)."""
        step, layout = self.steps[0], self.layout
        is_first = layout is None or not layout.buckets or layout.gradients[-1].index in layout.buckets[0]
        return is_first or step.reductions[0].launched_ns <= step.gradients[-1].hooked_at_ns


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
    ranks = _rank_rows(job)
    if job.layout is not None:
        workload = _workload(job, job.layout)
        hardware = _hardware(job, job.layout)
        if hardware is not None and job.layout.buckets:
            measurement = _measurement(job, job.layout, workload, ranks)
    return Imported(
        format="kineto",
        name=job.name,
        workload=workload,
        hardware=() if hardware is None else (hardware,),
        measurements=() if measurement is None else (measurement,),
        ranks=ranks,
        notes=(*job.notes, *_notes(job, workload, hardware, measurement)),
    )


def see(paths: Sequence[Path], options: ImportOptions) -> Job:
    """What the traces show, before anything is made of it. Raises as ``read_kineto``."""
    ranks = sorted(map(read_rank, paths), key=lambda one: one.trace.rank or 0)
    world_size, source, notes = _world_size(ranks, options), ranks[0].trace.source, list[Note]()
    regular = [_regular_steps(rank, notes) for rank in ranks]
    lasted = [{step.number: step.end_ns - step.start_ns for step in kept} for kept in regular]
    shared = set.intersection(*map(set, lasted))
    lengths = {number: max(of_rank[number] for of_rank in lasted) for number in shared}
    quiet, said = quiet_steps(lengths, on_gpu=ranks[0].on_gpu)
    if lengths and not quiet:
        raise InputError(f"{source}: no two steps in it take about as long; profile more steps")
    notes += [Note("doubtful", said)] if said else []
    clocks = align(ranks, [[step for step in kept if step.number in quiet] for kept in regular])
    backwards = [median_ns([step.backward_ns for step in steps]) for steps in clocks.steps]
    place = backwards.index(max(backwards))
    return Job(
        name=options.name or Path(ranks[place].trace.source).name.split(".")[0],
        ranks=ranks,
        world_size=world_size,
        complete=len(ranks) == world_size if world_size is not None else len(ranks) > 1,
        place=place,
        rank=ranks[place],
        steps=clocks.steps[place],
        clocks=clocks,
        layout=lay_out(clocks.steps[place][0]),
        notes=notes,
    )


def _world_size(ranks: Sequence[Rank], options: ImportOptions) -> int | None:
    """How many ranks reduce gradients together: those of their process group, not of the whole job."""
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


# ---- several ranks on one clock

# With so many collectives in a step their ends tell the clocks step by step, and so their drift too.
_ENOUGH_FOR_A_STEP = 3


def align(ranks: Sequence[Rank], by_rank: Sequence[Sequence[Step]]) -> Clocks:
    """Lay the clocks of a job's ranks over each other by the ends of the collectives that reduce gradients,
    in the steps of each that are compared. ``InputError``: they share no step, or did different things in it.
    """
    source = ranks[0].trace.source
    if not by_rank[0]:
        raise InputError(
            f"{source}: shares no step with the other ranks' traces; give traces of the same steps"
        )
    for rank, (step, *_) in zip(ranks, by_rank, strict=True):  # which are alike, each rank's own
        sizes = [[one.num_elements for one in each.reductions] for each in (step, by_rank[0][0])]
        told = [pair for pair in zip(*sizes, strict=False) if None not in pair]
        if len(sizes[0]) != len(sizes[1]) or any(one != other for one, other in told):
            raise InputError(
                f"{rank.trace.source}: step {step.number}: its all-reduces of gradients are not those of "
                f"{source}; give the traces of one job"
            )
    pairs = ([*zip((steps[0], *steps), steps, strict=False)] for steps in by_rank)  # each, and that before it
    rows = zip(*pairs, strict=True)  # by step, rank and reduction
    seen = [[[_seen(before, step, one) for one in step.reductions] for before, step in row] for row in rows]
    starts, ends, queued, waitless, timed, launches = np.moveaxis(
        np.array(seen, np.int64).reshape(len(by_rank[0]), len(ranks), -1, 6), 3, 0
    )
    if len(ranks) > 1 and not (timed.size and timed.all()):
        raise InputError(f"{source}: no all-reduce of all ranks, which would tell their clocks apart")
    # Each rank's clock minus the first's: the median over collectives of how much later it ends.
    later = ends - ends[:, :1]
    if later.shape[2] < _ENOUGH_FOR_A_STEP:
        later = np.repeat(later.swapaxes(0, 1).reshape(1, len(ranks), -1), len(later), 0)
    offsets = _middle(later)
    aligned, lasted = ends - offsets[..., None], ends - starts
    middle = _middle(aligned.swapaxes(1, 2))
    return Clocks(
        steps=by_rank,
        offsets=offsets,
        scatters=abs(aligned - middle[:, None]).max((0, 2), initial=0),
        starts=starts - offsets[..., None],
        launches=launches,
        ends=middle,
        transfers=lasted.min(1),
        was_queued=queued.max(1),
        is_waitless=np.take_along_axis(waitless, lasted.argmin(1)[:, None], 1)[:, 0],
    )


def _seen(before: Step, step: Step, one: Collective) -> tuple[int, ...]:
    """Of a reduction of a rank its start, its end, whether it was queued, was waitless and is timed, and how
    long it was launched, -1 where another ran in between."""
    came = max(one.ready_ns, one.launched_ns)
    others = [other for other in (*before.collectives, *step.collectives) if other is not one]
    queued = any(came < other.end_ns <= one.start_ns for other in others)
    was_long = one.start_ns - came >= one.duration_ns or one.start_ns >= step.backward_end_ns
    held = any(other.start_ns < one.start_ns and other.end_ns > one.ready_ns for other in others)
    launch = -1 if held else max(0, one.start_ns - one.ready_ns)
    return one.start_ns, one.end_ns, queued, queued and was_long, one.timed, launch


def _middle(times: Times) -> Times:
    """The median over the last of three axes, 0 of none."""
    return np.array([[median_ns(one or [0]) for one in each] for each in times.tolist()], np.int64)


def _rank_rows(job: Job) -> tuple[RankRow, ...]:
    """One row a rank: its clock, how often it came last, and how long it waited for the last.

    Where no rank is missing collectives count to which every rank came with an idle channel. Who came last is
    told only if it came later than the last but one by more than the error of the clocks.
    """
    ranks, clocks, several = job.ranks, job.clocks, len(job.ranks) > 1
    telling = clocks.starts.swapaxes(1, 2)[(clocks.was_queued == 0) & (several and job.complete)]
    is_clear = np.diff(np.sort(telling), axis=1)[:, -1:] > 2 * clocks.scatters.max()
    last = telling.argmax(1)[is_clear.any(1)].tolist()
    waited = telling.max(1, keepdims=True) - telling
    offsets, base = map(median_ns, clocks.offsets.T.tolist()), ranks[0].trace.base_ns
    return tuple(
        RankRow(
            rank=place if rank.trace.rank is None else rank.trace.rank,
            host=rank.trace.host,
            clock_offset_ns=offset + rank.trace.base_ns - base if several else None,
            clock_scatter_ns=int(clocks.scatters[place]) if several else None,
            collectives=len(last),
            came_last=last.count(place) if last else None,
            waited_ns=median_ns(waited[:, place].tolist()) if len(waited) else None,
            backward_ns=median_ns([step.backward_ns for step in clocks.steps[place]]),
        )
        for place, (rank, offset) in enumerate(zip(ranks, offsets, strict=True))
    )


# ---- which gradients a step reduced in which buckets: by the trace's own shapes, or by bucket

_BY_SHAPES = (
    "shapes are the trace's own; names and the order of parameters are not in it: gradients are numbered "
    "against the order in which they were ready"
)


def lay_out(step: Step) -> Layout | None:
    """The gradients and buckets of a step; None where no size is told, or a compiled backward sent them all
    before AccumulateGrad.
    """
    sent_ns = [one.launched_ns for one in step.reductions]
    if len(sent_ns) == len(step.gradients) and sent_ns[-1] < step.gradients[0].hooked_at_ns:
        return None
    sizes = [size for one in step.reductions if (size := one.num_bytes) is not None]
    sizes = sizes if len(sizes) == len(step.reductions) else []
    # The gradients that the reductions can hold: those that DDP copied, if that can be seen, and that came
    # before the last reduction was launched.
    placed = list(enumerate(step.gradients))
    placed = [(place, one) for place, one in placed if one.is_copied] or placed
    last = step.reductions[-1].launched_ns if step.reductions else step.gradients[-1].hooked_at_ns
    placed = [(place, one) for place, one in placed if one.hooked_at_ns <= last] or placed
    why = "no shapes of gradients in the trace (profile with record_shapes=True)"
    # A comm hook sends all in one dtype. An empty shape is that of a scalar or of a missing gradient, so
    # gradients with it are left out second.
    sent = {one.dtype for one in step.reductions}
    sent = sent if len(sent) == 1 else set()
    shaped = placed if all(one.shape is not None for _, one in placed) else []
    for kept in (shaped, [(place, one) for place, one in shaped if one.shape]):
        for wire in dict.fromkeys((None, *sent)) if kept else ():
            gradients = _numbered("gradient", [(one.shape or (), one.dtype) for _, one in kept], wire)
            indices = range(len(kept) - 1, -1, -1)
            buckets = match_buckets(sizes, gradients[::-1], indices) if sizes else ()
            if buckets is not None:
                return Layout(gradients, [place for place, _ in kept], buckets, _BY_SHAPES)
            why = "the buckets are not made of the gradients whose shapes the trace has"
    if not sizes:
        return None
    gradients = _numbered("bucket", [((one.num_elements or 0,), one.dtype) for one in step.reductions])
    why = f"{why}: each bucket that ran stands for its gradients, so that they can be merged but not divided"
    return Layout(gradients, range(len(sizes)), tuple((one.index,) for one in gradients), why, True)


def _numbered(
    word: str, told: Sequence[tuple[tuple[int, ...], str | None]], wire: str | None = None
) -> tuple[Gradient, ...]:
    """Gradients of shapes and dtypes in hook order, numbered against it; ``wire``: the dtype that travels."""
    found = []
    for place, (shape, dtype) in enumerate(told):
        index, dtype, count = len(told) - 1 - place, dtype or ASSUMED_DTYPE, prod(shape)
        found.append(
            Gradient(
                index=index,
                name=f"{word} {place if word == 'bucket' else index}",
                shape=shape,
                dtype=dtype,
                num_bytes=count * DTYPE_BYTES[dtype],
                ready_ns=None,
                wire_bytes=None if wire in (None, dtype) else count * DTYPE_BYTES[wire],
            )
        )
    return tuple(found)


# Several dtypes or many empty tensors can make the search branch; real models need a few cuts a bucket.
_MOST_CUTS = 300_000
_Cut = tuple[Buckets, Buckets, int, bool]


def match_buckets(
    sizes: Sequence[int], gradients: Sequence[Gradient], ready: Sequence[int]
) -> Buckets | None:
    """The buckets of DDP that have these sizes: parameter indices, in launch order; None where none have.

    Within each dtype and device a bucket is a run of the order walked, and buckets come in the order in which
    they are closed, leftovers last (A1.3 to A1.5). Two walks are tried: ready order (A2.4) and, from its end,
    parameter order (the constructor's buckets, A2.3). Where sizes leave a choice (an empty tensor, equal sums
    of two dtypes), the cut that closes buckets early is taken. If no walk fits, the model may have been
    wrapped in several parts: then a bucket of one part may lie between the members of another's, in ready
    order. ``sizes``: bytes of each bucket in launch order, as they travel; at least one. ``ready``: the
    indices of those gradients that become ready, in this order.
    """
    walked = (*ready, *sorted(set(range(len(gradients))) - set(ready)))
    for way in ("ready", "constructor", "apart"):
        walk, direction = (range(len(gradients)), -1) if way == "constructor" else (walked, 1)
        found = _search(sizes[::direction], gradients, walk, way)
        if found is not None:
            return found[::direction]
    return None


def _search(
    sizes: Sequence[int],
    gradients: Sequence[Gradient],
    walk: Sequence[int],
    way: Literal["ready", "constructor", "apart"],
) -> Buckets | None:
    """The first complete cut that a search in depth finds; None where it finds none.

    Buckets of the constructor are sorted by their first member (A1.6), others by their last, and leftovers
    follow (A1.5). Of parts wrapped ``apart`` a bucket may begin anywhere in what the buckets before it left:
    it is launched when its last member is ready (A3.5).
    """
    runs = defaultdict[object, list[int]](list)  # of one dtype and device; a sparse one is alone (A1.2)
    for index in walk:
        runs[index if gradients[index].sparse else gradients[index].key].append(index)
    places = {index: place for place, index in enumerate(walk)}
    seen, cuts = set[object](), 0
    # What is left of each run, the buckets so far, where the last of them closed, and whether only the ends
    # of runs are being cut.
    stack: list[_Cut] = [(tuple(map(tuple, runs.values())), (), -1, False)]
    while stack and cuts < _MOST_CUTS:
        left, buckets, last, is_over = stack.pop()
        if len(buckets) == len(sizes):
            if not any(left):
                return buckets
            continue
        if (state := (len(buckets), left, is_over)) in seen:
            continue
        seen.add(state)
        closed, leftovers = list[_Cut](), list[_Cut]()
        for number, run in enumerate(left):
            sums = list(accumulate((gradients[index].on_wire for index in run), initial=0))
            for start in range(len(run) if way == "apart" else min(1, len(run))):
                cuts += 1
                goal = sums[start] + sizes[len(buckets)]
                for end in range(bisect_left(sums, goal, start + 1), bisect_right(sums, goal, start + 1)):
                    place = places[run[start if way == "constructor" else end - 1]]
                    is_leftover = is_over or place < last
                    is_end = way == "ready" and end == len(run) and not gradients[run[0]].sparse
                    if is_leftover and not is_end:
                        continue
                    rest = (*left[:number], run[:start] + run[end:], *left[number + 1 :])
                    cut = (rest, (*buckets, run[start:end]), max(place, last), is_leftover)
                    (leftovers if is_leftover else closed).append(cut)
        # Those that close early first; of leftovers the dtype seen last (A1.5).
        stack += [*leftovers, *sorted(closed, key=lambda one: -one[2])]
    return None


# ---- workload, hardware and record

_SENT: tuple[ReadyIncludes, ...] = ("copy_in", "launch", "interference")
_FASTEST = 2.0**62  # bytes a second that a hardware may have


def _workload(job: Job, layout: Layout) -> Workload:
    """Medians over the steps of one rank. They contain DDP's work in backward, as ``ready_includes`` says."""
    rank, steps = job.rank, job.steps
    backward_ns = median_ns([step.backward_ns for step in steps])
    samples = [layout.ready_ns(step) for step in steps]
    ready = [min(median_ns(column), backward_ns) for column in zip(*samples, strict=True)]
    # In hook order, the lane has them in it, to the nanosecond.
    times = accumulate((ready[one.index] for one in layout.gradients), max)
    gradients = [replace(one, ready_ns=at) for one, at in zip(layout.gradients, times, strict=True)]
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
        job=AsRun(bucket_indices=layout.buckets) if layout.buckets and job.is_of_ddp else None,
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
    return {
        "source": "bucketsim import kineto",
        "trace": Path(rank.trace.source).name,
        "device": rank.device,
        "device_type": "cuda" if rank.on_gpu else "cpu",
        "host": rank.trace.host,
        **({"backend": rank.backend} if rank.backend else {}),
    }


def _hardware(job: Job, layout: Layout) -> Hardware | None:
    """The all-reduces as they ran within the step; None where no kernel shows how long one takes.

    The shortest kernel of a collective over all ranks is its transfer, and the median over steps is taken.
    Where ranks are missing there are upper bounds: the median of those in which nobody waited, else the least
    over steps; and no size has a larger bound than a larger size.
    """
    steps, complete = job.steps, job.complete
    by_size, waitless = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    reductions = [one for step in job.clocks.steps[0] for one in step.reductions]
    took, free = job.clocks.transfers.ravel().tolist(), job.clocks.is_waitless.ravel().tolist()
    for one, time, is_waitless in zip(reductions, took, free, strict=True):
        if one.num_bytes and one.timed:
            by_size[one.num_bytes].append(time)
            waitless[one.num_bytes] += [time] * is_waitless
    if job.world_size is None or job.world_size == 1 or not by_size:
        return None
    curve = median_curve(by_size)
    if not complete:
        sizes = sorted(by_size, reverse=True)
        bounds = (median_ns(waitless[size]) if waitless[size] else min(by_size[size]) for size in sizes)
        curve = median_curve(dict(zip(sizes, ([bound] for bound in accumulate(bounds, min)), strict=True)))
    beside = sorted(one.interference for one in job.ranks if one.interference is not None)
    launches = job.clocks.launches[job.clocks.launches >= 0].tolist()
    total = sum(gradient.on_wire for gradient in layout.gradients)
    return Hardware(
        name=job.name,
        world_size=job.world_size,
        all_reduce=curve,
        launch_cost_ns=median_ns(launches) if launches else 0,
        copy_in_bytes_per_s=_rate(total, [step.copy_in_ns for step in steps]),
        copy_out_bytes_per_s=_rate(total, [step.copy_out_ns for step in steps]),
        compute_slowdown=round(beside[len(beside) // 2][0], 4) if beside else 1.0,
        comm_channels=GLOO_CHANNELS if job.rank.backend == "gloo" else 1,
        spread={"all_reduce": scatter_by_size(by_size, SHORTEST_OVER_RANKS if complete else "upper bound")},
        provenance={
            **_provenance(job.ranks[0]),
            "curve": "within the training step, by last arriver"
            if complete
            else "ranks are missing: an upper bound",
            "ranks": [rank.trace.rank for rank in job.ranks],
            **({"doubtful": odd} if (odd := odd_points(curve)) else {}),
        },
    )


def _rate(num_bytes: int, times_ns: Sequence[int]) -> float | None:
    """Bytes a second; None where no copies were seen, or times that no copy takes."""
    middle = median(times_ns)
    rate = num_bytes * NS_PER_S / middle if middle > 0 else 0.0
    return min(rate, _FASTEST) if rate >= 1 else None


def _measurement(job: Job, layout: Layout, workload: Workload, ranks: Sequence[RankRow]) -> Measurement:
    """What the cluster did, as a candidate of a record; buckets as the clock of the rank shown has them."""
    assert job.world_size is not None  # there is a hardware
    rank, steps, clocks = job.rank, job.steps, job.clocks
    last = max(ranks, key=lambda row: row.came_last or 0)
    late = {LAST: f"rank {last.rank}, to {last.came_last} of {last.collectives} collectives"}
    offsets = clocks.offsets[:, job.place, None]
    arrived, ended = clocks.starts.max(1) + offsets, clocks.ends + offsets
    return own_step(
        workload,
        Assignment(
            policy="explicit" if job.is_of_ddp else "after-backward",
            bucket_indices=layout.buckets,
            provenance=_provenance(rank),
        ),
        map(_iteration, steps, arrived.tolist(), ended.tolist()),
        backend=rank.backend or "unknown",
        world_size=job.world_size,
        dropped_warmup=len(rank.steps) - len(steps),
        environment={"place": rank.device, "traced_ranks": len(job.ranks)} | (late if last.came_last else {}),
    )


def _iteration(step: Step, arrived_ns: Sequence[int], ended_ns: Sequence[int]) -> MeasuredIteration:
    """A step, and when the last rank came to each of its reductions."""
    begin = step.backward_start_ns
    return MeasuredIteration(
        step_ns=step.end_ns - step.start_ns,
        backward_end_ns=step.backward_ns,
        sync_end_ns=step.sync_end_ns - begin,
        buckets=tuple(
            MeasuredBucket(
                index=index,
                ready_ns=max(0, one.ready_ns - begin),
                launch_ns=max(0, one.ready_ns - begin, one.launched_ns - begin),
                start_ns=max(0, arrived - begin) if one.timed else None,
                end_ns=max(0, ended - begin) if one.timed else None,
            )
            for index, (one, arrived, ended) in enumerate(
                zip(step.reductions, arrived_ns, ended_ns, strict=True)
            )
        ),
    )


# ---- what is said of it


def _notes(
    job: Job, workload: Workload | None, hardware: Hardware | None, measurement: Measurement | None
) -> list[Note]:
    """A sentence on each fact that there is."""
    rank, steps, layout, complete, group = job.rank, job.steps, job.layout, job.complete, job.world_size
    beside, count = rank.interference, len(job.ranks)
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
        and f"computation takes {beside[0]:.2f} times as long beside a collective ({beside[1]} kernels that "
        f"ran alone in another step)",
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
        not rank.on_gpu
        and rank.trace.device
        and f"WARNING: the trace lists {rank.trace.device!r} and nothing that ran on it: taken for training "
        f"on the CPU; if it was not, profile with ProfilerActivity.CUDA as well",
        any(one.dtype is None for one in steps[0].reductions)
        and "the trace names no dtype for all-reduces; float32 is assumed",
        workload
        and workload.ready_includes
        and f"the times contain {', '.join(workload.ready_includes)} as they were with these buckets, and "
        f"those of all-reduces what computation beside them cost; a prediction for others keeps them",
        curve
        and not complete
        and f"WARNING: {count} of {group} ranks: a kernel lasts from its own rank's arrival, not the last "
        f"one's: an upper bound of the transfer; give the traces of all ranks",
        0 < len(curve) < 3
        and f"the curve has {count_of(len(curve), 'size')}; others are drawn from them (give an nccl-tests "
        f"log as well: bucketsim import auto)",
        measurement
        and not job.is_of_ddp
        and "all-reduces were sent after the last gradient, one by one: no DDP",
    ]
    why = {1: "the job had one rank", None: "the world size is not in the trace; give --world-size"}.get(
        group, "the trace shows of no all-reduce of gradients both its size and when it ran"
    )
    untold = "no sizes of gradients (record_shapes=True), or a compiled backward sent them (sim.record)"
    missing: tuple[tuple[Any, About], ...] = (
        (layout and not layout.buckets and "buckets: no all-reduce of gradients in the trace", ""),
        (not workload and f"a workload: {untold}", "workload"),
        (not hardware and f"an all-reduce curve: {why}", "curve"),
    )
    return [
        *(Note("found", one) for one in found if one),
        *(Note("assumed", one) for one in assumed if one),
        *(Note("missing", one, about) for one, about in missing if one),
    ]
