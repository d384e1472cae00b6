"""One rank's training steps: where backward begins and ends, when gradients are ready, what was reduced.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.events import Facts, Spans, Times, TraceEvents, between, busiest, collective_of
from sim.metrics.intervals import union
from sim.nouns.workload import DTYPE_BYTES

ASSUMED_DTYPE = "float32"  # where the trace names none
_ALWAYS = 1 << 62
_MAP_DTYPES = ("int32", "int64")
Role = Literal["gradients", "earlier", "map", "other", "before"]


@dataclass(slots=True, kw_only=True, eq=False)
class Collective:
    """One collective: its kernel's span, and when the CPU launched it, by which thread (-1: not shown).

    ``timed``: ``start_ns`` and ``end_ns`` are those of the collective itself, of its kernel or of gloo's
    thread; otherwise (world size 1) they are those of the call.

    ``role`` says what it carried. ``gradients``: sent by the hooks of the step's last backward, or at its
    end, after the last gradient; then ``ready_ns`` is when the compute lane came to its launch. ``earlier``:
    the same of the micro-batches before. ``map``: the map of ``find_unused_parameters``. ``before``: launched
    before the trace began; its end holds up what follows, and it belongs to no step. ``other``: all else,
    such as activations, embeddings and buffers.
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
    has none; ``reduced`` says whether DDP copied it, None where that cannot be seen.
    """

    ready_ns: int
    hooked_at_ns: int
    shape: tuple[int, ...] | None
    dtype: str | None
    reduced: bool | None


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
    """Every collective by launch; ``role`` is still ``other``, or ``before``.

    There is one a communication kernel. Where the whole trace has none (world size 1, gloo), there is one an
    annotation. gloo's last from when a thread of gloo's takes them to their end: a queue feeds those threads,
    so one is of the earliest call of c10d of this collective and as many elements. Of others only the call is
    seen.
    """
    calls, kernels = trace.of("call"), trace.of("communication")
    threads = {thread: calls[calls["lane"] == thread] for thread in np.unique(calls["lane"]).tolist()}

    def around(time_ns: int, thread: int) -> list[np.void]:
        """Operators that contain an instant, innermost first. They nest at most a few deep."""
        of_thread = threads.get(thread, calls[:0])
        place = np.searchsorted(of_thread["start"], time_ns, "right")
        near = of_thread[max(0, place - 8) : place][::-1]
        return list(near[near["end"] >= time_ns])

    def sent(call: np.void) -> tuple[str | None, int | None]:
        return collective_of(trace.name_of(call).split(":")[-1]), trace.facts_of(call).elements

    found = []
    if len(kernels):
        shown = kernels[kernels["by"] >= 0]
        began = int(shown["start"][0]) if len(shown) else trace.began_ns or 0
        for kernel in kernels:
            at, by = int(kernel["launched"]), int(kernel["by"])
            found.append(_made(trace, kernel, at, by, around(at, by), timed=True))
            if by < 0 and kernel["start"] < began:
                found[-1].role = "before"
        if before := sum(one.role == "before" for one in found):
            trace.dropped["collectives that were launched before the trace began: no step's own"] = before
        return sorted(found, key=lambda one: (one.launched_ns, one.start_ns))
    waiting = defaultdict[object, list[np.void]](list)
    for call in calls[::-1]:
        if trace.name_of(call).startswith("c10d::"):
            waiting[sent(call)].append(call)
    for one in calls:
        library, at, by = trace.name_of(one).partition(":")[0], int(one["start"]), int(one["lane"])
        queue = waiting[sent(one)] if library == "gloo" else []
        call = queue.pop() if queue and queue[-1]["start"] <= at else one
        if call["lane"] != by:
            call_at, caller = int(call["start"]), int(call["lane"])
            found.append(_made(trace, one, call_at, caller, [call], timed=True))
        elif library in ("gloo", "nccl", "rccl"):
            found.append(_made(trace, one, at, by, around(at, by), timed=False))
    return sorted(found, key=lambda one: (one.launched_ns, one.start_ns))


def _made(
    trace: TraceEvents, seen: np.void, at: int, thread: int, around: Sequence[np.void], *, timed: bool
) -> Collective:
    """A collective from its span and the operators around its launch; the innermost is the surest."""
    facts = [trace.facts_of(one) for one in (seen, *around)]
    sized = next((one for one in facts if one.elements is not None), Facts())
    named = [next((one.collective for one in facts if one.collective is not None), None)]
    named += [trace.name_of(one).split(":", 1)[-1] for one in around]
    kind = collective_of(trace.name_of(seen), *named)
    if kind == "send_recv":  # an all-to-all, a send or a receive: the operator knows
        kind = collective_of(*named) or kind
    return Collective(
        kind=kind or "other",
        thread=thread,
        launched_ns=at,
        start_ns=int(seen["start"]),
        end_ns=int(seen["end"]),
        num_elements=sized.elements,
        dtype=sized.dtype,
        timed=timed,
        group_size=next((one.group_size for one in facts if one.group_size), None),
    )


# ---- steps


class _Window(NamedTuple):
    """A step on the CPU."""

    number: int
    start_ns: int
    end_ns: int


class _Backward(NamedTuple):
    """A backward on the CPU, from its first node to the end of its last; ``until_ns`` is when the optimizer,
    or DDP's first copy out, began. ``hooks`` are the engine's calls around AccumulateGrads, none in older
    traces.
    """

    start_ns: int
    end_ns: int
    until_ns: int
    accumulated: Spans
    hooks: Spans


def find_steps(trace: TraceEvents, collectives: Sequence[Collective]) -> tuple[Step, ...]:
    """The steps of a trace, whole ones only, in order; gives those of ``collectives`` their roles.

    Raises:
        NotModelledError: no backward in it: inference, or a forward alone.
        InputError: no operators, or nothing that tells where a step begins and ends.
    """
    if trace.began_ns is None:
        raise InputError(
            f"{trace.source}: no CPU operators in it, which tell backward from forward; profile with "
            f"ProfilerActivity.CPU as well"
        )
    if not len(trace.of("accumulate")):
        is_frozen = len(trace.of("node")) > 0
        why = (
            "backward accumulates no gradient"
            if is_frozen
            else "no backward in it: inference, or forward alone"
        )
        raise NotModelledError(f"{trace.source}: {why}; give a whole trace of training")
    reader = _Reader(trace, collectives)
    windows = reader.windows()
    whole: list[Step] = []
    for window, following in zip(windows, [*windows[1:], None], strict=True):
        step = reader.read(window, following, whole[-1].sync_end_ns if whole else -_ALWAYS)
        whole += [] if step is None else [step]
    if not whole:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
    return tuple(whole)


class _Reader:
    """Reads step after step of one trace.

    ``lane`` is what the device ran of autograd's thread on the stream that this thread keeps busiest, by
    launch (None without a GPU), and ``reached`` when the stream had finished all up to each of it.
    """

    def __init__(self, trace: TraceEvents, collectives: Sequence[Collective]) -> None:
        (thread, _), *_ = Counter(trace.of("accumulate")["lane"].tolist()).most_common(1)
        self._trace, self._thread, self._collectives = trace, thread, collectives
        self._accumulated, self._hooks, self._nodes, self._copies_in, self._copies_out = (
            found[found["lane"] == thread]
            for found in map(trace.of, ("accumulate", "hook", "node", "copy_in", "copy_out"))
        )
        self._optimizer_at = trace.of("optimizer")["start"]
        device = trace.gpu[(trace.gpu["by"] >= 0) & ~trace.are(trace.gpu, "communication")]
        self._device = device = device[np.lexsort((device["start"], device["launched"]))]
        is_autograds = device["by"] == thread
        lane = device[is_autograds]
        stream = busiest(lane)
        lane = lane[lane["lane"] == stream]
        self._lane = lane if len(trace.gpu) else None
        self._reached = np.maximum.accumulate(lane["end"])
        self._worked = np.cumsum([0, *(lane["end"] - lane["start"])])
        self._stream = trace.gpu[trace.gpu["lane"] == stream]
        self._is_ours = device["lane"] == stream
        forward_work = self._is_ours & ~is_autograds & trace.are(device, "computation")
        self._forward_at = np.sort([*trace.of("forward")["start"], *device["launched"][forward_work]])

    def windows(self) -> list[_Window]:
        """Steps: the profiler's own, else from one optimizer step to the next.

        Raises:
            InputError: nothing tells where a step begins.
        """
        trace = self._trace
        marked = {
            (int(one["start"]), int(one["end"]), int(trace.name_of(one).partition("#")[2]))
            for one in trace.of("step")
        }
        if marked:
            return [_Window(number, start, end) for start, end, number in sorted(marked)]
        ends = np.sort(trace.of("optimizer")["end"])
        if not len(ends):
            raise InputError(
                f"{trace.source}: nothing tells where a step begins; call profiler.step() each iteration"
            )
        begin = min(int(trace.operators["start"].min()), trace.began_ns or _ALWAYS)
        # Of several optimizer steps with no backward between them only the last ends a training step.
        last = {*np.searchsorted(ends, self._accumulated["start"]).tolist(), len(ends)} - {0}
        edges = pairwise([begin, *(int(ends[place - 1]) for place in sorted(last))])
        return [_Window(number, *edge) for number, edge in enumerate(edges)]

    def _backwards(self, window: _Window) -> list[_Backward]:
        """The backwards of a step; what comes before the optimizer belongs to the last.

        A new one begins where a forward lies between two AccumulateGrads: its annotation, or a launch by a
        thread other than autograd's.
        """
        accumulated, at = between(self._accumulated, window.start_ns, window.end_ns), self._forward_at
        if not len(accumulated):
            return []
        following = np.append(at, _ALWAYS)[np.searchsorted(at, accumulated["end"][:-1], "right")]
        places = np.flatnonzero(following < accumulated["start"][1:])
        borders = zip((places + 1).tolist(), following[places].tolist(), strict=True)
        edges = [(0, window.start_ns), *borders, (len(accumulated), window.end_ns)]
        found = []
        for (place, since), (stop, over) in pairwise(edges):
            inside = accumulated[place:stop]
            ran = np.concatenate([between(spans, since, over) for spans in (self._hooks, self._nodes)])
            first, last = int(inside["start"][0]), int(inside["end"][-1])
            begin = min([first, *ran["start"].tolist()])
            end = min(max([last, *ran["end"].tolist()]), max(over, last))
            until = self._until(end, over)
            copied = between(self._copies_out, end, until)["start"][:1].tolist()
            hooks = between(self._hooks, begin, end)
            found.append(_Backward(begin, end, min([until, *copied]), inside, hooks))
        return found

    def _until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        later = self._optimizer_at[np.searchsorted(self._optimizer_at, end_cpu, "right") :][:1]
        return min([window_end, *map(int, later)])

    def read(self, window: _Window, following: _Window | None, synchronised_ns: int) -> Step | None:
        """A step, or None where its forward or its backward is not in the trace, or not all of it.

        ``synchronised_ns`` is when the gradients of the step before were.
        """
        backwards = self._backwards(window)
        if not backwards:
            return None
        backward = backwards[-1]
        # Forward is the device's work by another thread than autograd's, where there is one.
        forward = self._forward_at if len(self._forward_at) else self._device["launched"][self._is_ours]
        is_before = (forward >= window.start_ns) & (forward < backwards[0].start_ns)
        if self._lane is not None and not is_before.any():
            self._trace.dropped["steps without their forward in the trace"] += 1
            return None
        edges = self._edges(window, following, synchronised_ns, backward)
        if edges is None:
            return None
        start_ns, begin, end, end_ns = edges
        gradients = [self._gradients(one, begin) for one in backwards]
        found = [one for one in self._collectives if window.start_ns <= one.launched_ns < window.end_ns]
        reduced = [self._reduced(found, *pair) for pair in zip(gradients, backwards, strict=True)]
        for one in reduced[-1]:
            one.role, one.ready_ns = "gradients", int(self._reach(np.array([one.launched_ns]), begin)[0])
            if not one.timed and self._lane is not None:
                one.start_ns = one.end_ns = one.ready_ns
        # In a compiled backward alone all were sent before the first AccumulateGrad.
        is_compiled = reduced[-1] and reduced[-1][-1].launched_ns < backward.accumulated["start"][0]
        sent = reduced[-1] if is_compiled else []
        end = self._plain_end(sent, end)
        ends = sorted(one.end_ns for one in found if one.role not in ("other", "before"))
        copy_out, out_end = self._copy_out(backward, window, end, ends, sent)
        sync_end = max([end, out_end, *ends])
        return Step(
            number=window.number,
            start_ns=min(start_ns, begin),
            end_ns=max(end_ns, sync_end),
            backward_start_ns=begin,
            backward_end_ns=end,
            sync_end_ns=sync_end,
            copy_in_ns=self._copy_in(backward),
            copy_out_ns=copy_out,
            micro_batches=len(backwards),
            gradients=gradients[-1],
            reductions=tuple(reduced[-1]),
            collectives=tuple(found),
            has_models=self._until(backwards[0].end_ns, backward.start_ns) < backward.start_ns,
        )

    def _edges(
        self, window: _Window, following: _Window | None, synchronised_ns: int, backward: _Backward
    ) -> tuple[int, int, int, int] | None:
        """Where a step and its backward begin on the device, and where these end: the step with its first
        work after the step before was synchronised, and the next one's. On the CPU alone: as it is marked.
        """
        if self._lane is None:
            return window.start_ns, backward.start_ns, backward.end_ns, window.end_ns
        start = self._first_work(window)
        work = self._work(backward.start_ns, backward.end_ns)
        if start is None or work.start == work.stop:
            return None
        end = self._first_work(following) if following is not None else None
        if end is None:
            end = max([window.end_ns, *self._device["end"][self._launched_in(window)].tolist()])
        begin = int(self._lane["start"][work.start])
        return max(start, synchronised_ns), begin, max(int(self._reached[work.stop - 1]), begin), end

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

    def _plain_end(self, sent: Sequence[Collective], end: int) -> int:
        """The end of backward's own work on the lane.

        A compiled backward also waits for its all-reduces (``sent``) and accumulates what they bring: then it
        ends with what it did before them, or beside them.
        """
        if not sent or self._lane is None:
            return end
        busy = union((one.start_ns, one.end_ns) for one in sent)
        place = int(np.searchsorted(self._lane["launched"], sent[0].launched_ns, "right"))
        plain = int(self._reached[place - 1]) if place else end
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
        first = np.searchsorted(self._lane["launched"], accumulated["end"] + 1)
        last = np.maximum(first, np.searchsorted(self._lane["launched"], ends, "right"))
        return int((self._worked[last] - self._worked[first])[is_hooked].sum())

    def _copy_out(
        self,
        backward: _Backward,
        window: _Window,
        backward_end: int,
        ends: Sequence[int],
        sent: Sequence[Collective],
    ) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives, which ended at
        ``ends``, are not counted: a copy waited for what ended before its middle, as clocks are coarse.
        Traces too old to name copies: all that the lane does before the optimizer; of a compiled backward:
        all that it does after its last all-reduce (``sent``).
        """
        if not ends:
            return 0, backward_end
        until = self._until(backward.end_ns, window.end_ns)
        copies = named = between(self._copies_out, backward.end_ns, until)
        if self._lane is not None:
            since = sent[-1].launched_ns if sent else backward.end_ns
            if sent or len(self._copies_in) or len(self._copies_out):
                until = max([backward.end_ns, *named["end"].tolist()])
            copies = self._lane[self._work(since + 1, until)]
        added, free = 0, backward_end
        for start, end in zip(copies["start"].tolist(), copies["end"].tolist(), strict=True):
            arrived = max((one for one in ends if one <= (start + end) // 2), default=free)
            added += max(0, end - max(free, min(start, arrived)))
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
        facts = [self._trace.facts_of(one) for one in accumulated]
        is_seen = is_hooked & (len(self._copies_in) > 0)
        return tuple(
            SeenGradient(int(at), int(hooked_at), one.shape, one.dtype, bool(copied) if seen else None)
            for at, hooked_at, one, copied, seen in zip(
                self._reach(ready, begin), accumulated["end"], facts, is_copied, is_seen, strict=True
            )
        )

    # ---- which collectives reduced gradients, told from losses, norms, metrics and activations

    def _reduced(
        self, found: Sequence[Collective], gradients: Sequence[SeenGradient], backward: _Backward
    ) -> list[Collective]:
        """Those collectives of a step that reduced a backward's gradients, with their role.

        DDP reduces in hooks: once one is seen there, a later one is a loss, a norm or a metric. Where none
        is, or the trace is too old to show hooks, those after the last gradient are taken, too. A compiled
        backward sends one a gradient within a node of its own.
        """
        first, last = backward.accumulated["start"][[0, -1]].tolist()
        has_hooks = len(backward.hooks) > 0
        sent = [one for one in found if one.role == "other" and one.launched_ns < backward.until_ns]
        inside = [one for one in sent if one.kind in ("all_reduce", "coalesced") and first <= one.launched_ns]
        for one in inside:
            one.role = "map" if one.dtype in _MAP_DTYPES else "other"
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
