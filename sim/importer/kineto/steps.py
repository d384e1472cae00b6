"""One rank's training steps: where backward begins and ends, when gradients are ready, what was reduced; and
what is refused of them.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median_low
from typing import Literal, NamedTuple

import numpy as np

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.events import Spans, Times, TraceEvents, between, busiest, collective_of, read_events
from sim.metrics.intervals import Interval, intersection_length, length, union
from sim.nouns.devices import backend_of
from sim.nouns.workload import DTYPE_BYTES
from sim.units import median_ns

ASSUMED_DTYPE = "float32"  # where the trace names none
_NEVER = 1 << 62
_MAP_DTYPES = ("int32", "int64")
Role = Literal["gradients", "earlier", "other"]


@dataclass(slots=True, kw_only=True, eq=False)
class Collective:
    """One collective: its kernel's span, and when the CPU launched it, by which thread (-1: not shown).

    ``timed``: ``start_ns`` and ``end_ns`` are those of the collective itself, of its kernel or of gloo's
    thread; otherwise (world size 1) they are those of the call.

    ``role`` says what it carried. ``gradients``: sent by the hooks of the step's last backward, or at its
    end, after the last gradient; then ``ready_ns`` is when the compute lane came to its launch. ``earlier``:
    the same of the micro-batches before, and the map of ``find_unused_parameters``. ``other``: all else, such
    as activations, embeddings and buffers.
    """

    kind: str
    role: Role = "other"
    thread: int
    launched_ns: int
    ready_ns: int = 0
    start_ns: int
    end_ns: int
    num_elements: int | None
    dtype: str | None
    timed: bool
    group_size: int | None

    @property
    def duration_ns(self) -> int:
        """How long the kernel was resident: its transfer, and its wait for the last rank."""
        return self.end_ns - self.start_ns

    @property
    def num_bytes(self) -> int | None:
        """Bytes of it; None where the trace does not say how many elements it had."""
        each = DTYPE_BYTES[self.dtype or ASSUMED_DTYPE]
        return None if self.num_elements is None else self.num_elements * each


class SeenGradient(NamedTuple):
    """One gradient in hook order: when the compute lane had it, and its copy in a bucket.

    ``hooked_at_ns`` is when AccumulateGrad ended on the CPU; ``shape`` and ``dtype`` are None where the trace
    has none; ``is_copied``: DDP is seen to copy it.
    """

    ready_ns: int
    hooked_at_ns: int
    shape: tuple[int, ...] | None
    dtype: str | None
    is_copied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One training step on the device.

    ``backward_end_ns`` is the end of the compute lane's backward, DDP's copies into buckets in it;
    ``sync_end_ns`` the end of the last copy out of a bucket, or of the last collective. ``copy_out_ns`` is
    the part of it that copies out take, with waits for the CPU to launch them, without waits for collectives.
    ``reductions`` are the all-reduces of the last backward's gradients, in launch order, ``collectives`` all.
    ``has_models``: an optimizer's step lies between its ``micro_batches``.
    """

    number: int
    start_ns: int
    end_ns: int
    backward_start_ns: int
    backward_end_ns: int
    sync_end_ns: int
    copy_in_ns: int
    copy_out_ns: int
    micro_batches: int
    gradients: tuple[SeenGradient, ...]
    reductions: tuple[Collective, ...]
    collectives: tuple[Collective, ...]
    has_models: bool

    @property
    def backward_ns(self) -> int:
        """How long backward took."""
        return self.backward_end_ns - self.backward_start_ns


# ---- collectives: kernels joined with the operators that launched them, where sizes stand


