"""Ranks: one file each, what is refused of it, and several of one job on one clock.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low

import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError, NotModelledError
from sim.importer.imported import Progress, RankRow, plain
from sim.importer.kineto.collectives import find_collectives
from sim.importer.kineto.events import NODE, Spans, TraceEvents, between, busiest, read_events
from sim.importer.kineto.steps import SeenStep, find_steps
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.nouns.devices import backend_of
from sim.units import median_ns

# ---- what is refused

_FSDP = re.compile(r"FullyShardedDataParallel|FSDP::|fsdp", re.IGNORECASE)
_STATISTICS = "SyncBatchNorm"
# Annotations, and backends, of NCCL, RCCL and other device libraries ("nccl:all_reduce"). gloo, MPI and
# oneCCL ("ccl") run on CPUs and are not among them.
_DEVICE_LIBRARY = re.compile(r"([a-z]ccl|cncl)(?=:|$)")
_DEVICES = re.compile(r"(hpu|xpu|npu|mtia|gcu|musa|tpu|xla|neuron|mlu|privateuse\w*?)_", re.IGNORECASE)
# Events of unknown categories, or launches, that suffice to suspect a device: a step has as many kernels.
_MANY = 100
# All-reduces of activations are taken to be a metric's if a step has fewer of them, or if their elements are
# a smaller share of the elements that all-reduces of gradients have.
_FEWEST_ACTIVATIONS = 4
_SHARE = 0.05


def _decline_unread_device(trace: TraceEvents, backend: str | None) -> None:
    """Refuse a trace whose computation ran on a device whose kernels are not in it, or cannot be read.

    In such a job the CPU only launches kernels. Read as training on a CPU, every time would be wrong.

    Raises:
        NotModelledError: no kernel of a GPU, and events of another device, or many of an unknown category.
        InputError: no kernel of a GPU, and collectives or launches of one.
    """
    if len(trace.ran("computation")):
        return
    names = sorted({found[1].lower() for what in trace.unread if (found := _DEVICES.match(what))})
    if names or trace.unread.total() >= _MANY:
        of = f"of a device that is not read ({', '.join(names)})" if names else "perhaps of another device"
        raise NotModelledError(
            f"{trace.source}: no kernel of a GPU, and {_unread(trace)}, {of}: the CPU's times of such a job "
            f"are those of launches; traces of NVIDIA's and AMD's GPUs and of CPUs are read"
        )
    called = map(_DEVICE_LIBRARY.match, map(trace.name_of, trace.operators))
    collectives = Counter(found[0] for found in called if found)
    signs = (
        *(f"{count} collectives of {name}" for name, count in collectives.most_common(2)),
        _DEVICE_LIBRARY.fullmatch(backend or "") and f"the job's backend is {backend}",
        trace.launched >= _MANY and f"{trace.launched} launches of work for a device",
    )
    if why := next(filter(None, signs), None):
        raise InputError(
            f"{trace.source}: {why}, and no kernel of a GPU: the trace does not show what the device did, "
            f"and the CPU's times are those of launches; profile with ProfilerActivity.CUDA as well"
        )


def _unread(trace: TraceEvents) -> str:
    """How many events are of categories that are not read, and which most."""
    shown = ", ".join(f"{plain(what, 40)} {count}" for what, count in trace.unread.most_common(3))
    return f"{trace.unread.total()} events of categories that are not read ({shown})"


def _decline(trace: TraceEvents, steps: Sequence[SeenStep]) -> None:
    """Raise ``NotModelledError`` where gradients were not reduced as replicated data parallelism does."""
    sharded = next(filter(_FSDP.match, trace.names), None)
    step = steps[len(steps) // 2]
    counts = [Counter(one.kind for one in each.collectives if one.role != "before") for each in steps]
    # The median over the steps: a single one may hold collectives that belong to no step.
    kinds = Counter({kind: median_low([each[kind] for each in counts]) for kind in set().union(*counts)})
    gathers, scatters = kinds["all_gather"], kinds["reduce_scatter"]
    points = kinds["send"] + kinds["recv"] + kinds["send_recv"]
    activations = 0 if any(_STATISTICS in name for name in trace.names) else _activations(steps)
    rows = (
        (
            sharded,
            f"{sharded!r} in it: trained by FSDP, which gathers parameters and scatters gradients; its "
            f"traces are not read; record or estimate the model without it, and `bucketsim simulate --policy "
            f"fully_shard` predicts FSDP2's step",
        ),
        (
            step.other_backwards,
            f"step {step.number} has {step.micro_batches} backwards of different gradients, or with an "
            f"optimizer's step between them: several models in turn (a GAN), which is not modelled; if each "
            f"is a step of one model, call prof.step() after it",
        ),
        (
            min(gathers, scatters) >= 2 and not step.reductions,
            f"{gathers} all-gathers, {scatters} reduce-scatters a step and no all-reduce of gradients: "
            f"sharded (FSDP, ZeRO-3), which is not modelled",
        ),
        (points, f"{points} sends and receives a step: pipeline parallelism, which is not modelled"),
        (
            activations,
            f"{activations} all-reduces a step in forward or within backward's operators, not of gradients: "
            f"tensor parallelism, which is not modelled",
        ),
        (
            scatters and not step.reductions,
            f"gradients are reduce-scattered, {scatters} times a step: a sharded optimizer; `bucketsim "
            f"simulate --policy zero2` predicts DeepSpeed's from a workload",
        ),
    )
    if why := next((text for is_so, text in rows if is_so), None):
        raise NotModelledError(f"{trace.source}: {why}")


def _activations(steps: Sequence[SeenStep]) -> int:
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
    count = median_low([len(each) for each in others])
    sizes = [size for each in others for size in each]
    gradients = [one.num_elements for step in steps for one in step.reductions]
    told = gradients and None not in (*sizes, *gradients)
    is_little = told and sum(size or 0 for size in sizes) < _SHARE * sum(size or 0 for size in gradients)
    return 0 if count < _FEWEST_ACTIVATIONS or is_little else count


# ---- one rank


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Time of some work beside other work over that of the same without.

    ``ratio`` is what was seen, ``slowdown`` what is taken of it: at least 1, as nothing is faster for what
    runs beside it. ``count`` kernels or transfers were compared, whose quartiles are ``quartiles``.
    """

    ratio: float
    count: int
    quartiles: tuple[float, float, float]

    @property
    def slowdown(self) -> float:
        """The factor by which work takes longer beside the other."""
        return max(1.0, self.ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """One rank: its complete steps, and what its device was busy with.

    ``trace`` has no spans any more. ``overlap``, ``all_reduce_overlap``: of communication, and of all-reduces
    (``overlap_ratio``). ``is_marked``: steps have the profiler's own numbers. ``is_compiled``: torch.compile
    made some of its backward. ``doubts``: sentences on work of a device that the trace may not show.
    """

    trace: TraceEvents
    backend: str | None
    on_gpu: bool
    steps: tuple[SeenStep, ...]
    overlap: float | None
    all_reduce_overlap: float | None
    interference: Slowdown | None
    is_marked: bool
    is_compiled: bool
    doubts: tuple[str, ...]

    @property
    def device(self) -> str:
        """What computed."""
        return (self.trace.device or "GPU") if self.on_gpu else "CPU"


def read_rank(path: Path, progress: Progress) -> SeenRank:
    """Read one trace; what is not needed of it is gone when this returns.

    Raises:
        InputError: not a trace, or one without whole training steps.
        NotModelledError: a trace of something else than data parallelism by DDP.
    """
    trace = read_events(path, progress)
    on_gpu = len(trace.gpu) > 0
    backend = trace.backend and backend_of(trace.backend, "cuda" if on_gpu else "cpu")
    _decline_unread_device(trace, backend)
    collectives = find_collectives(trace)
    steps = find_steps(trace, collectives)
    _decline(trace, steps)
    computing = trace.ran("computation")
    computation, communication = (
        union(zip(spans["start"].tolist(), spans["end"].tolist(), strict=True))
        for spans in (computing, trace.ran("communication"))
    )
    timed = [one for one in collectives if one.kind == "all_reduce" and one.timed and on_gpu]
    lane = computing[computing["lane"] == busiest(computing)]
    kernels = [between(lane, step.start_ns, step.end_ns) for step in steps]
    doubts = (
        trace.unread and f"{_unread(trace)}: if a device's, what it did is in no figure here",
        not on_gpu
        and trace.device
        and f"the trace lists {trace.device!r} and nothing that ran on it: taken for training on the CPU; if "
        f"it was not, profile with ProfilerActivity.CUDA as well",
    )
    return SeenRank(
        trace=replace(trace, gpu=trace.gpu[:0], operators=trace.operators[:0], facts=[]),
        backend=backend,
        on_gpu=on_gpu,
        steps=steps,
        overlap=overlap_ratio(computation, communication),
        all_reduce_overlap=overlap_ratio(computation, union((one.start_ns, one.end_ns) for one in timed)),
        interference=find_interference(kernels, communication),
        is_marked="step" in trace.kinds,
        is_compiled=NODE + "CompiledFunctionBackward" in trace.names,
        doubts=tuple(line for line in doubts if line),
    )


def overlap_ratio(computation: Sequence[Interval], communication: Sequence[Interval]) -> float | None:
    """Share of the time of communication kernels in which computation kernels run, as
    HolisticTraceAnalysis defines it; None without communication.
    """
    busy = length(communication)
    return intersection_length(computation, communication) / busy if busy else None


# Clocks of a microsecond blur shorter kernels.
SHORTEST_NS = 5_000
FEWEST_KERNELS = 20
_NEVER = 1 << 62


def _quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    ordered, count = sorted(ratios), len(ratios)
    return ordered[count // 4], ordered[count // 2], ordered[(3 * count) // 4]


def find_interference(steps: Sequence[Spans], communication: Sequence[Interval]) -> Slowdown | None:
    """The slow-down of kernels that lie within a collective in one step and clear of all in another.

    Args:
        steps: the lane's kernels of each step, in order.
        communication: when any collective was active, disjoint and ascending.

    Returns:
        None where fewer than ``FEWEST_KERNELS`` kernels were seen both ways.
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
    beside_ns = alone_ns = 0
    ratios: list[float] = []
    for place in np.flatnonzero(is_same & is_clear.any(0) & is_beside.any(0)):
        lasted = ends[:, place] - starts[:, place]
        alone = median_ns(lasted[is_clear[:, place]].tolist())
        beside = lasted[is_beside[:, place]].tolist()
        if alone >= SHORTEST_NS:
            beside_ns += sum(beside)
            alone_ns += alone * len(beside)
            ratios.append(median_ns(beside) / alone)
    if len(ratios) < FEWEST_KERNELS:
        return None
    return Slowdown(beside_ns / alone_ns, len(ratios), _quartiles(ratios))


# ---- several ranks on one clock

# With so many collectives in a step their ends tell the clocks step by step, and so their drift too.
_ENOUGH_FOR_A_STEP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One reduction of one step over the ranks that were traced; times by the first rank's clock.

    ``starts_ns``: by rank, in the ranks' order, when its kernel began, and ``was_queued`` whether another
    collective still ran there when the rank came to it. ``duration_ns``: the shortest kernel, which is the
    transfer itself, or an upper bound of it where ranks are missing.

    ``beside_ns``: how much of the shortest kernel lay before the end of its own rank's backward.
    ``is_shared``: another collective ran while it did. ``is_waitless``: probably no rank waited in it, as far
    as the rank with the shortest kernel can tell. There the kernel was queued behind another collective, and
    either was queued for at least as long as it then ran, or began after the end of backward.
    """

    step: int
    place: int
    num_bytes: int | None
    starts_ns: tuple[int, ...]
    was_queued: tuple[bool, ...]
    end_ns: int
    duration_ns: int
    beside_ns: int
    is_shared: bool
    is_waitless: bool

    def alone_ns(self, slowdown: float) -> int:
        """What it would have taken with nothing beside it."""
        return round(self.beside_ns / slowdown) + self.duration_ns - self.beside_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """Ranks on one clock.

    ``offsets_ns``: by step number and rank, what the rank's clock shows more than the first rank's.
    ``scatters_ns``: by rank, the largest distance of an aligned end from its collective's median.
    ``complete``: no rank of the group is missing.
    """

    complete: bool
    offsets_ns: Mapping[int, tuple[int, ...]]
    scatters_ns: tuple[int, ...]
    transfers: tuple[Transfer, ...]


def align(ranks: Sequence[SeenRank], by_rank: Sequence[Sequence[SeenStep]], world_size: int | None) -> Clocks:
    """Lay the ranks' clocks over each other by the ends of the collectives that reduce gradients.

    Args:
        ranks: of one job, at least one.
        by_rank: the steps of each that are compared, of the same numbers.
        world_size: how many ranks reduce together; None: unknown, and those given are taken for all.

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
    rows = list(zip(*by_rank, strict=True))  # by step, the same step of every rank
    ends = [
        np.array([[one.end_ns for one in step.reductions if one.timed] for step in row], np.int64).T
        for row in rows
    ]
    if len(ranks) > 1 and not any(map(len, ends)):
        raise InputError(f"{source}: no all-reduce of all ranks, which would tell their clocks apart")
    overall = _offsets(np.concatenate(ends))
    offsets = [_offsets(of_step) if len(of_step) >= _ENOUGH_FOR_A_STEP else overall for of_step in ends]
    aligned = np.concatenate([of_step - offset for of_step, offset in zip(ends, offsets, strict=True)])
    middles = np.array([median_ns(row) for row in aligned.tolist()], np.int64)[:, None]
    return Clocks(
        complete=len(ranks) == world_size if world_size is not None else len(ranks) > 1,
        offsets_ns={row[0].number: offset for row, offset in zip(rows, offsets, strict=True)},
        scatters_ns=tuple(abs(aligned - middles).max(0, initial=0).tolist()),
        transfers=tuple(
            _transfer(place, row, offset)
            for row, offset in zip(rows, offsets, strict=True)
            for place in range(len(row[0].reductions))
        ),
    )


def _offsets(ends: NDArray[np.int64]) -> tuple[int, ...]:
    """Each rank's clock minus the first's: the median over collectives (rows) of how much later it ends."""
    if not len(ends):
        return (0,) * len(ends.T)
    return tuple(median_ns(column) for column in (ends - ends[:, :1]).T.tolist())


def _transfer(place: int, steps: Sequence[SeenStep], offsets: Sequence[int]) -> Transfer:
    here = [step.reductions[place] for step in steps]
    came = [max(one.ready_ns or one.launched_ns, one.launched_ns) for one in here]
    was_queued = [
        any(other is not one and at < other.end_ns <= one.start_ns for other in step.collectives)
        for one, at, step in zip(here, came, steps, strict=True)
    ]
    shortest = min(range(len(here)), key=lambda rank: here[rank].duration_ns)
    kernel, step = here[shortest], steps[shortest]
    was_long = kernel.start_ns - came[shortest] >= kernel.duration_ns
    return Transfer(
        step=step.number,
        place=place,
        num_bytes=steps[0].reductions[place].num_bytes,
        starts_ns=tuple(one.start_ns - offset for one, offset in zip(here, offsets, strict=True)),
        was_queued=tuple(was_queued),
        end_ns=median_ns([one.end_ns - offset for one, offset in zip(here, offsets, strict=True)]),
        duration_ns=kernel.duration_ns,
        beside_ns=max(0, min(kernel.end_ns, step.backward_end_ns) - kernel.start_ns),
        is_shared=any(
            other is not kernel and other.start_ns < kernel.end_ns and kernel.start_ns < other.end_ns
            for other in step.collectives
        ),
        is_waitless=was_queued[shortest] and (was_long or kernel.start_ns >= step.backward_end_ns),
    )


def rank_rows(ranks: Sequence[SeenRank], clocks: Clocks) -> tuple[RankRow, ...]:
    """One row a rank: its clock, how often it came last, and how long it waited for the last.

    Only collectives count to which every rank came with an idle channel. Who came last is told only if the
    last rank came later than the last but one by more than the error of the clocks.
    """
    several = len(ranks) > 1
    telling = [
        one.starts_ns for one in clocks.transfers if several and clocks.complete and not any(one.was_queued)
    ]
    blur = 2 * max(clocks.scatters_ns)
    clear = [times.index(max(times)) for times in telling if max(times) - sorted(times)[-2] > blur]
    offsets = [median_ns(column) for column in zip(*clocks.offsets_ns.values(), strict=True)]
    return tuple(
        RankRow(
            rank=place if rank.trace.rank is None else rank.trace.rank,
            host=rank.trace.host,
            clock_offset_ns=offset + rank.trace.base_ns - ranks[0].trace.base_ns if several else None,
            clock_scatter_ns=scatter if several else None,
            collectives=len(clear),
            came_last=clear.count(place) if clear else None,
            waited_ns=median_ns([max(times) - times[place] for times in telling]) if telling else None,
            backward_ns=median_ns(
                [step.backward_ns for step in rank.steps if step.number in clocks.offsets_ns]
            ),
        )
        for place, (rank, offset, scatter) in enumerate(zip(ranks, offsets, clocks.scatters_ns, strict=True))
    )


# So many transfers within backward, and as many after it, a size must have to count: one that was late by
# chance then does not decide.
FEWEST = 3
# Sizes this close together are taken for one size; compared is the time a byte.
_ALIKE = 0.05
# A transfer counts as within backward, or as after it, though up to this share of it is not.
_SLIVER = 0.01
# How far the quartiles may be apart where ranks are missing. Beyond it the times contain waits for ranks,
# which differ from step to step as a slow-down does not.
_SCATTER = 0.15


def find_comm_slowdown(transfers: Sequence[Transfer], *, complete: bool = True) -> Slowdown | None:
    """The slow-down of transfers within backward; None where no size ran both within and after it.

    Transfers that share the wire with another collective are left out: their times say nothing of
    computation. Where traces of ranks are missing (``complete`` False), a time may contain the wait for such
    a rank: only transfers that seem to have waited for none count, and None is returned if these scatter.
    """
    told = [
        (one.num_bytes, one.beside_ns / one.duration_ns, one.duration_ns / one.num_bytes)
        for one in transfers
        if one.num_bytes and one.duration_ns and not one.is_shared and (complete or one.is_waitless)
    ]
    groups: list[list[tuple[int, float, float]]] = []
    for row in sorted(told, key=lambda row: row[0]):
        if not groups or row[0] > (1 + _ALIKE) * groups[-1][0][0]:
            groups.append([])
        groups[-1].append(row)
    singles: list[float] = []
    ratios: list[float] = []
    for group in groups:
        beside = [rate for _, share, rate in group if share >= 1 - _SLIVER]
        after = [rate for _, share, rate in group if share <= _SLIVER]
        if min(len(beside), len(after)) >= FEWEST:
            ratios.append(median(beside) / median(after))
            singles += [rate / median(after) for rate in beside]
    if not ratios:
        return None
    quartiles = _quartiles(singles)
    if not complete and quartiles[2] > (1 + _SCATTER) * quartiles[0]:
        return None
    return Slowdown(median(ratios), len(singles), quartiles)
