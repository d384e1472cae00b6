"""Ranks: one file each, what is refused of it, and several of one job on one clock.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median_low

import numpy as np

from sim.errors import InputError, NotModelledError
from sim.importer.imported import Progress, RankRow
from sim.importer.kineto.events import Spans, Times, TraceEvents, between, busiest, read_events
from sim.importer.kineto.steps import Collective, Step, find_collectives, find_steps
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.nouns.devices import backend_of
from sim.units import median_ns

# ---- what is refused

_STATISTICS = "SyncBatchNorm"
# Annotations, and backends, of NCCL, RCCL and other device libraries ("nccl:all_reduce"). gloo, MPI and
# oneCCL ("ccl") run on CPUs and are not among them.
_DEVICE_LIBRARY = re.compile(r"([a-z]c|cn)cl(?=:|$)")
# Launches, or events of unknown categories, that suffice to suspect a device: a step has as many kernels.
_MANY = 100
# All-reduces of activations are taken to be a metric's if a step has fewer of them, or if their elements are
# a smaller share of the elements that all-reduces of gradients have.
_FEWEST_ACTIVATIONS, _SHARE = 4, 0.05


def _refuse_unread_device(trace: TraceEvents, backend: str | None) -> None:
    """Refuse a trace whose computation ran on a device whose kernels are not in it, or cannot be read: the
    CPU only launches them, and every time of it would be wrong.
    """
    if len(trace.of("computation")):
        return
    called = (_DEVICE_LIBRARY.match(trace.names[one["name"]]) for one in trace.of("call"))
    libraries = [found[0] for found in called if found]
    rows = [
        libraries and f"{len(libraries)} collectives of {libraries[0]}",
        _DEVICE_LIBRARY.fullmatch(backend or "") and f"the job's backend is {backend}",
        trace.launched >= _MANY and f"{trace.launched} launches, or events of categories that are not read",
    ]
    if what := next(filter(None, rows), None):
        raise InputError(
            f"{trace.source}: {what}, and no kernel of a GPU: the CPU's times of such a job are those of "
            f"launches; profile with ProfilerActivity.CUDA as well (NVIDIA's and AMD's GPUs are read)"
        )


def _refuse_others(trace: TraceEvents, steps: Sequence[Step]) -> None:
    """Raise ``NotModelledError`` where gradients were not reduced as replicated data parallelism does."""
    step = steps[len(steps) // 2]
    counts = [Counter(one.kind for one in each.collectives) for each in steps]
    # The median over the steps: a single one may hold collectives that belong to no step.
    kinds = Counter({kind: median_low([each[kind] for each in counts]) for kind in set().union(*counts)})
    scatters, points = kinds["reduce_scatter"], kinds["send"] + kinds["recv"] + kinds["send_recv"]
    sharded = next((trace.names[place] for place, kind in enumerate(trace.kinds) if kind == "sharded"), None)
    activations = 0 if any(_STATISTICS in name for name in trace.names) else _activations(steps)
    rows = [
        (sharded or (scatters and not step.reductions))
        and f"sharded training ({sharded or 'no all-reduce of gradients'}; {kinds['all_gather']} all-gathers "
        f"and {scatters} reduce-scatters a step), whose traces are not read; `bucketsim simulate --policy "
        f"fully_shard` predicts FSDP2's step and `zero2` DeepSpeed's, from a workload",
        step.has_models
        and f"step {step.number} has {step.micro_batches} backwards with an optimizer's step between them: "
        f"several models in turn (a GAN), which is not modelled; if each is a step of one model, call "
        f"profiler.step() after it",
        points and f"{points} sends and receives a step: pipeline parallelism, which is not modelled",
        activations
        and f"{activations} all-reduces a step in forward or within backward's operators, not of gradients: "
        f"tensor parallelism, which is not modelled",
    ]
    if why := next(filter(None, rows), None):
        raise NotModelledError(f"{trace.source}: {why}")


def _activations(steps: Sequence[Step]) -> int:
    """How many all-reduces of activations run a step before the last gradient is ready; those after it are
    metrics, and few or small ones are statistics: 0.
    """
    others = [
        [
            one.num_elements
            for one in step.collectives
            if (one.kind, one.role) == ("all_reduce", "other")
            and one.launched_ns < step.gradients[-1].hooked_at_ns
        ]
        for step in steps
    ]
    count, sizes = median_low(map(len, others)), [size for each in others for size in each]
    gradients = [one.num_elements for step in steps for one in step.reductions]
    is_told = None not in (*sizes, *gradients)
    is_little = is_told and sum(filter(None, sizes)) < _SHARE * sum(filter(None, gradients))
    return 0 if count < _FEWEST_ACTIVATIONS or is_little else count


# ---- one rank

# Kernels that are compared, at least; clocks of a microsecond blur shorter ones.
FEWEST_KERNELS, SHORTEST_NS = 20, 5_000
_NEVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank: its complete steps, and what its device was busy with.

    ``trace`` has no spans any more. ``overlap``: the share of the time of communication kernels in which
    computation kernels run, as HolisticTraceAnalysis defines it; None without communication.
    ``interference``: see ``find_interference``.
    """

    trace: TraceEvents
    backend: str | None
    on_gpu: bool
    steps: tuple[Step, ...]
    overlap: float | None
    interference: tuple[float, int] | None

    @property
    def device(self) -> str:
        """What computed."""
        return (self.trace.device or "GPU") if self.on_gpu else "CPU"


