"""One rank's training steps out of its trace: where backward begins and ends, and when gradients are ready.

The compute lane is the stream that runs most of backward's kernels. It has a gradient when it has finished
all that autograd's thread launched before the gradient's AccumulateGrad ended: a device time, which may be
far behind the CPU's. Without a GPU the lane is autograd's thread itself.
"""

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sim.errors import InputError, NotModelledError
from sim.importer.kineto.collectives import dtype_of, find_collectives, shape_of
from sim.importer.kineto.events import ACCUMULATE, NODE, GpuSpan, Operator, TraceEvents
from sim.importer.kineto.kernels import is_communication
from sim.importer.kineto.seen import Role, SeenCollective, SeenGradient, SeenStep

_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})$")
_BACKWARD = re.compile(r"\w+Backward\d*$")
_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_COPY_IN = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::copy_")


@dataclass(frozen=True, slots=True)
class _Window:
    """A step on the CPU."""

    number: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class _Lane:
    """What the device ran of autograd's thread and when the CPU launched it, by launch."""

    launched_ns: list[int]
    start_ns: list[int]
    end_ns: list[int]
    reached_ns: list[int]

    def reached(self, time_ns: int, otherwise: int) -> int:
        """When the lane had finished all that was launched up to a time of the CPU."""
        place = bisect.bisect_right(self.launched_ns, time_ns)
        return self.reached_ns[place - 1] if place else otherwise

    def between(self, start_ns: int, end_ns: int) -> range:
        """What was launched in a span of the CPU's time."""
        return range(
            bisect.bisect_left(self.launched_ns, start_ns), bisect.bisect_right(self.launched_ns, end_ns)
        )


def find_steps(trace: TraceEvents) -> tuple[SeenStep, ...]:
    """The steps of a trace, whole ones only, in order.

    Raises:
        NotModelledError: no backward in it: inference, or a forward alone.
        InputError: no operators, or nothing that tells where a step begins and ends.
    """
    if not trace.operators:
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
    accumulated.sort(key=lambda one: one.start_ns)
    thread = Counter(one.thread for one in accumulated).most_common(1)[0][0]
    accumulated = [one for one in accumulated if one.thread == thread]
    nodes = sorted(
        (one for one in trace.operators if one.thread == thread and _is_node(one)),
        key=lambda one: (one.start_ns, -one.end_ns),
    )
    windows = _windows(trace, accumulated)
    collectives = find_collectives(trace)
    reader = _Reader(trace, thread, accumulated, nodes, collectives)
    steps = [reader.read(window, following) for window, following in _with_next(windows)]
    whole = tuple(step for step in steps if step is not None)
    if not whole:
        raise InputError(f"{trace.source}: no whole training step in it; profile at least one more")
    return whole


def _is_node(operator: Operator) -> bool:
    return operator.name.startswith(NODE) or _BACKWARD.match(operator.name) is not None


def _with_next(windows: Sequence[_Window]) -> list[tuple[_Window, _Window | None]]:
    return list(zip(windows, [*windows[1:], None], strict=True))


def _windows(trace: TraceEvents, accumulated: Sequence[Operator]) -> list[_Window]:
    """Steps on the CPU: the profiler's own, else from one optimizer step to the next, else the only one."""
    marked = sorted(
        {
            (operator.start_ns, operator.end_ns, int(match[1]))
            for operator in trace.operators
            if (match := _STEP.match(operator.name))
        }
    )
    if marked:
        return [_Window(number, start, end) for start, end, number in marked]
    begin = min(operator.start_ns for operator in trace.operators)
    end = max(operator.end_ns for operator in trace.operators)
    ends = sorted(one.end_ns for one in trace.operators if one.name.startswith("Optimizer.step"))
    if ends:
        edges = [begin, *ends]
        return [_Window(number, *edge) for number, edge in enumerate(pairwise(edges))]
    forwards = [one for one in trace.operators if one.name.startswith("DistributedDataParallel.forward")]
    if len(forwards) <= 1 and _backwards(accumulated) == 1:
        return [_Window(0, begin, end)]
    raise InputError(
        f"{trace.source}: nothing tells where a step begins; call prof.step() after each step, or profile "
        f"with the optimizer's step in it"
    )


def _backwards(accumulated: Sequence[Operator]) -> int:
    """How many backwards a lone stretch may hold: it is one if no pause stands out."""
    gaps = sorted(after.start_ns - before.end_ns for before, after in pairwise(accumulated))
    span = accumulated[-1].end_ns - accumulated[0].start_ns
    return 1 + sum(gap > span / 3 for gap in gaps)


