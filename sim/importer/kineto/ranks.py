"""Ranks: one file each, what is refused of it, and several of one job on one clock.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, median_low
from typing import NamedTuple

import numpy as np

from sim.errors import InputError, NotModelledError
from sim.importer.imported import Progress, RankRow, plain
from sim.importer.kineto.events import Spans, TraceEvents, between, busiest, read_events
from sim.importer.kineto.steps import Step, find_collectives, find_steps
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
_FEWEST_ACTIVATIONS, _SHARE = 4, 0.05


def _unread(trace: TraceEvents) -> str:
    """How many events are of categories that are not read, and which most."""
    shown = ", ".join(f"{plain(what, 40)} {count}" for what, count in trace.unread.most_common(3))
    return f"{trace.unread.total()} events of categories that are not read ({shown})"


def _refuse_unread_device(trace: TraceEvents, backend: str | None) -> None:
    """Refuse a trace whose computation ran on a device whose kernels are not in it (``InputError``), or
    cannot be read (``NotModelledError``): the CPU only launches them, and every time of it would be wrong.
    """
    if len(trace.of("computation")):
        return
    devices = {found[1].lower() for what in trace.unread if (found := _DEVICES.match(what))}
    called = map(_DEVICE_LIBRARY.match, map(trace.name_of, trace.operators))
    libraries = Counter(found[0] for found in called if found).most_common(2)
    unread = [
        devices and f"{_unread(trace)}, of a device that is not read ({', '.join(sorted(devices))})",
        trace.unread.total() >= _MANY and f"{_unread(trace)}, perhaps of another device",
    ]
    unseen = [
        ", ".join(f"{count} collectives of {name}" for name, count in libraries),
        _DEVICE_LIBRARY.fullmatch(backend or "") and f"the job's backend is {backend}",
        trace.launched >= _MANY and f"{trace.launched} launches of work for a device",
    ]
    if what := next(filter(None, [*unread, *unseen]), None):
        raise (NotModelledError if what in unread else InputError)(
            f"{trace.source}: {what}, and no kernel of a GPU: the CPU's times of such a job are those of "
            f"launches; profile with ProfilerActivity.CUDA as well (NVIDIA's and AMD's GPUs are read)"
        )


def _refuse_others(trace: TraceEvents, steps: Sequence[Step]) -> None:
    """Raise ``NotModelledError`` where gradients were not reduced as replicated data parallelism does."""
    step = steps[len(steps) // 2]
    counts = [Counter(one.kind for one in each.collectives if one.role != "before") for each in steps]
    # The median over the steps: a single one may hold collectives that belong to no step.
    kinds = Counter({kind: median_low([each[kind] for each in counts]) for kind in set().union(*counts)})
    scatters, points = kinds["reduce_scatter"], kinds["send"] + kinds["recv"] + kinds["send_recv"]
    sharded = next(filter(_FSDP.match, trace.names), None)
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
    count, sizes = median_low([len(each) for each in others]), [size for each in others for size in each]
    gradients = [one.num_elements for step in steps for one in step.reductions]
    told = gradients and None not in (*sizes, *gradients)
    is_little = told and sum(filter(None, sizes)) < _SHARE * sum(filter(None, gradients))
    return 0 if count < _FEWEST_ACTIVATIONS or is_little else count


# ---- one rank

# Kernels that are compared, at least; clocks of a microsecond blur shorter ones.
FEWEST_KERNELS, SHORTEST_NS = 20, 5_000
_NEVER = 1 << 62


class Slowdown(NamedTuple):
    """How many times as long some work takes beside other work, at least 1, as nothing is faster for what
    runs beside it; of how many kernels or transfers, with the ``quartiles`` of what was seen.
    """

    slowdown: float
    seen: int
    quartiles: tuple[float, float, float]


def _slowdown(ratio: float, ratios: Sequence[float]) -> Slowdown:
    ordered, count = sorted(ratios), len(ratios)
    quartiles = ordered[count // 4], ordered[count // 2], ordered[3 * count // 4]
    return Slowdown(max(1.0, ratio), count, quartiles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank: its complete steps, and what its device was busy with.

    ``trace`` has no spans any more. ``overlap``: the share of the time of communication kernels in which
    computation kernels run, as HolisticTraceAnalysis defines it; None without communication. ``doubts``:
    sentences on work of a device that the trace may not show.
    """

    trace: TraceEvents
    backend: str | None
    on_gpu: bool
    steps: tuple[Step, ...]
    overlap: float | None
    interference: Slowdown | None
    doubts: list[str]

    @property
    def device(self) -> str:
        """What computed."""
        return (self.trace.device or "GPU") if self.on_gpu else "CPU"


