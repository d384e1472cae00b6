"""Where a trace's steps begin and end on the CPU."""

import bisect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.errors import InputError
from sim.importer.kineto.events import Operator, TraceEvents

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
    if backwards == 1 and not _pauses(accumulated):
        return [Window(0, begin, end, cut=True)]
    raise InputError(
        f"{trace.source}: {max(backwards, 2)} backwards or more in it, and nothing tells where a step "
        f"begins; call prof.step() after each step, or profile with the optimizer's step in it"
    )


def _pauses(accumulated: Sequence[Operator]) -> bool:
    """Whether a pause takes over a third of the time of ``accumulated``: it may then be several backwards."""
    span = accumulated[-1].end_ns - accumulated[0].start_ns
    return any(after.start_ns - before.end_ns > span / 3 for before, after in pairwise(accumulated))
