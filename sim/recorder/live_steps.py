"""The stamps of one step as they are made, and the line that they become."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sim.recorder.clocks import Stamp
from sim.recorder.live_clocks import LiveClock
from sim.recorder.tap import BucketStamps


@dataclass(slots=True, kw_only=True)
class BackwardStamps:
    """One forward and the backward that follows it; stamps that have not been made yet are None.

    ``task`` is autograd's task in which the end of backward was last asked for; ``fired`` the number of
    firings that had come when it ended.
    """

    started: Stamp
    synchronised: bool
    forwards: int
    forward_start: Stamp = None
    forward_end: Stamp = None
    end: Stamp = None
    sync_end: Stamp = None
    stream: object = None  # that forward began on
    is_aside: bool = False  # and gradients were accumulated on another
    task: int | None = None
    fired: int = 0
    firings: list[tuple[int, Stamp]] = field(default_factory=list)
    buckets: list[BucketStamps] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether forward and backward ran to their ends (neither raised)."""
        ends = (self.forward_start, self.forward_end, self.end, self.sync_end)
        return None not in ends and all(row.end is not None for row in self.buckets)

    def line(self, clock: LiveClock, step_start: Stamp, count: int) -> dict[str, Any]:
        """As JSON: the start from the start of the step, all else from the end of forward (A3.1), in ns."""

        def from_forward(stamp: Stamp) -> int:
            return max(0, clock.between_ns(self.forward_end, stamp))

        ready: list[int | None] = [None] * count
        uses: dict[int, int] = {}
        for index, stamp in self.firings:
            if ready[index] is not None:
                uses[index] = uses.get(index, 1) + 1
            ready[index] = from_forward(stamp)
        return {
            # A forward with gradients and without backward leaves the Reducer armed: the next backward is
            # reduced even under no_sync.
            "synchronised": self.synchronised or bool(self.buckets),
            "forwards": self.forwards,
            "started_ns": clock.between_ns(step_start, self.started),
            "forward_start_ns": clock.between_ns(step_start, self.forward_start),
            "forward_end_ns": clock.between_ns(step_start, self.forward_end),
            "backward_ns": from_forward(self.end),
            "sync_end_ns": from_forward(self.sync_end),
            "ready_ns": ready,
            "uses": uses,
            "buckets": [
                {
                    "index": place,
                    "num_bytes": row.num_bytes,
                    "ready_ns": from_forward(row.ready),
                    "launch_ns": from_forward(row.launch),
                    "end_ns": from_forward(row.end),
                }
                for place, row in enumerate(self.buckets)
            ],
        }

    def stamps(self) -> Iterator[Stamp]:
        """All stamps of a complete backward."""
        yield from (self.started, self.forward_start, self.forward_end, self.end, self.sync_end)
        yield from (stamp for _, stamp in self.firings)
        for row in self.buckets:
            yield from (row.ready, row.launch, row.end)


@dataclass(slots=True, kw_only=True)
class StepStamps:
    """One optimizer step; ``start`` None: it is counted and not recorded.

    ``optimizer_ends`` are those after backward: an optimizer that steps inside it has no end of its own.
    """

    number: int
    start: Stamp
    started_at_ns: int = field(default_factory=time.time_ns)
    backwards: list[BackwardStamps] = field(default_factory=list)
    optimizer_ends: list[Stamp] = field(default_factory=list)
    end: Stamp = None
    compiled: bool = False

    @property
    def aside(self) -> bool:
        """Whether gradients were accumulated on another stream than forward ran on."""
        return any(backward.is_aside for backward in self.backwards)

    @property
    def last(self) -> Stamp:
        """The stamp that is made last, and so reached last."""
        if self.optimizer_ends:
            return self.optimizer_ends[-1]
        return self.backwards[-1].sync_end if self.end is None else self.end

    def fired(self) -> list[int]:
        """Parameters in the order in which their hooks fired last, in the last backward."""
        last: dict[int, int] = {index: place for place, (index, _) in enumerate(self.backwards[-1].firings)}
        return sorted(last, key=last.__getitem__)

    def layout(self) -> list[list[int]] | None:
        """Buckets of the last synchronised backward, in launch order; None where none was seen."""
        for backward in reversed(self.backwards):
            if backward.buckets:
                return [list(row.parameters) for row in backward.buckets]
        return None

    def line(self, clock: LiveClock, count: int) -> dict[str, Any]:
        """As JSON; ``count`` is the number of parameters."""
        optimizer_ns = None
        if self.optimizer_ends:
            optimizer_ns = max(0, clock.between_ns(self.backwards[-1].sync_end, self.optimizer_ends[-1]))
        return {
            "kind": "step",
            "step": self.number,
            "started_at_ns": self.started_at_ns,
            "step_ns": clock.between_ns(self.start, self.last),
            "optimizer_ns": optimizer_ns,
            "backwards": [backward.line(clock, self.start, count) for backward in self.backwards],
            **({"compiled": True} if self.compiled else {}),
            **({"aside": True} if self.aside else {}),
        }

    def stamps(self) -> Iterator[Stamp]:
        """All stamps of the step; that of its start is the first backward's own."""
        for backward in self.backwards:
            yield from backward.stamps()
        yield from self.optimizer_ends
        if self.end is not None:
            yield self.end