def read_rank(path: Path, progress: Progress) -> Rank:
    """Read one trace; what is not needed of it is gone when this returns.

    Raises:
        InputError: not a trace, or one without whole training steps.
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
    doubts = [f"{_unread(trace)}: if a device's, what it did is in no figure here"] if trace.unread else []
    if not on_gpu and trace.device:
        doubts.append(
            f"the trace lists {trace.device!r} and nothing that ran on it: taken for training on the CPU; if "
            f"it was not, profile with ProfilerActivity.CUDA as well"
        )
    return Rank(
        trace=replace(trace, gpu=trace.gpu[:0], operators=trace.operators[:0], facts=[]),
        backend=backend,
        on_gpu=on_gpu,
        steps=steps,
        overlap=intersection_length(computation, communication) / busy if busy else None,
        interference=find_interference(
            [between(lane, step.start_ns, step.end_ns) for step in steps], communication
        ),
        doubts=doubts,
    )


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
    return None if len(ratios) < FEWEST_KERNELS else _slowdown(beside_ns / alone_ns, ratios)


# ---- several ranks on one clock

# With so many collectives in a step their ends tell the clocks step by step, and so their drift too.
_ENOUGH_FOR_A_STEP = 3


class Transfer(NamedTuple):
    """One reduction of one step over the ranks that were traced; times by the first rank's clock.

    ``starts_ns``: by rank, when its kernel began; ``was_queued``: on some rank another collective still ran
    when the rank came to it. ``duration_ns``: the shortest kernel, which is the transfer itself, or an upper
    bound of it where ranks are missing; ``beside_ns`` of it lay before the end of that rank's backward, and
    ``is_shared``: another collective ran while it did. ``is_waitless``: probably no rank waited in it, as far
    as that rank can tell: the kernel was queued behind another collective there, and either was queued for at
    least as long as it then ran, or began after the end of backward.
    """

    num_bytes: int | None
    starts_ns: tuple[int, ...]
    was_queued: bool
    end_ns: int
    duration_ns: int
    beside_ns: int
    is_shared: bool
    is_waitless: bool

    def alone_ns(self, slowdown: float) -> int:
        """What it would have taken with nothing beside it."""
        return round(self.beside_ns / slowdown) + self.duration_ns - self.beside_ns


@dataclass(frozen=True, slots=True)
class Clocks:
    """Ranks on one clock.

    ``steps``: by rank, those that are compared, the same of each. By step, ``offsets_ns`` has for each rank
    what its clock shows more than the first rank's, and ``transfers`` one a reduction. ``scatters_ns``: by
    rank, the largest distance of an aligned end from its collective's median.
    """

    steps: Sequence[Sequence[Step]]
    offsets_ns: Sequence[Sequence[int]]
    scatters_ns: Sequence[int]
    transfers: Sequence[Sequence[Transfer]]


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
    rows = list(zip(*by_rank, strict=True))  # by step, the same step of every rank
    for rank, step, first in (
        (rank, step, row[0]) for row in rows for rank, step in zip(ranks, row, strict=True)
    ):
        sizes = [[one.num_elements for one in each.reductions] for each in (step, first)]
        told = [pair for pair in zip(*sizes, strict=False) if None not in pair]
        if len(sizes[0]) != len(sizes[1]) or any(one != other for one, other in told):
            raise InputError(
                f"{rank.trace.source}: step {step.number}: its all-reduces of gradients are not those of "
                f"{source}; give the traces of one job"
            )
    # By step, rank and reduction.
    ends = np.array([[[one.end_ns for one in step.reductions] for step in row] for row in rows], np.int64)
    is_timed = ends.size and all(one.timed for row in rows for step in row for one in step.reductions)
    if len(ranks) > 1 and not is_timed:
        raise InputError(f"{source}: no all-reduce of all ranks, which would tell their clocks apart")
    # Each rank's clock minus the first's: the median over collectives of how much later it ends.
    later = ends - ends[:, :1]
    together = [later[:, place].ravel().tolist() for place in range(len(ranks))]
    offsets = [
        [median_ns(each or [0]) for each in (one.tolist() if len(one.T) >= _ENOUGH_FOR_A_STEP else together)]
        for one in later
    ]
    aligned = ends - np.array(offsets)[:, :, None]
    middles = np.array([[median_ns(one) for one in step.T.tolist()] for step in aligned], np.int64)
    return Clocks(
        steps=by_rank,
        offsets_ns=offsets,
        scatters_ns=abs(aligned - middles[:, None]).max((0, 2), initial=0).tolist(),
        transfers=[
            [_transfer(place, row, offset) for place in range(len(row[0].reductions))]
            for row, offset in zip(rows, offsets, strict=True)
        ],
    )


def _transfer(place: int, steps: Sequence[Step], offsets: Sequence[int]) -> Transfer:
    here = [step.reductions[place] for step in steps]
    came = [max(one.ready_ns, one.launched_ns) for one in here]
    was_queued = [
        any(other is not one and at < other.end_ns <= one.start_ns for other in step.collectives)
        for one, at, step in zip(here, came, steps, strict=True)
    ]
    shortest = min(range(len(here)), key=lambda rank: here[rank].duration_ns)
    kernel, step = here[shortest], steps[shortest]
    was_long = kernel.start_ns - came[shortest] >= kernel.duration_ns
    return Transfer(
        num_bytes=here[0].num_bytes,
        starts_ns=tuple(one.start_ns - offset for one, offset in zip(here, offsets, strict=True)),
        was_queued=any(was_queued),
        end_ns=median_ns([one.end_ns - offset for one, offset in zip(here, offsets, strict=True)]),
        duration_ns=kernel.duration_ns,
        beside_ns=max(0, min(kernel.end_ns, step.backward_end_ns) - kernel.start_ns),
        is_shared=any(
            other is not kernel and other.start_ns < kernel.end_ns and kernel.start_ns < other.end_ns
            for other in step.collectives
        ),
        is_waitless=was_queued[shortest] and (was_long or kernel.start_ns >= step.backward_end_ns),
    )


def rank_rows(ranks: Sequence[Rank], clocks: Clocks, *, complete: bool) -> tuple[RankRow, ...]:
    """One row a rank: its clock, how often it came last, and how long it waited for the last.

    Where no rank is missing collectives count to which every rank came with an idle channel. Who came last is
    told only if it came later than the last but one by more than the error of the clocks.
    """
    several = len(ranks) > 1
    every = (one for of_step in clocks.transfers for one in of_step)
    telling = [one.starts_ns for one in every if several and complete and not one.was_queued]
    blur = 2 * max(clocks.scatters_ns)
    clear = [times.index(max(times)) for times in telling if max(times) - sorted(times)[-2] > blur]
    return tuple(
        RankRow(
            rank=place if rank.trace.rank is None else rank.trace.rank,
            host=rank.trace.host,
            clock_offset_ns=median_ns(offset) + rank.trace.base_ns - ranks[0].trace.base_ns
            if several
            else None,
            clock_scatter_ns=clocks.scatters_ns[place] if several else None,
            collectives=len(clear),
            came_last=clear.count(place) if clear else None,
            waited_ns=median_ns([max(times) - times[place] for times in telling]) if telling else None,
            backward_ns=median_ns([step.backward_ns for step in clocks.steps[place]]),
        )
        for place, (rank, offset) in enumerate(zip(ranks, zip(*clocks.offsets_ns, strict=True), strict=True))
    )


# So many transfers within backward, and as many after it, a size must have to count: one that was late by
# chance then does not decide. Sizes this close together are one size. A transfer is within backward, or after
# it, though up to a sliver of it is not. Where ranks are missing, quartiles further apart than this tell of
# waits for them, which differ from step to step as a slow-down does not.
FEWEST, _ALIKE, _SLIVER, _SCATTER = 3, 0.05, 0.01, 0.15


def find_comm_slowdown(clocks: Clocks, *, complete: bool) -> Slowdown | None:
    """The slow-down of transfers within backward, by their time a byte; None where no size ran both ways.

    Transfers that share the wire with another collective say nothing of computation. Where ranks are missing
    a time may contain the wait for them: only transfers that seem to have waited for none count, if these do
    not scatter.
    """
    told = [
        (one.num_bytes, one.beside_ns / one.duration_ns, one.duration_ns / one.num_bytes)
        for of_step in clocks.transfers
        for one in of_step
        if one.num_bytes and one.duration_ns and not one.is_shared and (complete or one.is_waitless)
    ]
    groups = list[list[tuple[int, float, float]]]()
    for row in sorted(told, key=lambda row: row[0]):
        if not groups or row[0] > (1 + _ALIKE) * groups[-1][0][0]:
            groups.append([])
        groups[-1].append(row)
    singles, ratios = list[float](), list[float]()
    for group in groups:
        beside = [rate for _, share, rate in group if share >= 1 - _SLIVER]
        after = [rate for _, share, rate in group if share <= _SLIVER]
        if min(len(beside), len(after)) >= FEWEST:
            ratios.append(median(beside) / median(after))
            singles += [rate / median(after) for rate in beside]
    if not ratios:
        return None
    found = _slowdown(median(ratios), singles)
    is_apart = found.quartiles[2] > (1 + _SCATTER) * found.quartiles[0]
    return None if is_apart and not complete else found