class _Reader:
    """Reads step after step of one trace."""

    def __init__(
        self,
        trace: TraceEvents,
        thread: str,
        accumulated: Sequence[Operator],
        nodes: Sequence[Operator],
        collectives: Sequence[tuple[SeenCollective, str]],
    ) -> None:
        self._accumulated = accumulated
        self._accumulated_at = [one.start_ns for one in accumulated]
        self._nodes = nodes
        self._nodes_at = [one.start_ns for one in nodes]
        self._hooks = {
            one.start_ns: one for one in nodes if one.name.startswith(NODE) and one.name.endswith(ACCUMULATE)
        }
        self._hooks_at = sorted(self._hooks)
        self._collectives = collectives
        self._collectives_at = [one.launched_ns for one, _ in collectives]
        self._optimizer_at = sorted(
            one.start_ns for one in trace.operators if one.name.startswith("Optimizer.step")
        )
        self._copies_in_at = sorted(
            one.start_ns
            for one in trace.operators
            if one.thread == thread and one.name.startswith(_COPY_IN) and one.name != _COPY_OUT
        )
        self._forwards_at = sorted(
            one.start_ns for one in trace.operators if one.name.startswith("DistributedDataParallel.forward")
        )
        self._has_device = bool(trace.gpu)
        spans = _launched(trace)
        self._device_at = sorted((launch, span.start_ns, span.end_ns) for launch, _, span in spans)
        self._lane = _lane(spans, thread) if self._has_device else None

    def read(self, window: _Window, following: _Window | None) -> SeenStep | None:
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
        timed = self._time(accumulated, begin_cpu, end_cpu)
        if timed is None or start_ns is None:
            return None
        backward_start, backward_end, copy_in = timed
        collectives = self._in_step(window, accumulated, begin_cpu, until, backward_start)
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
            copy_in_ns=copy_in,
            copy_out_ns=copy_out,
            micro_batches=len(backwards),
            gradients=tuple(self._gradient(one, backward_start) for one in accumulated),
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
        self, accumulated: Sequence[Operator], backwards: Sequence[Sequence[Operator]], window: _Window
    ) -> tuple[int, int]:
        """From the first node of the last backward to the end of its last node."""
        after = backwards[-2][-1].end_ns if len(backwards) > 1 else window.start_ns
        lo = bisect.bisect_left(self._nodes_at, after)
        hi = bisect.bisect_right(self._nodes_at, accumulated[-1].end_ns)
        begin = self._nodes_at[lo] if lo < hi else accumulated[0].start_ns
        end = accumulated[-1].end_ns
        stop = bisect.bisect_left(self._nodes_at, window.end_ns)
        for node in self._nodes[lo:stop]:
            end = max(end, node.end_ns)
        return min(begin, accumulated[0].start_ns), min(end, max(window.end_ns, accumulated[-1].end_ns))

    def _until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        place = bisect.bisect_left(self._optimizer_at, end_cpu)
        found = self._optimizer_at[place] if place < len(self._optimizer_at) else window_end
        return min(found, window_end) if found > end_cpu else window_end

    def _step_edges(self, window: _Window, following: _Window | None) -> tuple[int | None, int]:
        """Where a step begins and ends on the device: with its first work, and the next one's."""
        if not self._has_device:
            return window.start_ns, window.end_ns
        start = self._first_work(window)
        end = self._first_work(following) if following is not None else None
        if end is None or start is None:
            lo = bisect.bisect_left(self._device_at, (window.start_ns,))
            hi = bisect.bisect_left(self._device_at, (window.end_ns,))
            end = max([window.end_ns, *(span[2] for span in self._device_at[lo:hi])])
        return start, end

    def _first_work(self, window: _Window) -> int | None:
        lo = bisect.bisect_left(self._device_at, (window.start_ns,))
        if lo == len(self._device_at) or self._device_at[lo][0] >= window.end_ns:
            return None
        return self._device_at[lo][1]

    def _time(
        self, accumulated: Sequence[Operator], begin_cpu: int, end_cpu: int
    ) -> tuple[int, int, int] | None:
        """Start and end of backward on the lane, and the copies into buckets in it."""
        if self._lane is None:
            return begin_cpu, end_cpu, 0
        work = self._lane.between(begin_cpu, end_cpu)
        if not work:
            return None
        begin = self._lane.start_ns[work.start]
        copies = [
            place
            for one in accumulated
            if (hook := self._hook(one)) is not None
            for place in self._lane.between(one.end_ns + 1, hook.end_ns)
        ]
        return (
            begin,
            max(self._lane.reached_ns[work.stop - 1], begin),
            sum(self._lane.end_ns[place] - self._lane.start_ns[place] for place in copies),
        )

    def _copy_out(
        self, end_cpu: int, until: int, backward_end: int, collectives: Sequence[SeenCollective]
    ) -> tuple[int, int]:
        """What the lane's work after backward adds, and its end; waits for collectives are not counted."""
        if self._lane is None:
            end = max([backward_end, *(one.end_ns for one in collectives)])
            return max(0, until - end), max(until, end)
        ends = sorted(one.end_ns for one in collectives)
        added, free = 0, backward_end
        for place in self._lane.between(end_cpu + 1, until) if collectives else ():
            start, end = self._lane.start_ns[place], self._lane.end_ns[place]
            arrived = bisect.bisect_right(ends, start)
            since = max(free, ends[arrived - 1]) if arrived else free
            added += max(0, end - since)
            free = max(free, end)
        return added, free

    def _hook(self, accumulated: Operator) -> Operator | None:
        """The engine's call around an AccumulateGrad: what it does after it are hooks."""
        place = bisect.bisect_right(self._hooks_at, accumulated.start_ns)
        if not place:
            return None
        hook = self._hooks[self._hooks_at[place - 1]]
        return hook if hook.end_ns >= accumulated.end_ns else None

    def _gradient(self, accumulated: Operator, begin: int) -> SeenGradient:
        ready = accumulated.end_ns
        if self._lane is not None:
            ready = max(begin, self._lane.reached(accumulated.end_ns, begin))
        dims, types = accumulated.arguments.get("dims"), accumulated.arguments.get("types")
        shape = shape_of(dims[0]) if isinstance(dims, list) and len(dims) == 1 else None
        word = types[0] if isinstance(types, list) and types else None
        hook = self._hook(accumulated)
        reduced = None
        if self._copies_in_at and hook is not None:
            place = bisect.bisect_left(self._copies_in_at, accumulated.end_ns)
            reduced = place < len(self._copies_in_at) and self._copies_in_at[place] < hook.end_ns
        return SeenGradient(
            ready_ns=ready,
            hooked_at_ns=accumulated.end_ns,
            shape=shape,
            dtype=dtype_of(word),
            reduced=reduced,
        )

    def _in_step(
        self, window: _Window, accumulated: Sequence[Operator], begin_cpu: int, until: int, begin: int
    ) -> list[SeenCollective]:
        """The step's collectives with their roles; those without a kernel as the lane came to them."""
        lo = bisect.bisect_left(self._collectives_at, window.start_ns)
        hi = bisect.bisect_left(self._collectives_at, window.end_ns)
        found = [
            replace(one, role=self._role(one, thread, accumulated, until))
            for one, thread in self._collectives[lo:hi]
        ]
        if not any(one.role == "gradients" for one in found):
            found = _inside_one_node(found, len(accumulated), begin_cpu, until)
        return [self._reached(one, begin) if one.role == "gradients" else one for one in found]

    def _reached(self, one: SeenCollective, begin: int) -> SeenCollective:
        if self._lane is None:
            return replace(one, ready_ns=one.launched_ns)
        at = max(begin, self._lane.reached(one.launched_ns, begin))
        return (
            replace(one, ready_ns=at) if one.on_device else replace(one, ready_ns=at, start_ns=at, end_ns=at)
        )

    def _role(self, one: SeenCollective, thread: str, accumulated: Sequence[Operator], until: int) -> Role:
        if one.kind not in ("all_reduce", "coalesced"):
            return "other"
        if not accumulated[0].start_ns <= one.launched_ns < until:
            return "other"
        after_all = one.launched_ns > accumulated[-1].start_ns
        if not after_all and not self._from_hook(one.launched_ns, thread):
            return "other"
        return "map" if one.dtype in ("int32", "int64") else "gradients"

    def _from_hook(self, launched_ns: int, thread: str) -> bool:
        """Whether an AccumulateGrad's hook launched it; traces without the engine's calls cannot tell."""
        if not self._hooks_at or thread != self._accumulated[0].thread:
            return True
        place = bisect.bisect_right(self._hooks_at, launched_ns)
        return bool(place) and self._hooks[self._hooks_at[place - 1]].end_ns >= launched_ns


