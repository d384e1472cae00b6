"""Clocks for somebody else's training loop: stamps are read later, and nothing ever waits for them."""

import time
from collections.abc import Iterable
from typing import Protocol

import torch

from sim.recorder.clocks import Stamp
from sim.units import NS_PER_MS


class LiveClock(Protocol):
    """Where time is read. A stamp may be compared once it is ``reached``."""

    name: str

    def stamp(self) -> Stamp:
        """Mark this instant; cheap, and never waits."""

    def reached(self, stamp: Stamp) -> bool:
        """Whether the instant has come; never waits."""

    def wait(self, stamp: Stamp) -> None:
        """Wait until the instant has come."""

    def between_ns(self, start: Stamp, end: Stamp) -> int:
        """Time from one reached stamp to another, in ns; negative where ``end`` came first."""

    def release(self, stamps: Iterable[Stamp]) -> None:
        """These stamps are not read again."""


class LiveHostClock:
    """The host's monotonic clock: right wherever backward runs on the host."""

    name = "host"

    def stamp(self) -> int:
        """Now, in ns."""
        return time.perf_counter_ns()

    def reached(self, stamp: int) -> bool:
        """Always."""
        return True

    def wait(self, stamp: int) -> None:
        """Nothing to wait for."""

    def between_ns(self, start: int, end: int) -> int:
        """Difference of two stamps, in ns."""
        return end - start

    def release(self, stamps: Iterable[int]) -> None:
        """Nothing to keep."""


class LiveCudaClock:
    """Timing events on the current stream of one GPU, used again once they have been read.

    Gradient hooks stamp the stream on which backward runs. In the callback of a collective's future
    the current stream is a side stream that waits for the collective, so that a stamp there is the
    collective's end (RULES.md, B(iii)).
    """

    name = "cuda events"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.cuda.Event] = []

    def stamp(self) -> torch.cuda.Event:
        """Record an event on the current stream of this device and thread."""
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def reached(self, stamp: torch.cuda.Event) -> bool:
        """Whether the GPU has come to the event; asks, and does not wait."""
        return bool(stamp.query())  # type: ignore[no-untyped-call]

    def wait(self, stamp: torch.cuda.Event) -> None:
        """Wait for the GPU to come to the event."""
        stamp.synchronize()

    def between_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        """Elapsed device time, from CUDA's float milliseconds to ns."""
        elapsed_ms: float = start.elapsed_time(end)
        return round(elapsed_ms * NS_PER_MS)

    def release(self, stamps: Iterable[torch.cuda.Event]) -> None:
        """Keep the events for later stamps: creating one costs more than recording it."""
        self._free.extend(stamps)


def stream_of(device: torch.device) -> object:
    """The stream that work of this thread is put on; one on the CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def live_clock_for(device: torch.device) -> LiveClock:
    """The clock on which training on ``device`` is timed."""
    return LiveCudaClock(device) if device.type == "cuda" else LiveHostClock()


def is_captured(device: torch.device) -> bool:
    """Whether work on ``device`` goes into a CUDA graph now, and does not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
