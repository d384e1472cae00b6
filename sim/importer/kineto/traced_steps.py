"""One rank's training steps out of its trace: where backward begins and ends, and when gradients are ready.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.autograd import AutogradThread, between, find_accumulations, is_node
from sim.importer.kineto.compute_lane import launched_spans, make_lane
from sim.importer.kineto.events import Operator, TraceEvents
from sim.importer.kineto.kernel_names import is_computation
from sim.importer.kineto.roles import Backward, count_backwards, give_all_roles
from sim.importer.kineto.seen import SeenCollective, SeenGradient, SeenStep
from sim.importer.kineto.traced_collectives import dtype_of, shape_of
from sim.importer.kineto.windows import Window, find_windows
from sim.metrics.intervals import union

_ALWAYS = 1 << 62


def find_steps(trace: TraceEvents, collectives: Sequence[tuple[SeenCollective, str]]) -> tuple[SeenStep, ...]:
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
    accumulated = find_accumulations(trace)
    if not accumulated:
        if nodes := sum(is_node(one) for one in trace.operators):
            raise NotModelledError(
                f"{trace.source}: backward accumulates no gradient (of {nodes} nodes of autograd in it none "
                f"is a torch::autograd::AccumulateGrad): nothing is trained by it, or the trace leaves it out"
            )
        raise NotModelledError(
            f"{trace.source}: no backward in it: an inference trace, or a forward alone; give one of training"
        )
    thread = Counter(one.thread for one in accumulated).most_common(1)[0][0]
    accumulated = [one for one in accumulated if one.thread == thread]
    cpu = AutogradThread(trace, thread, accumulated)
    reader = _Reader(trace, cpu, collectives)
    windows = find_windows(trace, accumulated, reader.count_backwards())
    whole: list[SeenStep] = []
    for window, following in zip(windows, [*windows[1:], None], strict=True):
        step = reader.read(window, following, whole[-1].sync_end_ns if whole else None)
        if step is not None:
            whole.append(step)
    if not whole:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
    return tuple(whole)


class _Reader:
    """Reads step after step of one trace."""

    def __init__(
        self,
        trace: TraceEvents,
        cpu: AutogradThread,
        collectives: Sequence[tuple[SeenCollective, str]],
    ) -> None:
        self._trace = trace
        self._cpu = cpu
        self._collectives = collectives
        self._collectives_at = [one.launched_ns for one, _ in collectives]
        spans = launched_spans(trace)
        self._lane = lane = make_lane(spans, cpu.thread) if trace.gpu else None
        self._stream = None if lane is None else lane.stream
        self._device_at = sorted(
            (launch, span.start_ns, span.end_ns, span.stream) for launch, _, span in spans
        )
        self._stream_at = sorted(
            (one.start_ns, one.end_ns) for one in trace.gpu if one.stream == self._stream
        )
        ours = [(launch, by, span.name) for launch, by, span in spans if span.stream == self._stream]
        self._launches_at = [launch for launch, _, _ in ours]
        work = [launch for launch, by, name in ours if by != cpu.thread and is_computation(name)]
        self._forward_at = sorted([*cpu.forwards_at, *work])

    def count_backwards(self) -> int:
        """How many backwards the whole trace shows."""
        return len(self._cpu.backwards(Window(0, -_ALWAYS, _ALWAYS), self._forward_at))

    def read(self, window: Window, following: Window | None, synchronised_ns: int | None) -> SeenStep | None:
        """A step, or None where its forward or its backward is not in the trace, or not all of it.

        ``synchronised_ns`` is when the gradients of the step before were.
        """
        backwards = self._cpu.backwards(window, self._forward_at)
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
        collectives = self._in_step(window, backwards, gradients, backward_start)
        backward_end = self._plain_end(backward, collectives, backward_end)
        copy_out, out_end = self._copy_out(backward, window, backward_end, collectives)
        sent = [one.end_ns for one in collectives if one.is_ddps]
        sync_end = max([backward_end, out_end, *sent])
        synchronised, others = count_backwards(backwards, collectives, self._cpu.optimizer_at)
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

    def _has_forward(self, window: Window, backward_ns: int) -> bool:
        """Whether what comes before a step's first backward is in the trace: work for the device, by another
        thread than autograd's where there is one; and, in a step that the trace's own beginning may cut, a
        forward of DDP's where others have it.
        """
        if (
            window.cut
            and self._cpu.forwards_at
            and not _any_between(self._cpu.forwards_at, window.start_ns, backward_ns)
        ):
            return False
        if self._lane is None:
            return window.start_ns < backward_ns
        return _any_between(self._forward_at or self._launches_at, window.start_ns, backward_ns)

    def _step_edges(
        self, window: Window, following: Window | None, synchronised_ns: int | None
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
            end = max([window.end_ns, *(ended for _, _, ended, _ in self._launched_in(window))])
        return start, end

    def _first_work(self, window: Window) -> int | None:
        """When the device began a step; what other streams do while the lane's is still at the step before
        (copies of the next batch) is ahead of it.
        """
        launched = self._launched_in(window)
        ours = next((start for _, start, _, stream in launched if stream == self._stream), None)
        if ours is None:
            return None
        first = launched[0][1]
        place = bisect.bisect_left(self._stream_at, (ours,))
        return ours if place and self._stream_at[place - 1][1] > first else min(first, ours)

    def _launched_in(self, window: Window) -> Sequence[tuple[int, int, int, int]]:
        lo = bisect.bisect_left(self._device_at, (window.start_ns,))
        return self._device_at[lo : bisect.bisect_left(self._device_at, (window.end_ns,))]

    def _edges(self, backward: Backward) -> tuple[int, int] | None:
        """Start and end of backward on the lane."""
        if self._lane is None:
            return backward.start_ns, backward.end_ns
        work = self._lane.between(backward.start_ns, backward.end_ns)
        if not work:
            return None
        begin = self._lane.start_ns[work.start]
        return begin, max(self._lane.reached_ns[work.stop - 1], begin)

    def _busy_ns(self, backward: Backward) -> int:
        """How long the lane worked; that it waits for launches says nothing of the work."""
        if self._lane is None:
            return backward.end_ns - backward.start_ns
        work = self._lane.between(backward.start_ns, backward.end_ns)
        return sum(self._lane.end_ns[place] - self._lane.start_ns[place] for place in work)

    def _plain_end(self, backward: Backward, collectives: Sequence[SeenCollective], end: int) -> int:
        """The end of backward's own work on the lane.

        A compiled backward also waits for its all-reduces and accumulates what they bring: then it ends with
        what it did before them, or beside them.
        """
        sent = _sent_before_accumulating(backward, collectives)
        if not sent or self._lane is None:
            return end
        busy = union((one.start_ns, one.end_ns) for one in sent)
        plain = self._lane.reached(sent[0].launched_ns, end)
        for place in self._lane.between(sent[0].launched_ns, sent[-1].launched_ns):
            began, ended = self._lane.start_ns[place], self._lane.end_ns[place]
            beside = bisect.bisect_left(busy, (ended,))
            since, until = busy[beside - 1] if beside else (began, began)
            # Half of either beside the other: clocks of two streams may let them touch.
            if 2 * (min(ended, until) - max(began, since)) > min(ended - began, until - since):
                plain = max(plain, ended)
        return min(plain, end)

    def _copy_in(self, backward: Backward) -> int:
        """The copies into buckets: the lane's work in hooks, or DDP's own operators on the CPU."""
        if self._lane is None:
            copies = between(self._cpu.copies_in, backward.accumulated[0].start_ns, backward.end_ns)
            return sum(one.end_ns - one.start_ns for one in copies)
        return sum(
            self._lane.end_ns[place] - self._lane.start_ns[place]
            for one in backward.accumulated
            if (hook := self._cpu.hook(one)) is not None
            for place in self._lane.between(one.end_ns + 1, hook.end_ns)
        )

    def _copy_out(
        self, backward: Backward, window: Window, backward_end: int, collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives are not
        counted. Traces too old to name copies: all that the lane does before the optimizer; of a compiled
        backward: all that it does after its last all-reduce.
        """
        ends = sorted(one.end_ns for one in collectives if one.is_ddps)
        if not ends:
            return 0, backward_end
        until = self._cpu.until(backward.end_ns, window.end_ns)
        named = between(self._cpu.copies_out, backward.end_ns, until)
        if self._lane is None:
            spans = [(one.start_ns, one.end_ns) for one in named]
        else:
            sent = _sent_before_accumulating(backward, collectives)
            since = sent[-1].launched_ns if sent else backward.end_ns
            last = max((one.end_ns for one in named), default=backward.end_ns)
            work = self._lane.between(since + 1, last if self._cpu.names_copies or sent else until)
            spans = [(self._lane.start_ns[place], self._lane.end_ns[place]) for place in work]
        return _added_by_copies(spans, ends, backward_end)

    def _gradients(self, backward: Backward, begin: int) -> tuple[SeenGradient, ...]:
        return tuple(self._gradient(one, begin) for one in backward.accumulated)

    def _gradient(self, accumulated: Operator, begin: int) -> SeenGradient:
        dims, types = accumulated.arguments.get("dims"), accumulated.arguments.get("types")
        shape = shape_of(dims[0]) if isinstance(dims, list) and len(dims) == 1 else None
        word = types[0] if isinstance(types, list) and types else None
        hook = self._cpu.hook(accumulated)
        copies = between(self._cpu.copies_in, accumulated.end_ns, hook.end_ns) if hook is not None else ()
        ready = accumulated.end_ns
        if copies:
            ready = copies[-1].end_ns
        elif hook is not None and self._lane is not None:
            ready = hook.end_ns
        if self._lane is not None:
            ready = max(begin, self._lane.reached(ready, begin))
        return SeenGradient(
            ready_ns=ready,
            hooked_at_ns=accumulated.end_ns,
            shape=shape,
            dtype=dtype_of(word),
            reduced=bool(copies) if self._cpu.copies_in and hook is not None else None,
        )

    def _in_step(
        self,
        window: Window,
        backwards: Sequence[Backward],
        gradients: Sequence[Sequence[SeenGradient]],
        begin: int,
    ) -> list[SeenCollective]:
        """The step's collectives with their roles; those of gradients as the lane came to them."""
        lo = bisect.bisect_left(self._collectives_at, window.start_ns)
        hi = bisect.bisect_left(self._collectives_at, window.end_ns)
        found = give_all_roles(self._collectives[lo:hi], gradients, backwards)
        return [self._reached(one, begin) if one.role == "gradients" else one for one in found]

    def _reached(self, one: SeenCollective, begin: int) -> SeenCollective:
        if self._lane is None:
            return replace(one, ready_ns=one.launched_ns)
        at = max(begin, self._lane.reached(one.launched_ns, begin))
        return replace(one, ready_ns=at) if one.timed else replace(one, ready_ns=at, start_ns=at, end_ns=at)


