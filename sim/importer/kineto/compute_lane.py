"""The compute lane: what the device ran for autograd's thread, by when the CPU launched it."""

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sim.importer.kineto.events import GpuSpan, TraceEvents
from sim.importer.kineto.kernel_names import is_communication


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
