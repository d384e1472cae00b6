"""What autograd's thread did on the CPU, and the device for it: steps, backwards, the compute lane."""

import bisect
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from sim.errors import InputError
from sim.importer.kineto.events import ACCUMULATE, NODE, GpuSpan, Operator, TraceEvents, is_communication

# ---- windows

_STEP = re.compile(r"ProfilerStep#([0-9]{1,18})$")


@dataclass(frozen=True, slots=True)
class Window:
    """A step on the CPU; ``cut``: it begins with the trace, perhaps in the midst of the step."""

    number: int
    start_ns: int
    end_ns: int
    cut: bool = False


def find_windows(trace: TraceEvents, accumulated: Sequence[Operator], backwards: int) -> list[Window]:
    """Steps: the profiler's own, else from one optimizer step to the next, else the whole trace as one.

    ``accumulated`` are its AccumulateGrads; ``backwards`` is how many backwards the whole trace shows.

    Raises:
        InputError: nothing tells where a step begins.
    """
    marked = sorted(
        {
            (operator.start_ns, operator.end_ns, int(match[1]))
            for operator in trace.operators
            if (match := _STEP.match(operator.name))
        }
    )
    if marked:
        return [Window(number, start, end) for start, end, number in marked]
    begin = min(operator.start_ns for operator in trace.operators)
    begin = begin if trace.began_ns is None else min(begin, trace.began_ns)
    end = max(operator.end_ns for operator in trace.operators)
    ends = sorted(one.end_ns for one in trace.operators if one.name.startswith("Optimizer.step"))
    # Of several optimizer steps with no backward between them only the last ends a training step.
    backward = {bisect.bisect_left(ends, one.start_ns) for one in accumulated}
    ends = [end for place, end in enumerate(ends, 1) if place in backward or place == len(ends)]
    if ends:
        edges = [begin, *ends]
        return [Window(number, *edge, cut=number == 0) for number, edge in enumerate(pairwise(edges))]
    if backwards == 1 and not _is_paused(accumulated):
        return [Window(0, begin, end, cut=True)]
    raise InputError(
        f"{trace.source}: {max(backwards, 2)} backwards or more in it, and nothing tells where a step "
        f"begins; call prof.step() after each step, or profile with the optimizer's step in it"
    )


def _is_paused(accumulated: Sequence[Operator]) -> bool:
    """Whether a pause takes over a third of the time of ``accumulated``: it may then be several backwards."""
    span = accumulated[-1].end_ns - accumulated[0].start_ns
    return any(after.start_ns - before.end_ns > span / 3 for before, after in pairwise(accumulated))