def _any_between(times_ns: Sequence[int], start_ns: int, end_ns: int) -> bool:
    """Whether one of sorted times lies in a span."""
    place = bisect.bisect_left(times_ns, start_ns)
    return place < len(times_ns) and times_ns[place] < end_ns


def _sent_before_accumulating(
    backward: Backward, collectives: Sequence[SeenCollective]
) -> list[SeenCollective]:
    """The reductions of a backward that sends all before its first AccumulateGrad; of others none."""
    sent = [one for one in collectives if one.role == "gradients"]
    return sent if sent and sent[-1].launched_ns < backward.accumulated[0].start_ns else []


def _added_by_copies(
    spans: Sequence[tuple[int, int]], collectives: Sequence[int], backward_end: int
) -> tuple[int, int]:
    """Time that copies add, and the end of the last; a copy's wait for its collective is not counted.

    A copy may seem to begin a little before its collective ends: what ended before its middle, it waited for.

    Args:
        spans: start and end of each copy, in order.
        collectives: when each of them ended, sorted.
        backward_end: when the lane was free.
    """
    added, free = 0, backward_end
    for start, end in spans:
        arrived = bisect.bisect_right(collectives, (start + end) // 2)
        since = max(free, min(start, collectives[arrived - 1])) if arrived else free
        added += max(0, end - since)
        free = max(free, end)
    return added, free
