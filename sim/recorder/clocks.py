"""Stamps on the host's clock or on an accelerator's stream, read once they have been reached."""

import time
from typing import Any

import torch

from sim.units import NS_PER_MS

Stamp = Any  # an int for the host, an event for an accelerator: only the clock that made it can read it


class Clock:
    """Where time is read: here the host's monotonic clock, right wherever backward runs on the host."""

    name = "host"

    def stamp(self) -> Stamp:
        """Mark this instant, here in ns; cheap, and never waits."""
        return time.perf_counter_ns()

    def reached(self, stamp: Stamp) -> bool:
        """Whether the instant has come; never waits."""
        return True

    def wait(self, stamp: Stamp) -> None:
        """Wait until the instant has come."""

    def settle(self) -> None:
        """Wait until all earlier work is finished, and so every stamp reached."""

    def between_ns(self, start: Stamp, end: Stamp) -> int:
        """Time from one stamp to another, both reached, in ns; negative where ``end`` came first."""
        return int(end - start)


class EventClock(Clock):
    """Timing events on ``stream`` of one accelerator, or its current one, reached when the stream gets there.

    Hooks run on autograd's own thread, under the stream of the node that they belong to. In the callback of a
    collective's future it is a side stream that waits for the collective, so that a stamp there is the
    collective's end (RULES.md, B(iii)). Beside a H100 making and recording a ``torch.Event`` takes the host
    2.4 us, a ``torch.cuda.Event`` 7.6.
    """

    def __init__(self, device: torch.device, stream: torch.Stream | None = None) -> None:
        self._device, self._stream = device, stream
        self.name = f"{device.type} events"

    def stamp(self) -> torch.Event:
        """An event on the stream that this thread has there: left to itself it takes the current device's."""
        event = torch.Event(self._device, enable_timing=True)
        event.record(self._stream or torch.accelerator.current_stream(self._device))
        return event

    def reached(self, stamp: torch.Event) -> bool:
        """Whether the accelerator has come to the event; asks, and does not wait."""
        return bool(stamp.query())

    def wait(self, stamp: torch.Event) -> None:
        """Wait for the accelerator to come to the event."""
        stamp.synchronize()

    def settle(self) -> None:
        """Wait until the accelerator is idle."""
        torch.accelerator.synchronize(self._device)

    def between_ns(self, start: torch.Event, end: torch.Event) -> int:
        """Elapsed device time, from float milliseconds to ns."""
        elapsed_ms: float = start.elapsed_time(end)
        return round(elapsed_ms * NS_PER_MS)


def clock_for(device: torch.device) -> Clock:
    """The clock on which work on ``device`` is timed."""
    return Clock() if device.type == "cpu" else EventClock(device)


def is_captured() -> bool:
    """Whether work goes into a CUDA graph now: its replays run no hooks, and its events cannot be read."""
    has_gpus: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return has_gpus and torch.cuda.is_current_stream_capturing()