def find_collectives(trace: TraceEvents) -> list[Collective]:
    """Every collective by launch; ``role`` is still ``other``.

    There is one a communication kernel that was launched since the trace began. Where the trace has none
    (world size 1, gloo), there is one an annotation: gloo's last from when a thread of gloo's takes them;
    a queue feeds those threads, so that one is of the earliest call of c10d of this collective and as many
    elements. Of others only the call is seen.
    """
    calls, kernels, found = trace.of("call"), trace.of("communication"), list[Collective]()
    threads = {thread: calls[calls["lane"] == thread] for thread in np.unique(calls["lane"]).tolist()}

    def add(seen: np.void, at_ns: int, thread: int, *, timed: bool) -> None:
        """From a span, and the operators around its launch, the innermost first; they nest a few deep."""
        of_thread = threads.get(thread, calls[:0])
        place = np.searchsorted(of_thread["start"], at_ns, "right")
        near = of_thread[max(0, place - 8) : place][::-1]
        around = near[near["end"] >= at_ns]
        facts = [trace.facts[one["facts"]] for one in (seen, *around)]
        sized = next((one for one in facts if one.elements is not None), trace.facts[0])
        named = [next((one.collective for one in facts if one.collective is not None), None)]
        named += [trace.names[one["name"]].split(":", 1)[-1] for one in around]
        kind = collective_of(trace.names[seen["name"]], *named)
        if kind == "send_recv":  # an all-to-all, a send or a receive: the operator knows
            kind = collective_of(*named) or kind
        found.append(
            Collective(
                kind=kind or "other",
                thread=thread,
                launched_ns=at_ns,
                start_ns=int(seen["start"]),
                end_ns=int(seen["end"]),
                num_elements=sized.elements,
                dtype=sized.dtype,
                timed=timed,
                group_size=next((one.group_size for one in facts if one.group_size), None),
            )
        )

    def sent(call: np.void) -> tuple[str | None, int | None]:
        return collective_of(trace.names[call["name"]].split(":")[-1]), trace.facts[call["facts"]].elements

    began = kernels["start"][kernels["by"] >= 0][:1].tolist() or [trace.began_ns or 0]
    for kernel in kernels[(kernels["by"] >= 0) | (kernels["start"] >= began[0])]:
        add(kernel, int(kernel["launched"]), int(kernel["by"]), timed=True)
    waiting = defaultdict[object, list[np.void]](list)
    for call in calls[::-1] if not len(kernels) else ():
        if trace.names[call["name"]].startswith("c10d::"):
            waiting[sent(call)].append(call)
    for one in calls if not len(kernels) else ():
        library, at, by = trace.names[one["name"]].partition(":")[0], int(one["start"]), int(one["lane"])
        queue = waiting[sent(one)] if library == "gloo" else []
        call = queue.pop() if queue and queue[-1]["start"] <= at else one
        if call["lane"] != by or library in ("gloo", "nccl", "rccl"):
            add(one, int(call["start"]), int(call["lane"]), timed=bool(call["lane"] != by))
    return sorted(found, key=lambda one: (one.launched_ns, one.start_ns))


# ---- steps


class _Window(NamedTuple):
    """A step on the CPU."""

    number: int
    start_ns: int
    end_ns: int


class _Backward(NamedTuple):
    """A backward on the CPU, from its first node to the end of its last; ``until_ns`` is when the optimizer
    began, or the step ended. ``inside``: its AccumulateGrads; ``hooks``: the engine's calls around them, none
    in older traces.
    """

    start_ns: int
    end_ns: int
    until_ns: int
    inside: slice
    hooks: Spans


