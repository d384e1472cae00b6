"""One rank's training steps out of its trace: where backward begins and ends, and when gradients are ready.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.collectives import Role, SeenCollective, shape_of
from sim.importer.kineto.events import Spans, Times, TraceEvents, between, busiest, torch_dtype
from sim.metrics.intervals import union

_ALWAYS = 1 << 62
_MAP_DTYPES = ("int32", "int64")


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
    another model than the last, or lie before an optimizer's step.
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
    synchronised_batches: int
    other_backwards: int

    @property
    def backward_ns(self) -> int:
        """How long backward took."""
        return self.backward_end_ns - self.backward_start_ns

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
    """A backward on the CPU, from its first node to the end of its last.

    ``hooks`` are the engine's calls around AccumulateGrads (none in older traces), ``nodes`` the operators
    of other functions, both by start; ``until_ns`` is when the optimizer, or DDP's first copy out, began.
    """

    start_ns: int
    end_ns: int
    until_ns: int
    accumulated: Spans
    hooks: Spans
    nodes: Spans


def find_steps(trace: TraceEvents, collectives: Sequence[SeenCollective]) -> tuple[SeenStep, ...]:
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
    if not len(trace.of("accumulate")):
        nodes = len(trace.of("node"))
        why = f"backward accumulates no gradient (of {nodes} nodes of autograd in it none is AccumulateGrad)"
        raise NotModelledError(
            f"{trace.source}: {why if nodes else 'no backward in it: inference, or a forward alone'}; give a "
            f"whole trace of training"
        )
    reader = _Reader(trace, collectives)
    windows = reader.windows()
    whole: list[SeenStep] = []
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

    def __init__(self, trace: TraceEvents, collectives: Sequence[SeenCollective]) -> None:
        (thread, _), *_ = Counter(trace.of("accumulate")["lane"].tolist()).most_common(1)
        self._trace, self._thread, self._collectives = trace, thread, collectives
        self._accumulated, self._hooks, self._nodes, self._copies_in, self._copies_out = (
            found[found["lane"] == thread]
            for found in map(trace.of, ("accumulate", "hook", "node", "copy_in", "copy_out"))
        )
        self._optimizer_at = trace.of("optimizer")["start"]
        self._ddp_forward_at = trace.of("forward")["start"]
        device = trace.ran("computation", "memory")
        device = device[device["by"] >= 0]
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
        self._forward_at = np.sort([*self._ddp_forward_at, *device["launched"][forward_work]])

    # ---- windows and backwards

    def windows(self) -> list[_Window]:
        """Steps: the profiler's own, else from one optimizer step to the next, else the whole trace as one.

        Raises:
            InputError: nothing tells where a step begins.
        """
        trace, accumulated = self._trace, self._accumulated
        marked = {
            (int(one["start"]), int(one["end"]), int(trace.name_of(one).partition("#")[2]))
            for one in trace.of("step")
        }
        if marked:
            return [_Window(number, start, end) for start, end, number in sorted(marked)]
        begin = min(int(trace.operators["start"].min()), trace.began_ns or _ALWAYS)
        ends = np.sort(trace.of("optimizer")["end"])
        # Of several optimizer steps with no backward between them only the last ends a training step.
        backward = set(np.searchsorted(ends, accumulated["start"]))
        kept = [int(end) for place, end in enumerate(ends, 1) if place in backward or place == len(ends)]
        if kept:
            edges = pairwise([begin, *kept])
            return [_Window(number, *edge, cut=number == 0) for number, edge in enumerate(edges)]
        backwards = len(self._backwards(_Window(0, -_ALWAYS, _ALWAYS)))
        pauses = accumulated["start"][1:] - accumulated["end"][:-1]
        # A pause of over a third of its time may be a forward between several backwards.
        if backwards == 1 and 3 * pauses.max(initial=0) <= accumulated["end"][-1] - accumulated["start"][0]:
            return [_Window(0, begin, int(trace.operators["end"].max()), cut=True)]
        raise InputError(
            f"{trace.source}: {max(backwards, 2)} backwards or more in it, and nothing tells where a "
            f"step begins; call prof.step() after each step, or profile with the optimizer's step in it"
        )

    def _backwards(self, window: _Window) -> list[_Backward]:
        """The backwards of a step; what comes before the optimizer belongs to the last.

        A new one begins where a forward lies between two AccumulateGrads: its annotation, or a launch by a
        thread other than autograd's.
        """
        accumulated = between(self._accumulated, window.start_ns, window.end_ns)
        if not len(accumulated):
            return []
        at = self._forward_at if len(self._forward_at) else self._pauses(accumulated)
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
            hooks, nodes = (between(spans, begin, end) for spans in (self._hooks, self._nodes))
            found.append(_Backward(begin, end, min([until, *copied]), inside, hooks, nodes))
        return found

    def _pauses(self, accumulated: Spans) -> Times:
        """Where no forward can be seen (CPU alone, without DDP), the pauses that may be one: nothing of
        backward runs in them for long, and the gradients between them are the same.
        """
        busy = np.sort(np.concatenate([self._nodes, self._hooks, accumulated]), order="start")
        busy = between(busy, accumulated["start"][0], accumulated["start"][-1] + 1)
        reached = np.maximum.accumulate(busy["end"])[:-1]
        pauses = busy["start"][1:] - reached
        is_long = pauses > max(pauses.max(initial=0) // 2, (busy["end"][-1] - busy["start"][0]) // 16)
        cuts = np.searchsorted(accumulated["start"], reached[is_long])
        pieces = [self._shapes(piece) for piece in np.split(accumulated, cuts)]
        found: Times = reached[is_long & all(one == pieces[0] for one in pieces)] + 1
        return found

    def _shapes(self, accumulated: Spans) -> list[str]:
        return [str(self._trace.facts_of(one).dims) for one in accumulated]

    def _until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        later = self._optimizer_at[np.searchsorted(self._optimizer_at, end_cpu, "right") :][:1]
        return min([window_end, *map(int, later)])

    # ---- steps

    def read(self, window: _Window, following: _Window | None, synchronised_ns: int) -> SeenStep | None:
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
        edges = self._edges(window, following, synchronised_ns, backward)
        if edges is None:
            return None
        start_ns, begin, end, end_ns = edges
        gradients = [self._gradients(one, begin) for one in backwards]
        collectives = self._with_roles(window, gradients, backwards, begin)
        sent = [one for one in collectives if one.role == "gradients"]
        if sent and sent[-1].launched_ns >= backward.accumulated["start"][0]:
            sent = []  # all were sent before the first AccumulateGrad in a compiled backward alone
        end = self._plain_end(sent, end)
        ends = sorted(one.end_ns for one in collectives if one.is_ddps)
        copy_out, out_end = self._copy_out(backward, window, end, ends, sent)
        sync_end = max([end, out_end, *ends])
        synchronised, others = self._count_backwards(backwards, collectives)
        return SeenStep(
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
            collectives=tuple(collectives),
            synchronised_batches=synchronised,
            other_backwards=others,
        )

    def _has_forward(self, window: _Window, backward_ns: int) -> bool:
        """Whether what comes before a step's first backward is in the trace: work for the device, by another
        thread than autograd's where there is one; and, in a step that the trace's own beginning may cut, a
        forward of DDP's where others have it.
        """
        work = self._forward_at if len(self._forward_at) else self._device["launched"][self._is_ours]
        needed = [self._ddp_forward_at] if window.cut and len(self._ddp_forward_at) else []
        needed += [np.array([window.start_ns])] if self._lane is None else [work]
        return all(((times >= window.start_ns) & (times < backward_ns)).any() for times in needed)

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

    def _count_backwards(
        self, backwards: Sequence[_Backward], collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """How many backwards were reduced, and how many are no micro-batches of the last one's model.

        Micro-batches have the same gradients, some of them perhaps not in each, reduce the same sizes, and no
        optimizer's step lies between them.
        """
        starts = [one.accumulated["start"][0] for one in backwards]
        sizes: list[list[int | None]] = [[] for _ in backwards]
        for one in collectives:
            if one.role in ("earlier", "gradients"):
                sizes[np.searchsorted(starts[1:], one.launched_ns, "right")].append(one.num_elements)
        shapes = [Counter(self._shapes(one.accumulated)) for one in backwards]
        stepped = max(self._optimizer_at[self._optimizer_at < starts[-1]], default=-_ALWAYS)
        others = sum(
            bool(stepped > one.accumulated["end"][-1])
            or not (counts <= shapes[-1] or shapes[-1] <= counts)
            or bool(reduced and sizes[-1] and reduced != sizes[-1])
            for one, counts, reduced in zip(backwards[:-1], shapes, sizes, strict=False)
        )
        return sum(map(bool, sizes)), others

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

    def _plain_end(self, sent: Sequence[SeenCollective], end: int) -> int:
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
        sent: Sequence[SeenCollective],
    ) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives, which ended at
        ``ends``, are not counted. Traces too old to name copies: all that the lane does before the optimizer;
        of a compiled backward: all that it does after its last all-reduce.

        A copy may seem to begin a little before its collective ends: what ended before its middle, it waited
        for.
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
        ready = self._reach(ready, begin)
        facts = [self._trace.facts_of(one) for one in accumulated]
        return tuple(
            SeenGradient(
                ready_ns=int(ready[place]),
                hooked_at_ns=int(accumulated["end"][place]),
                shape=shape_of(one.dims[0]) if one.dims is not None and len(one.dims) == 1 else None,
                dtype=torch_dtype(one.types[0]) if isinstance(one.types, list) and one.types else None,
                reduced=bool(is_copied[place]) if len(self._copies_in) and is_hooked[place] else None,
            )
            for place, one in enumerate(facts)
        )

    # ---- which collectives reduced gradients, told from losses, norms, metrics and activations

    def _with_roles(
        self,
        window: _Window,
        gradients: Sequence[Sequence[SeenGradient]],
        backwards: Sequence[_Backward],
        begin: int,
    ) -> list[SeenCollective]:
        """The collectives of a step, each with its role; ``gradients`` are by backward, ``begin`` is when the
        last began. Those that no backward sent are as they were found.
        """
        found = [one for one in self._collectives if window.start_ns <= one.launched_ns < window.end_ns]
        for ready, backward in zip(gradients, backwards, strict=True):
            for place, role in self._roles_in(found, ready, backward).items():
                is_earlier = role == "gradients" and backward is not backwards[-1]
                found[place] = replace(found[place], role="earlier" if is_earlier else role)
        for place, one in enumerate(found):
            if one.role == "gradients":
                at = int(self._reach(np.array([one.launched_ns]), begin)[0])
                is_seen = one.timed or self._lane is None
                start_ns, end_ns = (one.start_ns, one.end_ns) if is_seen else (at, at)
                found[place] = replace(one, ready_ns=at, start_ns=start_ns, end_ns=end_ns)
        return found

    def _roles_in(
        self, found: Sequence[SeenCollective], gradients: Sequence[SeenGradient], backward: _Backward
    ) -> dict[int, Role]:
        """By place, what those collectives of a step carried that a backward's hooks sent.

        DDP reduces in hooks: once one is seen there, a later one is a loss, a norm or a metric. Where none
        is, or the trace is too old to show hooks, those after the last gradient are taken as far as their
        elements are the gradients'. A compiled backward sends one a gradient within a node of its own.
        """
        first, last = backward.accumulated["start"][[0, -1]].tolist()
        has_hooks = len(backward.hooks) > 0
        hooked, after, roles = [], [], dict[int, Role]()
        for place, one in enumerate(found):
            at, is_reduction = one.launched_ns, one.kind in ("all_reduce", "coalesced")
            if not is_reduction or one.role == "before" or not first <= at < backward.until_ns:
                continue
            if one.dtype in _MAP_DTYPES:
                roles[place] = "map"
            elif (at <= last or has_hooks) and self._from_hook(one, backward):
                hooked.append(place)
            elif at > last:
                after.append(place)
        if not (hooked and has_hooks):
            hooked += _of_gradients([found[place] for place in hooked], after, found, gradients)
        if not hooked:
            inside = [
                place
                for place, one in enumerate(found)
                if (one.kind, one.role) == ("all_reduce", "other")
                and backward.start_ns <= one.launched_ns < backward.until_ns
            ]
            hooked = inside if len(inside) == len(backward.accumulated) else []
        return roles | dict.fromkeys(hooked, "gradients")

    def _from_hook(self, one: SeenCollective, backward: _Backward) -> bool:
        """Whether an AccumulateGrad's hook sent it; where the engine's calls are not there, no other node."""
        if one.thread != self._thread:
            return one.launched_ns < backward.end_ns
        operators = backward.hooks if len(backward.hooks) else backward.nodes
        place = np.searchsorted(operators["start"], one.launched_ns, "right")
        is_within = bool((operators["end"][max(0, place - 2) : place] >= one.launched_ns).any())
        return is_within == (len(backward.hooks) > 0)


def _of_gradients(
    before: Sequence[SeenCollective],
    after: Sequence[int],
    found: Sequence[SeenCollective],
    gradients: Sequence[SeenGradient],
) -> list[int]:
    """The places of those collectives after the last gradient that hold gradients.

    With the reductions ``before`` they have as many elements as all gradients together. Where the elements do
    not tell, all are taken but those of a single element, which are a loss or a norm.
    """
    counts = [found[place].num_elements for place in after]
    sent = [one.num_elements for one in before]
    shapes = [one.shape for one in gradients if one.reduced is not False]
    if None not in (*counts, *sent, *shapes):
        # A scalar's shape and that of a gradient which is not there look alike.
        most = sum(prod(shape or ()) for shape in shapes) - sum(one or 0 for one in sent)
        if most == 0:
            return []
        sums = list(accumulate((one or 0 for one in counts), initial=0))
        for begin in range(len(after)):
            for end in range(begin + 1, len(after) + 1):
                if sums[end] - sums[begin] > 0 and most - shapes.count(()) <= sums[end] - sums[begin] <= most:
                    return list(after[begin:end])
    is_all = all(count == 1 for count in (*sent, *counts))
    return [place for place, count in zip(after, counts, strict=True) if is_all or count != 1]