def read_rank(path: Path, progress: Progress) -> Rank:
    """Read one trace; what is not needed of it is gone when this returns.

    Raises:
        InputError: not a trace, or one without whole training steps, or of an unread device.
        NotModelledError: a trace of something else than data parallelism by DDP.
    """
    trace = read_events(path, progress)
    on_gpu = len(trace.gpu) > 0
    backend = trace.backend and backend_of(trace.backend, "cuda" if on_gpu else "cpu")
    _refuse_unread_device(trace, backend)
    steps = find_steps(trace, find_collectives(trace))
    _refuse_others(trace, steps)
    computing = trace.of("computation")
    computation, communication = (
        union(zip(spans["start"].tolist(), spans["end"].tolist(), strict=True))
        for spans in (computing, trace.of("communication"))
    )
    busy = length(communication)
    lane = computing[computing["lane"] == busiest(computing)]
    return Rank(
        trace=replace(trace, gpu=trace.gpu[:0], operators=trace.operators[:0], facts=[]),
        backend=backend,
        on_gpu=on_gpu,
        steps=steps,
        overlap=intersection_length(computation, communication) / busy if busy else None,
        interference=find_interference(
            [between(lane, step.start_ns, step.end_ns) for step in steps], communication
        ),
    )


def find_interference(steps: Sequence[Spans], communication: Sequence[Interval]) -> tuple[float, int] | None:
    """How many times as long kernels take within a collective in a step as clear of all in another, at least
    1, as nothing is faster for what runs beside it, and how many tell it.

    ``steps``: the lane's kernels of each, in order; ``communication``: when any collective was active,
    disjoint and ascending. None where fewer than ``FEWEST_KERNELS`` were seen both ways.
    """
    count = min(map(len, steps))
    names, starts, ends = (
        np.array([step[what][:count] for step in steps]) for what in ("name", "start", "end")
    )
    is_same = np.logical_and.accumulate((names == names[0]).all(0))  # from some place on the steps differ
    begins, stops = np.array([*communication, (_NEVER, _NEVER)]).T
    near = np.searchsorted(stops, starts, "right")
    is_clear = begins[near] >= ends
    is_beside = (begins[near] <= starts) & (ends <= stops[near])
    beside_ns = alone_ns = kernels = 0
    for place in np.flatnonzero(is_same & is_clear.any(0) & is_beside.any(0)):
        lasted = ends[:, place] - starts[:, place]
        alone = median_ns(lasted[is_clear[:, place]].tolist())
        beside = lasted[is_beside[:, place]].tolist()
        if alone >= SHORTEST_NS:
            beside_ns, alone_ns = beside_ns + sum(beside), alone_ns + alone * len(beside)
            kernels += 1
    return None if kernels < FEWEST_KERNELS else (max(1.0, beside_ns / alone_ns), kernels)


