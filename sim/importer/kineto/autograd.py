"""What autograd's thread did on the CPU: backwards, their nodes and hooks, and DDP's copies."""

import bisect
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sim.importer.kineto.backwards import StretchedBackward, split_backwards
from sim.importer.kineto.events import ACCUMULATE, NODE, Operator, TraceEvents
from sim.importer.kineto.roles import Backward
from sim.importer.kineto.windows import Window

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
        over = [*(one.since_ns for one in stretches[1:]), window.end_ns]
        return [self._backward(*one) for one in zip(stretches, over, strict=True)]

    def _backward(self, stretch: StretchedBackward, over_ns: int) -> Backward:
        """From a backward's first node to the end of its last, which began before ``over_ns``."""
        accumulated = stretch.accumulated
        nodes = between(self._nodes, stretch.since_ns, over_ns)
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