# ---- backwards


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward on the CPU: what its thread did, and until when what follows belongs to it.

    ``hooks`` are the engine's calls around AccumulateGrads (none in older traces), ``nodes`` the operators
    of other functions, both by start; ``until_ns`` is when the optimizer, or DDP's first copy out, began.
    """

    thread: str
    start_ns: int
    end_ns: int
    until_ns: int
    accumulated: Sequence[Operator]
    hooks: Sequence[Operator]
    nodes: Sequence[Operator]


def split_backwards(
    accumulated: Sequence[Operator], since_ns: int, forwards_at: Sequence[int], nodes: Sequence[Operator]
) -> list[tuple[int, Sequence[Operator]]]:
    """The backwards of a stretch: an instant on the CPU ahead of the first node of each, and its
    AccumulateGrads.

    A new one begins where a forward lies between two AccumulateGrads. If no forward can be seen (CPU alone,
    without DDP), it begins with each copy of one list of shapes that follows a pause as long as a forward.

    Args:
        accumulated: AccumulateGrads, by start; at least one.
        since_ns: when the stretch begins.
        forwards_at: when forward did something: its annotation, or a launch by a thread other than
            autograd's; sorted.
        nodes: autograd's nodes on its thread, by start.
    """
    borders = []
    for place in range(1, len(accumulated)):
        at = bisect.bisect_right(forwards_at, accumulated[place - 1].end_ns)
        if at < len(forwards_at) and forwards_at[at] < accumulated[place].start_ns:
            borders.append((place, forwards_at[at]))
    if not forwards_at:
        borders = _copies(accumulated, nodes)
    edges = [(0, since_ns), *borders, (len(accumulated), 0)]
    return [(since, accumulated[place:end]) for (place, since), (end, _) in pairwise(edges)]


def _copies(accumulated: Sequence[Operator], nodes: Sequence[Operator]) -> list[tuple[int, int]]:
    """Where copies of one list of shapes begin, and the start of the pause before each; empty: one list."""
    count = len(accumulated)
    shapes = [str(one.arguments.get("dims")) for one in accumulated]
    lengths = [
        length
        for length in range(1, count // 2 + 1)
        if count % length == 0 and shapes == shapes[:length] * (count // length)
    ]
    if not lengths:
        return []
    pauses = _pauses(accumulated, nodes)
    for length in lengths:
        if all(_is_forward(place, length, pauses, accumulated) for place in range(length, count, length)):
            return [(place, pauses[place][1]) for place in range(length, count, length)]
    return []


def _is_forward(
    place: int, length: int, pauses: Sequence[tuple[int, int]], accumulated: Sequence[Operator]
) -> bool:
    """Whether the pause before a copy may be a forward: longer than all pauses in the copy, and than a
    quarter of the copy's time.

    A forward takes about half as long as its backward.
    """
    pause = pauses[place][0]
    backward = accumulated[place + length - 1].end_ns - accumulated[place - 1].end_ns - pause
    longest = max((inside for inside, _ in pauses[place + 1 : place + length]), default=0)
    return pause > longest and 4 * pause > backward


def _pauses(accumulated: Sequence[Operator], nodes: Sequence[Operator]) -> list[tuple[int, int]]:
    """Before each AccumulateGrad, the longest time in which no node ran, and when it began; (0, 0) of the
    first.
    """
    found = [(0, 0)]
    place = bisect.bisect_left(nodes, accumulated[0].start_ns, key=lambda one: one.start_ns)
    for before, after in pairwise(accumulated):
        reached, longest, at = before.end_ns, 0, before.end_ns
        while place < len(nodes) and nodes[place].start_ns < after.start_ns:
            longest, at = max((longest, at), (nodes[place].start_ns - reached, reached))
            reached = max(reached, nodes[place].end_ns)
            place += 1
        found.append(max((longest, at), (after.start_ns - reached, reached)))
    return found


def of_one_model(one: Sequence[Operator], other: Sequence[Operator]) -> bool:
    """Whether two backwards can be micro-batches of one model: one's shapes are among the other's."""
    counts = [Counter(str(each.arguments.get("dims")) for each in stretch) for stretch in (one, other)]
    return counts[0] <= counts[1] or counts[1] <= counts[0]


# ---- autograd's thread

_BACKWARD = re.compile(r"\w+Backward\d*$")
_COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_COPIES = ("torch::distributed::reducer::", "torch.distributed.ddp.reducer::copy_")


def start_of(operator: Operator) -> int:
    """When it began."""
    return operator.start_ns


def is_node(operator: Operator) -> bool:
    """Whether it is a function of autograd's, or the engine's call of one."""
    return operator.name.startswith(NODE) or _BACKWARD.match(operator.name) is not None


def _is_hook(operator: Operator) -> bool:
    return operator.name == NODE + ACCUMULATE


def find_accumulations(trace: TraceEvents) -> list[Operator]:
    """The AccumulateGrads of a trace, by start. Where only the engine's call of one is there (a sampled trace
    leaves out what is inside), it stands for it: at its start, as all that it does later are hooks.
    """
    found = [one for one in trace.operators if one.name == ACCUMULATE]
    inside: dict[str, list[Operator]] = defaultdict(list)
    for one in sorted(found, key=start_of):
        inside[one.thread].append(one)
    for call in (one for one in trace.operators if _is_hook(one)):
        if not between(inside[call.thread], call.start_ns, call.end_ns + 1):
            found.append(replace(call, name=ACCUMULATE, end_ns=call.start_ns))
    return sorted(found, key=start_of)


def between(operators: Sequence[Operator], start_ns: int, end_ns: int) -> Sequence[Operator]:
    """Those of a sorted list that begin in a span of time."""
    return operators[
        bisect.bisect_left(operators, start_ns, key=start_of) : bisect.bisect_left(
            operators, end_ns, key=start_of
        )
    ]


class AutogradThread:
    """One trace's operators on the thread of ``accumulated``, its AccumulateGrads by start; and when
    optimizers, and forwards of DDP's and FSDP2's, began on any thread.
    """

    def __init__(self, trace: TraceEvents, thread: str, accumulated: Sequence[Operator]) -> None:
        here = sorted((one for one in trace.operators if one.thread == thread), key=start_of)
        self.thread = thread
        self.copies_in = [one for one in here if one.name.startswith(_COPIES) and one.name != _COPY_OUT]
        self.copies_out = [one for one in here if one.name == _COPY_OUT]
        self.names_copies = bool(self.copies_in or self.copies_out)
        self.optimizer_at = _starts(trace, "Optimizer.step")
        self.forwards_at = _starts(trace, "DistributedDataParallel.forward", "FSDP::root_pre_forward")
        self._accumulated = accumulated
        self._nodes = [one for one in here if is_node(one)]
        self._others = [one for one in self._nodes if not _is_hook(one)]
        self._hooks = [one for one in here if _is_hook(one)]

    def backwards(self, window: Window, forward_at: Sequence[int]) -> list[Backward]:
        """The backwards of a step; what comes before the optimizer belongs to the last.

        ``forward_at`` is when forward did something, sorted.
        """
        accumulated = between(self._accumulated, window.start_ns, window.end_ns)
        if not accumulated:
            return []
        stretches = split_backwards(accumulated, window.start_ns, forward_at, self._nodes)
        over = [*(since for since, _ in stretches[1:]), window.end_ns]
        return [self._backward(*stretch, end) for stretch, end in zip(stretches, over, strict=True)]

    def _backward(self, since_ns: int, accumulated: Sequence[Operator], over_ns: int) -> Backward:
        """From a backward's first node to the end of its last, which began before ``over_ns``."""
        nodes = between(self._nodes, since_ns, over_ns)
        begin = min([accumulated[0].start_ns, *(one.start_ns for one in nodes[:1])])
        end = max([accumulated[-1].end_ns, *(one.end_ns for one in nodes)])
        end = min(end, max(over_ns, accumulated[-1].end_ns))
        until = self.until(end, over_ns)
        copied = between(self.copies_out, end, until)
        return Backward(
            thread=self.thread,
            start_ns=begin,
            end_ns=end,
            until_ns=min(until, copied[0].start_ns) if copied else until,
            accumulated=accumulated,
            hooks=between(self._hooks, begin, end),
            nodes=between(self._others, begin, end),
        )

    def until(self, end_cpu: int, window_end: int) -> int:
        """When what belongs to backward was launched: before the optimizer, and within the step."""
        place = bisect.bisect_left(self.optimizer_at, end_cpu)
        found = self.optimizer_at[place] if place < len(self.optimizer_at) else window_end
        return min(found, window_end) if found > end_cpu else window_end

    def hook(self, accumulated: Operator) -> Operator | None:
        """The engine's call around an AccumulateGrad: what it does after it are hooks."""
        place = bisect.bisect_right(self._hooks, accumulated.start_ns, key=start_of)
        if not place:
            return None
        hook = self._hooks[place - 1]
        return hook if hook.end_ns >= accumulated.end_ns else None


def _starts(trace: TraceEvents, *names: str) -> list[int]:
    return sorted(one.start_ns for one in trace.operators if one.name.startswith(names))


# ---- the compute lane


@dataclass(frozen=True, slots=True)
class ComputeLane:
    """What the device ran of autograd's thread and when the CPU launched it, by launch.

    ``stream`` is the device's, None where autograd's thread launched nothing.
    """

    stream: int | None
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


def launched_spans(trace: TraceEvents) -> list[tuple[int, str, GpuSpan]]:
    """What the device ran apart from communication, with launch and thread; without a launch: left out."""
    found = []
    for span in trace.gpu:
        launch = trace.launches.get(span.correlation) if span.correlation is not None else None
        if launch is not None and not is_communication(span.name):
            found.append((*launch, span))
    found.sort(key=lambda one: (one[0], one[2].start_ns))
    return found


def make_lane(spans: Sequence[tuple[int, str, GpuSpan]], thread: str) -> ComputeLane:
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
    return ComputeLane(
        stream,
        [launch for launch, _ in here],
        [span.start_ns for _, span in here],
        [span.end_ns for _, span in here],
        reached,
    )
