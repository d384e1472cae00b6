"""One rank's training steps out of its trace: where backward begins and ends, and when gradients are ready.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.collectives import Role, SeenCollective, shape_of
from sim.importer.kineto.events import (
    Spans,
    Times,
    TraceEvents,
    between,
    busiest,
    is_communication,
    is_computation,
    torch_dtype,
)
from sim.metrics.intervals import union


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGradient:
    """One gradient in hook order: when the compute lane had it, and its copy in a bucket.

    ``hooked_at_ns`` is when AccumulateGrad ended on the CPU; ``shape`` and ``dtype`` are None where the trace
    has none; ``reduced`` says whether DDP copied it, None where that cannot be seen.
    """

    ready_ns: int
    hooked_at_ns: int
    shape: tuple[int, ...] | None
    dtype: str | None
    reduced: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """One training step on the device.

    ``backward_end_ns`` is the end of the compute lane's backward, DDP's copies into buckets in it;
    ``sync_end_ns`` the end of the last copy out of a bucket, or of the last collective. ``copy_out_ns`` is
    the part of it that copies out take, with waits for the CPU to launch them, without waits for collectives.
    ``synchronised_batches`` of the ``micro_batches`` were reduced; ``other_backwards`` of them are of
    another model than the last, or lie before an optimizer's step. ``busy_ns`` is how long the lane worked in
    the last backward, ``plain_busy_ns`` in each backward before it, if only the last one was reduced.
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
    collectives: tuple[SeenCollective, ...]
    synchronised_batches: int = 0
    other_backwards: int = 0
    busy_ns: int = 0
    plain_busy_ns: tuple[int, ...] = ()

    @property
    def reductions(self) -> tuple[SeenCollective, ...]:
        """The all-reduces of the last backward's gradients, in launch order."""
        return tuple(one for one in self.collectives if one.role == "gradients")


@dataclass(frozen=True, slots=True)
class _Window:
    """A step on the CPU; ``cut``: it begins with the trace, perhaps in the midst of the step."""

    number: int
    start_ns: int
    end_ns: int
    cut: bool = False


@dataclass(frozen=True, slots=True)
class _Backward:
    """A backward on the CPU.

    ``hooks`` are the engine's calls around AccumulateGrads (none in older traces), ``nodes`` the operators
    of other functions, both by start; ``until_ns`` is when the optimizer, or DDP's first copy out, began.
    """

    start_ns: int
    end_ns: int
    until_ns: int
    accumulated: Spans
    hooks: Spans
    nodes: Spans


def find_accumulations(trace: TraceEvents) -> tuple[Spans, int]:
    """The AccumulateGrads of a trace, by start, and how many of them only the engine's call of one shows.

    A sampled trace leaves out what is inside; the call then stands for it: at its start, as all that it does
    later are hooks.
    """
    found, calls = trace.of("accumulate"), trace.of("hook")
    is_alone = np.ones(len(calls), bool)
    for thread in np.unique(calls["lane"]):
        inside, here = found["start"][found["lane"] == thread], calls["lane"] == thread
        first = np.searchsorted(inside, calls["start"][here])
        is_alone[here] = first == np.searchsorted(inside, calls["end"][here], "right")
    alone = calls[is_alone]
    alone["end"] = alone["start"]
    both = np.concatenate([found, alone])
    return both[np.argsort(both["start"], kind="stable")], len(alone)


def find_steps(trace: TraceEvents, collectives: Sequence[tuple[SeenCollective, int]]) -> tuple[SeenStep, ...]:
    """The steps of a trace, whole ones only, in order; ``collectives`` are those of ``find_collectives``.

    Raises:
        NotModelledError: no backward in it: inference, or a forward alone.
        InputError: no operators, or nothing that tells where a step begins and ends.
    """
    if trace.began_ns is None:
        raise InputError(
            f"{trace.source}: no CPU operators in it, which tell backward from forward; profile with "
            f"ProfilerActivity.CPU as well"
        )
    accumulated, _ = find_accumulations(trace)
    if not len(accumulated):
        if nodes := len(trace.of("node")):
            raise NotModelledError(
                f"{trace.source}: backward accumulates no gradient (of {nodes} nodes of autograd in it none "
                f"is a torch::autograd::AccumulateGrad): nothing is trained by it, or the trace leaves it out"
            )
        raise NotModelledError(
            f"{trace.source}: no backward in it: an inference trace, or a forward alone; give one of training"
        )
    (thread, _), *_ = Counter(accumulated["lane"].tolist()).most_common(1)
    accumulated = accumulated[accumulated["lane"] == thread]
    reader = _Reader(trace, accumulated, collectives)
    windows = reader.windows()
    whole: list[SeenStep] = []
    for window, following in zip(windows, [*windows[1:], None], strict=True):
        step = reader.read(window, following, whole[-1].sync_end_ns if whole else None)
        if step is not None:
            whole.append(step)
    if not whole:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
    return tuple(whole)