class _Reader:
    """Reads step after step of one trace.

    ``lane`` is what the device ran of autograd's thread on the stream that this thread keeps busiest, by
    launch (None without a GPU), and ``reached`` when the stream had finished all up to each of it.
    """

    def __init__(self, trace: TraceEvents) -> None:
        (thread, _), *_ = Counter(trace.of("accumulate")["lane"].tolist()).most_common(1)
        self._trace, self._thread, self._collectives = trace, thread, find_collectives(trace)
        self._accumulated, self._hooks, self._nodes, self._copies_in, self._copies_out = (
            found[found["lane"] == thread]
            for found in map(trace.of, ("accumulate", "hook", "node", "copy_in", "copy_out"))
        )
        self._optimizer_at = trace.of("optimizer")["start"]
        device = trace.gpu[(trace.gpu["by"] >= 0) & ~trace.are(trace.gpu, "communication")]
        self._device = device = device[np.lexsort((device["start"], device["launched"]))]
        lane = device[device["by"] == thread]
        self._stream = busiest(lane)
        lane = lane[lane["lane"] == self._stream]
        self._lane = lane if len(trace.gpu) else None
        self._reached = np.maximum.accumulate(lane["end"])
        self._ours = ours = device[device["lane"] == self._stream]
        forward = ours[(ours["by"] != thread) & trace.are(ours, "computation")]["launched"]
        self._forward_at = np.sort([*trace.of("forward")["start"], *forward])
        # Of each AccumulateGrad: until when on the CPU the lane's work for it was launched, whether DDP
        # copied it in the engine's call around it, and how long copies into buckets took (ns): the lane's
        # work there, or DDP's own operators on the CPU.
        ended, copies = self._accumulated["end"], self._copies_in
        place = np.searchsorted(self._hooks["start"], self._accumulated["start"], "right")
        hooked = np.concatenate([[-_NEVER], self._hooks["end"]])[place]
        hooked = np.where(hooked >= ended, hooked, ended)
        first, last = (np.searchsorted(copies["start"], at) for at in (ended, hooked))
        self._is_copied, self._until_at, work, at = first < last, hooked, lane, lane["launched"]
        if self._lane is None:
            work, at = copies, copies["start"]
            self._until_at = np.where(self._is_copied, np.append(ended[:1], copies["end"])[last], ended)
        done = np.cumsum([0, *(work["end"] - work["start"])])
        first, last = (np.searchsorted(at, until, "right") for until in (ended, hooked))
        self._copied_ns = done[last] - done[first]

    def steps(self) -> tuple[Step, ...]:
        """The whole steps of the trace, in order; their collectives get their roles."""
        windows = self._windows()
        begins = pairwise([*map(self._first_work, windows), None])
        found = (self._read(window, *edges) for window, edges in zip(windows, begins, strict=True))
        return tuple(step for step in found if step is not None)

    def _windows(self) -> list[_Window]:
        """Steps: the profiler's own, else from an optimizer step to the next. ``InputError`` without both."""
        trace = self._trace
        marked = {
            (int(one["start"]), int(one["end"]), int(trace.names[one["name"]].partition("#")[2]))
            for one in trace.of("step")
        }
        if marked:
            return [_Window(number, start, end) for start, end, number in sorted(marked)]
        ends = np.sort(trace.of("optimizer")["end"])
        if not len(ends):
            raise InputError(
                f"{trace.source}: nothing tells where a step begins; call profiler.step() each iteration"
            )
        # Of several optimizer steps with no backward between them only the last ends a training step.
        last = {*np.searchsorted(ends, self._accumulated["start"]).tolist(), len(ends)} - {0}
        edges = pairwise([trace.began_ns or 0, *(int(ends[place - 1]) for place in sorted(last))])
        return [_Window(number, *edge) for number, edge in enumerate(edges)]

    def _backwards(self, window: _Window) -> list[_Backward]:
        """The backwards of a step; what comes before the optimizer belongs to the last.

        A new one begins where a forward lies between two AccumulateGrads: its annotation, or a launch by a
        thread other than autograd's.
        """
        accumulated, at = between(self._accumulated, window.start_ns, window.end_ns), self._forward_at
        skipped = int(np.searchsorted(self._accumulated["start"], window.start_ns))
        if not len(accumulated):
            return []
        following = np.append(at, _NEVER)[np.searchsorted(at, accumulated["end"][:-1], "right")]
        cuts = np.flatnonzero(following < accumulated["start"][1:])
        borders = zip((cuts + 1).tolist(), following[cuts].tolist(), strict=True)
        edges = [(0, window.start_ns), *borders, (len(accumulated), window.end_ns)]
        found = []
        for (place, since), (stop, over) in pairwise(edges):
            inside = accumulated[place:stop]
            ran = np.concatenate([between(spans, since, over) for spans in (self._hooks, self._nodes)])
            last = int(inside["end"][-1])
            begin = min([int(inside["start"][0]), *ran["start"].tolist()])
            end = min(max([last, *ran["end"].tolist()]), max(over, last))
            hooks, places = between(self._hooks, begin, end), slice(skipped + place, skipped + stop)
            found.append(_Backward(begin, end, self._until(end, over), places, hooks))
        return found

    def _until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        later = self._optimizer_at[np.searchsorted(self._optimizer_at, end_cpu, "right") :][:1]
        return min([window_end, *map(int, later)])

    def _read(self, window: _Window, start_ns: int | None, end_ns: int | None) -> Step | None:
        """A step from its first work to the next one's, on the CPU alone as it is marked; None where its
        forward or its backward is not in the trace, or not all of it.
        """
        backwards = self._backwards(window)
        if not backwards:
            return None
        backward = backwards[-1]
        # Forward is the device's work by another thread than autograd's, where there is one.
        forward = self._forward_at if len(self._forward_at) else self._ours["launched"]
        is_before = (forward >= window.start_ns) & (forward < backwards[0].start_ns)
        if self._lane is not None and not is_before.any():
            self._trace.dropped["steps without their forward in the trace"] += 1
            return None
        begin, end = backward.start_ns, backward.end_ns
        if self._lane is None:
            start_ns, end_ns = window.start_ns, window.end_ns
        else:
            work = self._work(begin, end)
            if start_ns is None or work.start == work.stop:
                return None
            begin = int(self._lane["start"][work.start])
            end = max(int(self._reached[work.stop - 1]), begin)
            end_ns = end_ns or max([window.end_ns, *self._launched_in(window)["end"].tolist()])
        gradients = [self._gradients(one, begin) for one in backwards]
        found = [one for one in self._collectives if window.start_ns <= one.launched_ns < window.end_ns]
        reduced = [self._reduced(found, *pair) for pair in zip(gradients, backwards, strict=True)]
        for one in reduced[-1]:
            one.role, one.ready_ns = "gradients", int(self._reach(np.array([one.launched_ns]), begin)[0])
            if not one.timed and self._lane is not None:
                one.start_ns = one.end_ns = one.ready_ns
        ends = sorted(one.end_ns for one in found if one.role != "other")
        copy_out, out_end = self._copy_out(backward, end, ends)
        sync_end = max([end, out_end, *ends])
        return Step(
            number=window.number,
            start_ns=min(start_ns, begin),
            end_ns=max(end_ns, sync_end),
            backward_start_ns=begin,
            backward_end_ns=end,
            sync_end_ns=sync_end,
            copy_in_ns=int(self._copied_ns[backward.inside].sum()),
            copy_out_ns=copy_out,
            micro_batches=len(backwards),
            gradients=gradients[-1],
            reductions=tuple(reduced[-1]),
            collectives=tuple(found),
            has_models=self._until(backwards[0].end_ns, backward.start_ns) < backward.start_ns,
        )

    def _first_work(self, window: _Window) -> int | None:
        """When the device began a step; what other streams do while the lane's is still at the step before
        (copies of the next batch) is ahead of it. None: it did nothing.
        """
        launched = self._launched_in(window)
        ours = launched["start"][launched["lane"] == self._stream]
        if not len(ours):
            return None
        first, begin = int(launched["start"][0]), int(ours[0])
        gpu = self._trace.gpu
        is_busy = (gpu["lane"] == self._stream) & (gpu["start"] < begin) & (gpu["end"] > first)
        return begin if is_busy.any() else min(first, begin)

    def _launched_in(self, window: _Window) -> Spans:
        first, last = np.searchsorted(self._device["launched"], (window.start_ns, window.end_ns))
        return self._device[first:last]

    # ---- what the lane did

    def _reach(self, times_ns: Times, begin: int) -> Times:
        """When the lane had finished all that was launched up to times of the CPU, from ``begin`` on."""
        if self._lane is None:
            return times_ns
        place = np.searchsorted(self._lane["launched"], times_ns, "right")
        return np.maximum(begin, np.where(place > 0, self._reached[place - 1], begin))

    def _work(self, start_ns: int, end_ns: int) -> slice:
        """What of the lane was launched in a span of the CPU's time, with its ends."""
        assert self._lane is not None
        launched = self._lane["launched"]
        return slice(np.searchsorted(launched, start_ns), np.searchsorted(launched, end_ns, "right"))

    def _copy_out(self, backward: _Backward, backward_end: int, ends: Sequence[int]) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives, which ended at
        ``ends``, are not counted: a copy waited for what ended before its middle, as clocks are coarse.
        Traces too old to name copies: all that the lane does before the optimizer.
        """
        if not ends:
            return 0, backward_end
        copies = between(self._copies_out, backward.end_ns, backward.until_ns)
        if self._lane is not None:
            until = max([backward.end_ns, *copies["end"].tolist()])
            copies = self._lane[self._work(backward.end_ns + 1, until)]
        added, free = 0, backward_end
        for start, end in zip(copies["start"].tolist(), copies["end"].tolist(), strict=True):
            arrived = max((one for one in ends if one <= (start + end) // 2), default=free)
            added += max(0, end - max(free, min(start, arrived)))
            free = max(free, end)
        return added, free

    def _gradients(self, backward: _Backward, begin: int) -> tuple[SeenGradient, ...]:
        inside = self._accumulated[backward.inside]
        ready = self._reach(self._until_at[backward.inside], begin).tolist()
        facts = [self._trace.facts[place] for place in inside["facts"]]
        told = ([one.shape for one in facts], [one.dtype for one in facts])
        copied = self._is_copied[backward.inside].tolist()
        return tuple(map(SeenGradient, ready, inside["end"].tolist(), *told, copied))

    # ---- which collectives reduced gradients, told from losses, norms, metrics and activations

    def _reduced(
        self, found: Sequence[Collective], gradients: Sequence[SeenGradient], backward: _Backward
    ) -> list[Collective]:
        """Those collectives of a step that reduced a backward's gradients, with their role.

        DDP reduces in hooks: once one is seen there, a later one is a loss, a norm or a metric. Where none
        is, or the trace is too old to show hooks, those after the last gradient are taken, too. A compiled
        backward sends one a gradient within a node of its own.
        """
        first, last = self._accumulated[backward.inside]["start"][[0, -1]].tolist()
        has_hooks = len(backward.hooks) > 0
        sent = [one for one in found if one.role == "other" and one.launched_ns < backward.until_ns]
        inside = [one for one in sent if one.kind in ("all_reduce", "coalesced") and first <= one.launched_ns]
        for one in inside:
            one.role = "earlier" if one.dtype in _MAP_DTYPES else "other"
        inside = [one for one in inside if one.role == "other"]
        hooked = [
            one for one in inside if (one.launched_ns <= last or has_hooks) and self._from_hook(one, backward)
        ]
        if not (hooked and has_hooks):
            # A single element is a loss or a norm, unless nothing else is sent.
            after = [one for one in inside if one.launched_ns > last and one not in hooked]
            is_all = all(one.num_elements == 1 for one in (*hooked, *after))
            hooked += [one for one in after if is_all or one.num_elements != 1]
        if not hooked:
            nodes = [one for one in sent if one.kind == "all_reduce" and backward.start_ns <= one.launched_ns]
            hooked = nodes if len(nodes) == len(gradients) else []
        for one in hooked:
            one.role = "earlier"
        return hooked

    def _from_hook(self, one: Collective, backward: _Backward) -> bool:
        """Whether an AccumulateGrad's hook sent it; where the engine's calls are not there, no other node."""
        if one.thread != self._thread:
            return one.launched_ns < backward.end_ns
        operators = backward.hooks if len(backward.hooks) else self._nodes
        place = np.searchsorted(operators["start"], one.launched_ns, "right")
        is_within = bool((operators["end"][max(0, place - 2) : place] >= one.launched_ns).any())
        return is_within == (len(backward.hooks) > 0)


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


def _refuse_untold(trace: TraceEvents, backend: str | None) -> None:
    """Refuse a trace that shows no training, or nothing of what its device computed, or not so that it can be
    read: the CPU only launches that, and every time of it would be wrong.
    """
    called = (_DEVICE_LIBRARY.match(trace.names[one["name"]]) for one in trace.of("call"))
    libraries = [found[0] for found in called if found]
    signs = [
        libraries and f"{len(libraries)} collectives of {libraries[0]}",
        _DEVICE_LIBRARY.fullmatch(backend or "") and f"the job's backend is {backend}",
        trace.launched >= _MANY and f"{trace.launched} launches, or events of categories that are not read",
    ]
    sign = None if len(trace.of("computation")) else next(filter(None, signs), None)
    rows = [
        sign
        and f"{sign}, and no kernel of a GPU: the CPU's times of such a job are those of launches; profile "
        f"with ProfilerActivity.CUDA as well (NVIDIA's and AMD's GPUs are read)",
        trace.began_ns is None
        and "no CPU operators in it, which tell backward from forward; profile with ProfilerActivity.CPU",
    ]
    if why := next(filter(None, rows), None):
        raise InputError(f"{trace.source}: {why}")
    if not len(trace.of("accumulate")):
        why = "accumulates no gradient" if len(trace.of("node")) else "is not in it: inference, forward alone"
        raise NotModelledError(f"{trace.source}: backward {why}; give a whole trace of training")


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
    device: str
    steps: tuple[Step, ...]
    overlap: float | None
    interference: tuple[float, int] | None


def read_rank(path: Path) -> Rank:
    """Read one trace; what is not needed of it is gone when this returns. ``InputError`` for what is no whole
    trace of training, ``NotModelledError`` for what is no data parallelism by DDP.
    """
    trace = read_events(path)
    on_gpu = len(trace.gpu) > 0
    backend = trace.backend and backend_of(trace.backend, "cuda" if on_gpu else "cpu")
    _refuse_untold(trace, backend)
    steps = _Reader(trace).steps()
    if not steps:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
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
        device=(trace.device or "GPU") if on_gpu else "CPU",
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