def _inside_one_node(
    found: Sequence[SeenCollective], gradients: int, begin_cpu: int, until: int
) -> list[SeenCollective]:
    """One all-reduce a gradient within backward, though no hook sent them: a compiled backward's own."""
    inside = [one.kind == "all_reduce" and begin_cpu <= one.launched_ns < until for one in found]
    if sum(inside) != gradients:
        return list(found)
    return [
        replace(one, role="gradients") if within else one for one, within in zip(found, inside, strict=True)
    ]


def _launched(trace: TraceEvents) -> list[tuple[int, str, GpuSpan]]:
    """What the device ran apart from communication, with launch and thread; without a launch: left out."""
    found = []
    for span in trace.gpu:
        launch = trace.launches.get(span.correlation) if span.correlation is not None else None
        if launch is not None and not is_communication(span.name):
            found.append((*launch, span))
    found.sort(key=lambda one: (one[0], one[2].start_ns))
    return found


def _lane(spans: Sequence[tuple[int, str, GpuSpan]], thread: str) -> _Lane:
    """The stream that autograd's thread keeps busiest."""
    here = [(launch, span) for launch, by, span in spans if by == thread]
    busy: dict[int, int] = defaultdict(int)
    for _, span in here:
        busy[span.stream] += span.end_ns - span.start_ns
    stream = max(busy, key=busy.__getitem__) if busy else None
    here = [(launch, span) for launch, span in here if span.stream == stream]
    reached: list[int] = []
    for _, span in here:
        reached.append(max(reached[-1], span.end_ns) if reached else span.end_ns)
    return _Lane(
        [launch for launch, _ in here],
        [span.start_ns for _, span in here],
        [span.end_ns for _, span in here],
        reached,
    )