# ---- several ranks on one clock

# With so many collectives in a step their ends tell the clocks step by step, and so their drift too.
_ENOUGH_FOR_A_STEP = 3


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


def align(ranks: Sequence[Rank], by_rank: Sequence[Sequence[Step]]) -> Clocks:
    """Lay the clocks of a job's ranks over each other by the ends of the collectives that reduce gradients,
    in the steps of each that are compared.

    Raises:
        InputError: ranks that share no step, or did different things in it.
    """
    source = ranks[0].trace.source
    if not by_rank[0]:
        raise InputError(
            f"{source}: shares no step with the other ranks' traces; give traces of the same steps"
        )
    for rank, steps in zip(ranks, by_rank, strict=True):
        for step, first in zip(steps, by_rank[0], strict=True):
            sizes = [[one.num_elements for one in each.reductions] for each in (step, first)]
            told = [pair for pair in zip(*sizes, strict=False) if None not in pair]
            if len(sizes[0]) != len(sizes[1]) or any(one != other for one, other in told):
                raise InputError(
                    f"{rank.trace.source}: step {step.number}: its all-reduces of gradients are not those of "
                    f"{source}; give the traces of one job"
                )

    rows = zip(*by_rank, strict=True)  # by step, rank and reduction
    seen = [[[_seen(step, one) for one in step.reductions] for step in row] for row in rows]
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


def _seen(step: Step, one: Collective) -> tuple[int, ...]:
    """Of a reduction of a rank its start, its end, whether it was queued, was waitless and is timed, and how
    long it was launched, -1 where another ran in between.
    """
    came = max(one.ready_ns, one.launched_ns)
    others = [other for other in step.collectives if other is not one]
    queued = any(came < other.end_ns <= one.start_ns for other in others)
    was_long = one.start_ns - came >= one.duration_ns or one.start_ns >= step.backward_end_ns
    held = any(other.start_ns < one.start_ns and other.end_ns > one.ready_ns for other in others)
    launch = -1 if held else max(0, one.start_ns - one.ready_ns)
    return one.start_ns, one.end_ns, queued, queued and was_long, one.timed, launch


def _middle(times: Times) -> Times:
    """The median over the last of three axes, 0 of none."""
    return np.array([[median_ns(one or [0]) for one in each] for each in times.tolist()], np.int64)


def rank_rows(ranks: Sequence[Rank], clocks: Clocks, *, complete: bool) -> tuple[RankRow, ...]:
    """One row a rank: its clock, how often it came last, and how long it waited for the last.

    Where no rank is missing collectives count to which every rank came with an idle channel. Who came last is
    told only if it came later than the last but one by more than the error of the clocks.
    """
    several = len(ranks) > 1
    telling = clocks.starts.swapaxes(1, 2)[(clocks.was_queued == 0) & (several and complete)]
    is_clear = np.diff(np.sort(telling), axis=1)[:, -1:] > 2 * clocks.scatters.max()
    last = telling.argmax(1)[is_clear.any(1)].tolist()
    waited = telling.max(1, keepdims=True) - telling
    rows = []
    for place, rank in enumerate(ranks):
        offset = median_ns(clocks.offsets[:, place].tolist()) + rank.trace.base_ns - ranks[0].trace.base_ns
        rows.append(
            RankRow(
                rank=place if rank.trace.rank is None else rank.trace.rank,
                host=rank.trace.host,
                clock_offset_ns=offset if several else None,
                clock_scatter_ns=int(clocks.scatters[place]) if several else None,
                collectives=len(last),
                came_last=last.count(place) if last else None,
                waited_ns=median_ns(waited[:, place].tolist()) if len(waited) else None,
                backward_ns=median_ns([step.backward_ns for step in clocks.steps[place]]),
            )
        )
    return tuple(rows)
