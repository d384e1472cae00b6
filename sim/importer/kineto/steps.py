"""One rank's training steps out of its trace: where backward begins and ends, and when gradients are ready.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched up to the gradient's AccumulateGrad and its copy into a bucket: a device
time, which may be far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

import bisect
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.collectives import dtype_of, find_collectives, shape_of
from sim.importer.kineto.events import ACCUMULATE, NODE, Operator, TraceEvents
from sim.importer.kineto.lane import launched_spans, make_lane
from sim.importer.kineto.roles import Backward, give_roles
from sim.importer.kineto.seen import SeenCollective, SeenGradient, SeenStep
from sim.importer.kineto.windows import Window, find_windows

_BACKWARD = re.compile(r"\w+Backward\d*$")
_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_COPIES = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::copy_")


def find_steps(trace: TraceEvents) -> tuple[SeenStep, ...]:
    """The steps of a trace, whole ones only, in order.

    Raises:
        NotModelledError: no backward in it: inference, or a forward alone.
        InputError: no operators, or nothing that tells where a step begins and ends.
    """
    if trace.began_ns is None:
        raise InputError(
            f"{trace.source}: no CPU operators in it, which tell backward from forward; profile with "
            f"ProfilerActivity.CPU as well"
        )
    accumulated = [one for one in trace.operators if one.name == ACCUMULATE]
    if not accumulated:
        if any(_is_node(one) for one in trace.operators):
            raise NotModelledError(
                f"{trace.source}: backward accumulates no gradient (torch::autograd::AccumulateGrad is "
                f"missing): nothing is trained by it, or the trace leaves it out"
            )
        raise NotModelledError(
            f"{trace.source}: no backward in it: an inference trace, or a forward alone; give one of training"
        )
    accumulated.sort(key=_start)
    thread = Counter(one.thread for one in accumulated).most_common(1)[0][0]
    accumulated = [one for one in accumulated if one.thread == thread]
    windows = find_windows(trace, accumulated)
    reader = _Reader(trace, thread, accumulated, find_collectives(trace))
    steps = [
        reader.read(window, following)
        for window, following in zip(windows, [*windows[1:], None], strict=True)
    ]
    whole = tuple(step for step in steps if step is not None)
    if not whole:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
    return whole


def _start(operator: Operator) -> int:
    return operator.start_ns


def _is_node(operator: Operator) -> bool:
    return operator.name.startswith(NODE) or _BACKWARD.match(operator.name) is not None


def _is_hook(operator: Operator) -> bool:
    return operator.name.startswith(NODE) and operator.name.endswith(ACCUMULATE)


class _Reader:
    """Reads step after step of one trace."""

    def __init__(
        self,
        trace: TraceEvents,
        thread: str,
        accumulated: Sequence[Operator],
        collectives: Sequence[tuple[SeenCollective, str]],
    ) -> None:
        here = sorted((one for one in trace.operators if one.thread == thread), key=_start)
        self._thread = thread
        self._accumulated = accumulated
        self._accumulated_at = [one.start_ns for one in accumulated]
        self._nodes = [one for one in here if _is_node(one)]
        self._others = [one for one in self._nodes if not _is_hook(one)]
        self._hooks = [one for one in here if _is_hook(one)]
        self._copies_in = [one for one in here if one.name.startswith(_COPIES) and one.name != _COPY_OUT]
        self._copies_out = [one for one in here if one.name == _COPY_OUT]
        self._names_copies = bool(self._copies_in or self._copies_out)
        self._collectives = collectives
        self._collectives_at = [one.launched_ns for one, _ in collectives]
        self._optimizer_at = sorted(
            one.start_ns for one in trace.operators if one.name.startswith("Optimizer.step")
        )
        self._forwards_at = sorted(
            one.start_ns for one in trace.operators if one.name.startswith("DistributedDataParallel.forward")
        )
        spans = launched_spans(trace)
        self._device_at = sorted((launch, span.start_ns, span.end_ns) for launch, _, span in spans)
        self._lane = make_lane(spans, thread) if trace.gpu else None

    def read(self, window: Window, following: Window | None) -> SeenStep | None:
        """A step, or None where its backward is not in the trace, or not all of it."""
        first = bisect.bisect_left(self._accumulated_at, window.start_ns)
        last = bisect.bisect_left(self._accumulated_at, window.end_ns)
        if first == last:
            return None
        backwards = self._split(first, last)
        accumulated = backwards[-1]
        begin_cpu, end_cpu = self._backward_on_cpu(accumulated, backwards, window)
        until = self._until(end_cpu, window.end_ns)
        start_ns, end_ns = self._step_edges(window, following)
        edges = self._edges(begin_cpu, end_cpu)
        if edges is None or start_ns is None:
            return None
        backward_start, backward_end = edges
        gradients = tuple(self._gradient(one, backward_start) for one in accumulated)
        collectives = self._in_step(window, accumulated, gradients, begin_cpu, end_cpu, until, backward_start)
        sent = [one for one in collectives if one.role != "other"]
        copy_out, out_end = self._copy_out(end_cpu, until, backward_end, sent)
        sync_end = max([backward_end, out_end, *(one.end_ns for one in sent)])
        return SeenStep(
            number=window.number,
            start_ns=min(start_ns, backward_start),
            end_ns=max(end_ns, sync_end),
            backward_start_ns=backward_start,
            backward_end_ns=backward_end,
            sync_end_ns=sync_end,
            copy_in_ns=self._copy_in(accumulated, end_cpu),
            copy_out_ns=copy_out,
            micro_batches=len(backwards),
            gradients=gradients,
            collectives=tuple(collectives),
        )

    def _split(self, first: int, last: int) -> list[Sequence[Operator]]:
        """The backwards of a step: a forward of DDP's begins a new one."""
        parts: list[Sequence[Operator]] = []
        begin = first
        for place in range(first + 1, last):
            before, here = self._accumulated_at[place - 1], self._accumulated_at[place]
            lo = bisect.bisect_right(self._forwards_at, before)
            if lo < len(self._forwards_at) and self._forwards_at[lo] < here:
                parts.append(self._accumulated[begin:place])
                begin = place
        parts.append(self._accumulated[begin:last])
        return parts

    def _backward_on_cpu(
        self, accumulated: Sequence[Operator], backwards: Sequence[Sequence[Operator]], window: Window
    ) -> tuple[int, int]:
        """From the first node of the last backward to the end of its last node."""
        after = backwards[-2][-1].end_ns if len(backwards) > 1 else window.start_ns
        lo = bisect.bisect_left(self._nodes, after, key=_start)
        hi = bisect.bisect_right(self._nodes, accumulated[-1].end_ns, key=_start)
        begin = self._nodes[lo].start_ns if lo < hi else accumulated[0].start_ns
        end = accumulated[-1].end_ns
        stop = bisect.bisect_left(self._nodes, window.end_ns, key=_start)
        for node in self._nodes[lo:stop]:
            end = max(end, node.end_ns)
        return min(begin, accumulated[0].start_ns), min(end, max(window.end_ns, accumulated[-1].end_ns))

    def _until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        place = bisect.bisect_left(self._optimizer_at, end_cpu)
        found = self._optimizer_at[place] if place < len(self._optimizer_at) else window_end
        return min(found, window_end) if found > end_cpu else window_end

    def _step_edges(self, window: Window, following: Window | None) -> tuple[int | None, int]:
        """Where a step begins and ends on the device: with its first work, and the next one's."""
        if self._lane is None:
            return window.start_ns, window.end_ns
        start = self._first_work(window)
        end = self._first_work(following) if following is not None else None
        if end is None or start is None:
            lo = bisect.bisect_left(self._device_at, (window.start_ns,))
            hi = bisect.bisect_left(self._device_at, (window.end_ns,))
            end = max([window.end_ns, *(span[2] for span in self._device_at[lo:hi])])
        return start, end

    def _first_work(self, window: Window) -> int | None:
        lo = bisect.bisect_left(self._device_at, (window.start_ns,))
        if lo == len(self._device_at) or self._device_at[lo][0] >= window.end_ns:
            return None
        return self._device_at[lo][1]

    def _edges(self, begin_cpu: int, end_cpu: int) -> tuple[int, int] | None:
        """Start and end of backward on the lane."""
        if self._lane is None:
            return begin_cpu, end_cpu
        work = self._lane.between(begin_cpu, end_cpu)
        if not work:
            return None
        begin = self._lane.start_ns[work.start]
        return begin, max(self._lane.reached_ns[work.stop - 1], begin)

    def _copy_in(self, accumulated: Sequence[Operator], end_cpu: int) -> int:
        """The copies into buckets: the lane's work in hooks, or DDP's own operators on the CPU."""
        if self._lane is None:
            copies = _between(self._copies_in, accumulated[0].start_ns, end_cpu)
            return sum(one.end_ns - one.start_ns for one in copies)
        return sum(
            self._lane.end_ns[place] - self._lane.start_ns[place]
            for one in accumulated
            if (hook := self._hook(one)) is not None
            for place in self._lane.between(one.end_ns + 1, hook.end_ns)
        )

    def _copy_out(
        self, end_cpu: int, until: int, backward_end: int, collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """What copies out of buckets add after backward, and their end; waits for collectives are not
        counted. Traces too old to name copies: all that the lane does before the optimizer.
        """
        ends = sorted(one.end_ns for one in collectives)
        spans: Sequence[tuple[int, int]] = []
        if not ends:
            return 0, backward_end
        named = _between(self._copies_out, end_cpu, until)
        if self._lane is None:
            spans = [(one.start_ns, one.end_ns) for one in named]
        else:
            last = max((one.end_ns for one in named), default=end_cpu) if self._names_copies else until
            work = self._lane.between(end_cpu + 1, last)
            spans = [(self._lane.start_ns[place], self._lane.end_ns[place]) for place in work]
        added, free = 0, backward_end
        for start, end in spans:
            arrived = bisect.bisect_right(ends, start)
            since = max(free, ends[arrived - 1]) if arrived else free
            added += max(0, end - since)
            free = max(free, end)
        return added, free

    def _hook(self, accumulated: Operator) -> Operator | None:
        """The engine's call around an AccumulateGrad: what it does after it are hooks."""
        place = bisect.bisect_right(self._hooks, accumulated.start_ns, key=_start)
        if not place:
            return None
        hook = self._hooks[place - 1]
        return hook if hook.end_ns >= accumulated.end_ns else None

    def _gradient(self, accumulated: Operator, begin: int) -> SeenGradient:
        dims, types = accumulated.arguments.get("dims"), accumulated.arguments.get("types")
        shape = shape_of(dims[0]) if isinstance(dims, list) and len(dims) == 1 else None
        word = types[0] if isinstance(types, list) and types else None
        hook = self._hook(accumulated)
        copies = _between(self._copies_in, accumulated.end_ns, hook.end_ns) if hook is not None else ()
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
            reduced=bool(copies) if self._copies_in and hook is not None else None,
        )

    def _in_step(
        self,
        window: Window,
        accumulated: Sequence[Operator],
        gradients: Sequence[SeenGradient],
        begin_cpu: int,
        end_cpu: int,
        until: int,
        begin: int,
    ) -> list[SeenCollective]:
        """The step's collectives with their roles; those of gradients as the lane came to them."""
        lo = bisect.bisect_left(self._collectives_at, window.start_ns)
        hi = bisect.bisect_left(self._collectives_at, window.end_ns)
        copied = _between(self._copies_out, end_cpu, until)
        backward = Backward(
            thread=self._thread,
            start_ns=begin_cpu,
            end_ns=end_cpu,
            until_ns=min(until, copied[0].start_ns) if copied else until,
            accumulated=accumulated,
            hooks=_between(self._hooks, begin_cpu, end_cpu),
            nodes=_between(self._others, begin_cpu, end_cpu),
        )
        found = give_roles(self._collectives[lo:hi], gradients, backward)
        return [self._reached(one, begin) if one.role == "gradients" else one for one in found]

    def _reached(self, one: SeenCollective, begin: int) -> SeenCollective:
        if self._lane is None:
            return replace(one, ready_ns=one.launched_ns)
        at = max(begin, self._lane.reached(one.launched_ns, begin))
        return replace(one, ready_ns=at) if one.timed else replace(one, ready_ns=at, start_ns=at, end_ns=at)


def _between(operators: Sequence[Operator], start_ns: int, end_ns: int) -> Sequence[Operator]:
    """Those of a sorted list that begin in a span of time."""
    return operators[
        bisect.bisect_left(operators, start_ns, key=_start) : bisect.bisect_left(
            operators, end_ns, key=_start
        )
    ]