_ALWAYS = 1 << 62


class _Reader:
    """Reads step after step of one trace.

    ``lane`` is what the device ran of autograd's thread on the stream that this thread keeps busiest, by
    launch (None without a GPU), and ``reached`` when the stream had finished all up to each of it.
    """

    def __init__(
        self, trace: TraceEvents, accumulated: Spans, collectives: Sequence[tuple[SeenCollective, int]]
    ) -> None:
        self._trace, self._accumulated, self._collectives = trace, accumulated, collectives
        self._collectives_at = [one.launched_ns for one, _ in collectives]
        thread = accumulated["lane"][0]
        here = {kind: found[found["lane"] == thread] for kind in _HERE for found in (trace.of(kind),)}
        self._hooks, self._nodes = here["hook"], here["node"]
        self._copies_in, self._copies_out = here["copy_in"], here["copy_out"]
        self._optimizer_at = trace.of("optimizer")["start"]
        self._ddp_forward_at = forward = trace.of("forward")["start"]
        device = trace.running(lambda name: not is_communication(name))
        device = device[device["by"] >= 0]
        self._device = device[np.lexsort((device["start"], device["launched"]))]
        is_autograds = self._device["by"] == thread
        lane = self._device[is_autograds]
        stream = busiest(lane)
        lane = lane[lane["lane"] == stream]
        self._lane = lane if len(trace.gpu) else None
        self._reached = np.maximum.accumulate(lane["end"])
        self._worked = np.cumsum([0, *(lane["end"] - lane["start"])])
        self._stream = trace.gpu[trace.gpu["lane"] == stream]
        self._is_ours = self._device["lane"] == stream
        forward_work = self._is_ours & ~is_autograds & trace.ran(self._device, is_computation)
        self._forward_at = np.sort([*forward, *self._device["launched"][forward_work]])

    # ---- windows

    def windows(self) -> list[_Window]:
        """Steps: the profiler's own, else from one optimizer step to the next, else the whole trace as one.

        Raises:
            InputError: nothing tells where a step begins.
        """
        operators, names, accumulated = self._trace.operators, self._trace.names, self._accumulated
        marked = {
            (int(one["start"]), int(one["end"]), int(names[one["name"]].partition("#")[2]))
            for one in self._trace.of("step")
        }
        if marked:
            return [_Window(number, start, end) for start, end, number in sorted(marked)]
        assert self._trace.began_ns is not None
        begin = min(int(operators["start"].min()), self._trace.began_ns)
        ends = np.sort(self._trace.of("optimizer")["end"])
        # Of several optimizer steps with no backward between them only the last ends a training step.
        backward = set(np.searchsorted(ends, accumulated["start"]))
        kept = [int(end) for place, end in enumerate(ends, 1) if place in backward or place == len(ends)]
        if kept:
            edges = pairwise([begin, *kept])
            return [_Window(number, *edge, cut=number == 0) for number, edge in enumerate(edges)]
        backwards = len(self._backwards(_Window(0, -_ALWAYS, _ALWAYS)))
        pauses = accumulated["start"][1:] - accumulated["end"][:-1]
        lasted = accumulated["end"][-1] - accumulated["start"][0]
        # A pause of over a third of its time may be a forward between several backwards.
        if backwards == 1 and not (pauses > lasted / 3).any():
            return [_Window(0, begin, int(operators["end"].max()), cut=True)]
        raise InputError(
            f"{self._trace.source}: {max(backwards, 2)} backwards or more in it, and nothing tells where a "
            f"step begins; call prof.step() after each step, or profile with the optimizer's step in it"
        )

    # ---- backwards

    def _backwards(self, window: _Window) -> list[_Backward]:
        """The backwards of a step; what comes before the optimizer belongs to the last.

        A new one begins where a forward lies between two AccumulateGrads: its annotation, or a launch by a
        thread other than autograd's. If no forward can be seen (CPU alone, without DDP), it begins with each
        copy of one list of shapes that follows a pause as long as a forward.
        """
        accumulated = between(self._accumulated, window.start_ns, window.end_ns)
        if not len(accumulated):
            return []
        forward_at = self._forward_at
        if len(forward_at):
            after = np.searchsorted(forward_at, accumulated["end"][:-1], "right")
            forwards = [*forward_at, _ALWAYS]
            borders = [
                (place, int(forwards[at]))
                for place, at in enumerate(after, 1)
                if forwards[at] < accumulated["start"][place]
            ]
        else:
            borders = self._copies(accumulated)
        edges = [(0, window.start_ns), *borders, (len(accumulated), window.end_ns)]
        return [
            self._backward(since, accumulated[place:end], over)
            for (place, since), (end, over) in pairwise(edges)
        ]

    def _copies(self, accumulated: Spans) -> list[tuple[int, int]]:
        """Where copies of one list of shapes begin, and the start of the pause before each; empty: one list.

        A pause may be a forward if it is longer than all pauses in the copy behind it, and than a quarter of
        the copy's time: a forward takes about half as long as its backward.
        """
        shapes = [str(self._trace.facts_of(one).get("dims")) for one in accumulated]
        busy = np.concatenate([self._nodes, self._hooks, accumulated])
        busy = between(busy[np.argsort(busy["start"])], accumulated["start"][0], accumulated["start"][-1] + 1)
        reached = np.maximum.accumulate(busy["end"])[:-1]
        pauses = [(0, 0)] * len(accumulated)  # before each AccumulateGrad the longest, and its start
        before = np.searchsorted(accumulated["start"], busy["start"][1:])
        for place, pause, at in zip(before, busy["start"][1:] - reached, reached, strict=True):
            pauses[place] = max(pauses[place], (int(pause), int(at)))
        count = len(accumulated)
        for length in range(1, count // 2 + 1):
            if count % length or shapes != shapes[:length] * (count // length):
                continue
            ends, begins = accumulated["end"][length - 1 :: length], range(length, count, length)
            if all(
                pauses[place][0] > max((0, *(pause for pause, _ in pauses[place + 1 : place + length])))
                and 4 * pauses[place][0] > after - before - pauses[place][0]
                for place, (before, after) in zip(begins, pairwise(ends), strict=True)
            ):
                return [(place, pauses[place][1]) for place in begins]
        return []

    def _backward(self, since_ns: int, accumulated: Spans, over_ns: int) -> _Backward:
        """From a backward's first node to the end of its last, which began before ``over_ns``."""
        ran = np.concatenate([between(spans, since_ns, over_ns) for spans in (self._hooks, self._nodes)])
        last = int(accumulated["end"][-1])
        begin = min([int(accumulated["start"][0]), *ran["start"].tolist()])
        end = min(max([last, *ran["end"].tolist()]), max(over_ns, last))
        until = self._until(end, over_ns)
        copied = between(self._copies_out, end, until)
        return _Backward(
            start_ns=begin,
            end_ns=end,
            until_ns=min(until, int(copied["start"][0])) if len(copied) else until,
            accumulated=accumulated,
            hooks=between(self._hooks, begin, end),
            nodes=between(self._nodes, begin, end),
        )

    def _until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        place = np.searchsorted(self._optimizer_at, end_cpu)
        found = int(self._optimizer_at[place]) if place < len(self._optimizer_at) else window_end
        return min(found, window_end) if found > end_cpu else window_end

    # ---- steps

    def read(
        self, window: _Window, following: _Window | None, synchronised_ns: int | None
    ) -> SeenStep | None:
        """A step, or None where its forward or its backward is not in the trace, or not all of it.

        ``synchronised_ns`` is when the gradients of the step before were.
        """
        backwards = self._backwards(window)
        if not backwards:
            return None
        backward = backwards[-1]
        if not self._has_forward(window, backwards[0].start_ns):
            self._trace.dropped["steps without their forward in the trace"] += 1
            return None
        edges = self._edges(backward)
        start_ns, end_ns = self._step_edges(window, following, synchronised_ns)
        if edges is None or start_ns is None:
            return None
        backward_start, backward_end = edges
        gradients = [self._gradients(one, backward_start) for one in backwards]
        lo, hi = np.searchsorted(self._collectives_at, (window.start_ns, window.end_ns))
        thread = int(self._accumulated["lane"][0])
        found = give_roles(self._collectives[lo:hi], gradients, backwards, thread)
        collectives = [
            self._come_to(one, backward_start) if one.role == "gradients" else one for one in found
        ]
        backward_end = self._plain_end(backward, collectives, backward_end)
        copy_out, out_end = self._copy_out(backward, window, backward_end, collectives)
        sync_end = max([backward_end, out_end, *(one.end_ns for one in collectives if one.is_ddps)])
        synchronised, others = self._count_backwards(backwards, collectives)
        is_plain = synchronised == 1 and not others and any(one.role == "gradients" for one in collectives)
        return SeenStep(
            number=window.number,
            start_ns=min(start_ns, backward_start),
            end_ns=max(end_ns, sync_end),
            backward_start_ns=backward_start,
            backward_end_ns=backward_end,
            sync_end_ns=sync_end,
            copy_in_ns=self._copy_in(backward),
            copy_out_ns=copy_out,
            micro_batches=len(backwards),
            gradients=gradients[-1],
            collectives=tuple(collectives),
            synchronised_batches=synchronised,
            other_backwards=others,
            busy_ns=self._busy_ns(backward),
            plain_busy_ns=tuple(map(self._busy_ns, backwards[:-1])) if is_plain else (),
        )

    def _has_forward(self, window: _Window, backward_ns: int) -> bool:
        """Whether what comes before a step's first backward is in the trace: work for the device, by another
        thread than autograd's where there is one; and, in a step that the trace's own beginning may cut, a
        forward of DDP's where others have it.
        """

        def has(times: Times) -> bool:
            first, last = np.searchsorted(times, (window.start_ns, backward_ns))
            return bool(first < last)

        if window.cut and len(self._ddp_forward_at) and not has(self._ddp_forward_at):
            return False
        if self._lane is None:
            return window.start_ns < backward_ns
        return has(self._forward_at if len(self._forward_at) else self._device["launched"][self._is_ours])

    def _step_edges(
        self, window: _Window, following: _Window | None, synchronised_ns: int | None
    ) -> tuple[int | None, int]:
        """Where a step begins and ends on the device: with its first work after the step before was
        synchronised, and the next one's. On the CPU alone: as it is marked.
        """
        if self._lane is None:
            return window.start_ns, window.end_ns
        start = self._first_work(window)
        if start is not None and synchronised_ns is not None:
            start = max(start, synchronised_ns)
        end = self._first_work(following) if following is not None else None
        if end is None or start is None:
            end = max([window.end_ns, *self._device["end"][self._launched_in(window)].tolist()])
        return start, end

    def _first_work(self, window: _Window) -> int | None:
        """When the device began a step; what other streams do while the lane's is still at the step before
        (copies of the next batch) is ahead of it.
        """
        launched = self._launched_in(window)
        ours = self._device["start"][launched][self._is_ours[launched]]
        if not len(ours):
            return None
        first, begin = int(self._device["start"][launched.start]), int(ours[0])
        place = np.searchsorted(self._stream["start"], begin)
        return begin if place and self._stream["end"][place - 1] > first else min(first, begin)

    def _launched_in(self, window: _Window) -> slice:
        return slice(*np.searchsorted(self._device["launched"], (window.start_ns, window.end_ns)))

    # ---- what the lane did

    def _reach(self, times_ns: Times, otherwise: int) -> Times:
        """When the lane had finished all that was launched up to times of the CPU."""
        assert self._lane is not None
        place = np.searchsorted(self._lane["launched"], times_ns, "right")
        return np.where(place > 0, self._reached[place - 1], otherwise)

    def _work(self, start_ns: int, end_ns: int) -> slice:
        """What of the lane was launched in a span of the CPU's time, with its ends."""
        assert self._lane is not None
        launched = self._lane["launched"]
        return slice(np.searchsorted(launched, start_ns), np.searchsorted(launched, end_ns, "right"))

    def _edges(self, backward: _Backward) -> tuple[int, int] | None:
        """Start and end of backward on the lane."""
        if self._lane is None:
            return backward.start_ns, backward.end_ns
        work = self._work(backward.start_ns, backward.end_ns)
        if work.start == work.stop:
            return None
        begin = int(self._lane["start"][work.start])
        return begin, max(int(self._reached[work.stop - 1]), begin)

    def _busy_ns(self, backward: _Backward) -> int:
        """How long the lane worked; that it waits for launches says nothing of the work."""
        if self._lane is None:
            return backward.end_ns - backward.start_ns
        work = self._work(backward.start_ns, backward.end_ns)
        return int(self._worked[work.stop] - self._worked[work.start])

    def _plain_end(self, backward: _Backward, collectives: Sequence[SeenCollective], end: int) -> int:
        """The end of backward's own work on the lane.

        A compiled backward also waits for its all-reduces and accumulates what they bring: then it ends with
        what it did before them, or beside them.
        """
        sent = _sent_before_accumulating(backward, collectives)
        if not sent or self._lane is None:
            return end
        busy = union((one.start_ns, one.end_ns) for one in sent)
        plain = int(self._reach(np.array([sent[0].launched_ns]), end)[0])
        for work in self._lane[self._work(sent[0].launched_ns, sent[-1].launched_ns)]:
            began, ended = int(work["start"]), int(work["end"])
            since, until = max((one for one in busy if one < (ended,)), default=(began, began))
            # Half of either beside the other: clocks of two streams may let them touch.
            if 2 * (min(ended, until) - max(began, since)) > min(ended - began, until - since):
                plain = max(plain, ended)
        return min(plain, end)

    def _hooked(self, accumulated: Spans) -> tuple[NDArray[np.bool_], Times]:
        """Of AccumulateGrads: whether the engine's call around each is there, and its end. What it does
        behind it are hooks.
        """
        place = np.searchsorted(self._hooks["start"], accumulated["start"], "right")
        ends = np.concatenate([[-_ALWAYS], self._hooks["end"]])[place]
        return ends >= accumulated["end"], ends

    def _copy_in(self, backward: _Backward) -> int:
        """The copies into buckets: the lane's work in hooks, or DDP's own operators on the CPU."""
        accumulated = backward.accumulated
        if self._lane is None:
            copies = between(self._copies_in, accumulated["start"][0], backward.end_ns)
            return int((copies["end"] - copies["start"]).sum())
        is_hooked, ends = self._hooked(accumulated)
        launched = self._lane["launched"]
        first = np.searchsorted(launched, accumulated["end"] + 1)
        last = np.maximum(first, np.searchsorted(launched, ends, "right"))
        return int((self._worked[last] - self._worked[first])[is_hooked].sum())

    def _copy_out(
        self, backward: _Backward, window: _Window, backward_end: int, collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives are not
        counted. Traces too old to name copies: all that the lane does before the optimizer; of a compiled
        backward: all that it does after its last all-reduce.

        A copy may seem to begin a little before its collective ends: what ended before its middle, it waited
        for.
        """
        ends = sorted(one.end_ns for one in collectives if one.is_ddps)
        if not ends:
            return 0, backward_end
        until = self._until(backward.end_ns, window.end_ns)
        copies = named = between(self._copies_out, backward.end_ns, until)
        if self._lane is not None:
            sent = _sent_before_accumulating(backward, collectives)
            since = sent[-1].launched_ns if sent else backward.end_ns
            if sent or len(self._copies_in) or len(self._copies_out):
                until = max([backward.end_ns, *named["end"].tolist()])
            copies = self._lane[self._work(since + 1, until)]
        added, free = 0, backward_end
        for start, end in zip(copies["start"].tolist(), copies["end"].tolist(), strict=True):
            arrived = [one for one in ends if one <= (start + end) // 2]
            since = max(free, min(start, arrived[-1])) if arrived else free
            added += max(0, end - since)
            free = max(free, end)
        return added, free

    def _gradients(self, backward: _Backward, begin: int) -> tuple[SeenGradient, ...]:
        accumulated = backward.accumulated
        is_hooked, hook_ends = self._hooked(accumulated)
        first = np.searchsorted(self._copies_in["start"], accumulated["end"])
        last = np.searchsorted(self._copies_in["start"], hook_ends)
        is_copied = is_hooked & (first < last)
        ready = accumulated["end"].copy()
        ready[is_copied] = self._copies_in["end"][last[is_copied] - 1]
        if self._lane is not None:
            behind = is_hooked & ~is_copied
            ready[behind] = hook_ends[behind]
            ready = np.maximum(begin, self._reach(ready, begin))
        found = []
        for place, one in enumerate(accumulated):
            facts = self._trace.facts_of(one)
            dims, types = facts.get("dims", ()), facts.get("types")
            found.append(
                SeenGradient(
                    ready_ns=int(ready[place]),
                    hooked_at_ns=int(one["end"]),
                    shape=shape_of(dims[0]) if len(dims) == 1 else None,
                    dtype=torch_dtype(types[0]) if types else None,
                    reduced=bool(is_copied[place]) if len(self._copies_in) and is_hooked[place] else None,
                )
            )
        return tuple(found)

    def _come_to(self, one: SeenCollective, begin: int) -> SeenCollective:
        """A collective of gradients with when the lane came to it."""
        if self._lane is None:
            return replace(one, ready_ns=one.launched_ns)
        at = max(begin, int(self._reach(np.array([one.launched_ns]), begin)[0]))
        return replace(one, ready_ns=at) if one.timed else replace(one, ready_ns=at, start_ns=at, end_ns=at)

    def _count_backwards(
        self, backwards: Sequence[_Backward], collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """How many backwards were reduced, and how many are no micro-batches of the last one's model.

        Micro-batches have the same gradients, some of them perhaps not in each, reduce the same sizes, and no
        optimizer's step lies between them.
        """
        borders = [one.accumulated["start"][0] for one in backwards[1:]]
        sizes: list[list[int | None]] = [[] for _ in backwards]
        for one in collectives:
            if one.role in ("earlier", "gradients"):
                sizes[np.searchsorted(borders, one.launched_ns, "right")].append(one.num_elements)
        shapes = [
            Counter(str(self._trace.facts_of(each).get("dims")) for each in one.accumulated)
            for one in backwards
        ]
        stepped = np.searchsorted(self._optimizer_at, backwards[-1].accumulated["start"][0])
        last_step = self._optimizer_at[stepped - 1] if stepped else -_ALWAYS
        others = sum(
            bool(last_step > one.accumulated["end"][-1])
            or not (counts <= shapes[-1] or shapes[-1] <= counts)
            or bool(reduced and sizes[-1] and reduced != sizes[-1])
            for one, counts, reduced in zip(backwards[:-1], shapes, sizes, strict=False)
        )
        return sum(map(bool, sizes)), others


_HERE = ("hook", "node", "copy_in", "copy_out")


def _sent_before_accumulating(
    backward: _Backward, collectives: Sequence[SeenCollective]
) -> list[SeenCollective]:
    """The reductions of a backward that sends all before its first AccumulateGrad; of others none."""
    sent = [one for one in collectives if one.role == "gradients"]
    return sent if sent and sent[-1].launched_ns < backward.accumulated["start"][0] else []


# ---- which collectives reduced gradients, told from losses, norms, metrics and activations

_MAP_DTYPES = ("int32", "int64")


def give_roles(
    found: Sequence[tuple[SeenCollective, int]],
    gradients: Sequence[Sequence[SeenGradient]],
    backwards: Sequence[_Backward],
    thread: int,
) -> list[SeenCollective]:
    """The collectives of a step, each with its role; ``gradients`` are by backward, ``thread`` is autograd's.
    Those that no backward sent are as they were found: of this step, or from before the trace.
    """
    roles: dict[int, Role] = {}
    for number, (ready, backward) in enumerate(zip(gradients, backwards, strict=True), 1):
        for place, role in _roles_in(found, ready, backward, thread).items():
            is_earlier = role == "gradients" and number < len(backwards)
            roles[place] = "earlier" if is_earlier else role
    return [replace(one, role=roles.get(place, one.role)) for place, (one, _) in enumerate(found)]


def _roles_in(
    found: Sequence[tuple[SeenCollective, int]],
    gradients: Sequence[SeenGradient],
    backward: _Backward,
    thread: int,
) -> dict[int, Role]:
    """By place, what those collectives of a step carried that a backward's hooks sent.

    DDP reduces in hooks: once one is seen there, a later one is a loss, a norm or a metric. Where none is, or
    the trace is too old to show hooks, those after the last gradient are taken as far as their elements are
    the gradients'.
    """
    first, last = backward.accumulated["start"][[0, -1]].tolist()
    hooked, after, maps = [], [], []
    for place, (one, by) in enumerate(found):
        if one.kind not in ("all_reduce", "coalesced") or not first <= one.launched_ns < backward.until_ns:
            continue
        if one.role == "before":
            continue
        if one.dtype in _MAP_DTYPES:
            maps.append(place)
        elif one.launched_ns <= last or len(backward.hooks):
            if _from_hook(one.launched_ns, backward, is_autograds=by == thread):
                hooked.append(place)
            elif one.launched_ns > last:
                after.append(place)
        else:
            after.append(place)
    if not (hooked and len(backward.hooks)):
        hooked += _of_gradients([found[place][0] for place in hooked], after, found, gradients)
    if not hooked:
        hooked = _inside_one_node(found, len(backward.accumulated), backward)
    roles: dict[int, Role] = dict.fromkeys(maps, "map")
    roles.update((place, "gradients") for place in hooked)
    return roles


def _from_hook(launched_ns: int, backward: _Backward, *, is_autograds: bool) -> bool:
    """Whether an AccumulateGrad's hook launched it; where the engine's calls are not there, no other node."""
    if not is_autograds:
        return launched_ns < backward.end_ns
    if len(backward.hooks):
        return _within(launched_ns, backward.hooks)
    return not _within(launched_ns, backward.nodes)


def _within(time_ns: int, operators: Spans) -> bool:
    place = np.searchsorted(operators["start"], time_ns, "right")
    return bool((operators["end"][max(0, place - 2) : place] >= time_ns).any())


def _of_gradients(
    before: Sequence[SeenCollective],
    after: Sequence[int],
    found: Sequence[tuple[SeenCollective, int]],
    gradients: Sequence[SeenGradient],
) -> list[int]:
    """The places of those collectives after the last gradient that hold gradients.

    With the reductions ``before`` they have as many elements as all gradients together. Where the elements do
    not tell, all are taken but those of a single element, which are a loss or a norm.
    """
    counts = [found[place][0].num_elements for place in after]
    known = [count for count in counts if count is not None]
    reduced = [one for one in gradients if one.reduced is not False]
    shapes = [one.shape for one in reduced if one.shape is not None]
    sent = [one.num_elements for one in before if one.num_elements is not None]
    if len(known) == len(after) and len(shapes) == len(reduced) and len(sent) == len(before):
        # A scalar's shape and that of a gradient which is not there look alike.
        most = sum(map(prod, shapes)) - sum(sent)
        fewest = most - sum(not shape for shape in shapes)
        if most == 0:
            return []
        for begin in range(len(after)):
            total = 0
            for end in range(begin, len(after)):
                total += known[end]
                if total > 0 and fewest <= total <= most:
                    return list(after[begin : end + 1])
    others = [one.num_elements for one in before] + counts
    if all(count == 1 for count in others):
        return list(after)
    return [place for place, count in zip(after, counts, strict=True) if count != 1]


def _inside_one_node(
    found: Sequence[tuple[SeenCollective, int]], gradients: int, backward: _Backward
) -> list[int]:
    """One all-reduce a gradient within backward, though no hook sent them: a compiled backward's own."""
    inside = [
        place
        for place, (one, _) in enumerate(found)
        if (one.kind, one.role) == ("all_reduce", "other")
        and backward.start_ns <= one.launched_ns < backward.until_ns
    ]
    return inside if len(inside) == gradients else []
