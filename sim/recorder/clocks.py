"""Stamps on the host's clock or on a GPU's stream, read after each step or whenever they are reached."""

import time
from collections.abc import Iterable
from typing import Any, Protocol

import torch

from sim.errors import InputError, MachineError
from sim.units import NS_PER_MS

Stamp = Any  # an int for the host, an event for a GPU: only the clock that made it can read it


class Clock(Protocol):
    """Where time is read. Stamps may be compared only after ``settle`` and before the next ``begin``."""

    def begin(self) -> None:
        """Start an iteration: earlier work is finished, earlier stamps are void."""

    def stamp(self) -> Stamp:
        """Mark this instant; cheap, and never waits."""

    def settle(self) -> None:
        """Wait until every stamp has been reached."""

    def between_ns(self, start: Stamp, end: Stamp) -> int:
        """Time from one stamp to a later one, in ns."""


class LiveClock(Protocol):
    """Where time is read in somebody else's training loop. A stamp may be compared once it is ``reached``."""

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


class HostClock:
    """The host's monotonic clock, of either kind: right wherever backward runs on the host."""

    name = "host"

    def begin(self) -> None:
        """Nothing to wait for."""

    def stamp(self) -> int:
        """Now, in ns."""
        return time.perf_counter_ns()

    def settle(self) -> None:
        """Nothing to wait for."""

    def between_ns(self, start: int, end: int) -> int:
        """Difference of two stamps, in ns."""
        return end - start

    def reached(self, stamp: int) -> bool:
        """Always."""
        return True

    def wait(self, stamp: int) -> None:
        """Nothing to wait for."""

    def release(self, stamps: Iterable[int]) -> None:
        """Nothing to keep."""


class _CudaEvents:
    def __init__(self, device: torch.device) -> None:
        self._device = device

    def between_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        """Elapsed device time, from CUDA's float milliseconds to ns."""
        elapsed_ms: float = start.elapsed_time(end)
        return round(elapsed_ms * NS_PER_MS)


class CudaClock(_CudaEvents):
    """Timing events on the current stream of one GPU.

    A stamp is reached when the stream gets there, not when the host records it: *ready* is a
    device time. Hooks run on autograd's own thread, under the stream of the node that they belong
    to, so the stream is asked for anew at every stamp. Events are kept and used again, because
    creating one costs more than recording it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    def begin(self) -> None:
        """Wait until the GPU is idle; events of the last iteration may be used again."""
        torch.cuda.synchronize(self._device)
        self._used = 0

    def stamp(self) -> torch.cuda.Event:
        """Record an event on the current stream of this device and thread."""
        if self._used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._events[self._used]
        self._used += 1
        event.record(torch.cuda.current_stream(self._device))
        return event

    def settle(self) -> None:
        """Wait until the GPU has reached every event."""
        torch.cuda.synchronize(self._device)


def find_device(name: str) -> torch.device:
    """A torch device from its name.

    Raises:
        InputError: not a device, or one that is not recorded on (legal: ``cpu``, ``cuda``, ``cuda:N``).
        MachineError: this machine has no such GPU.
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device: {name!r} is not legal; give cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise InputError(f"device: {name!r} is not recorded on; give cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = torch.cuda.current_device() if count and device.index is None else device.index or 0
    if index >= count:
        raise MachineError(f"device: {name!r} is not here; torch {torch.__version__} sees {count} GPUs")
    return torch.device("cuda", index)


def clock_for(device: torch.device) -> Clock:
    """The clock on which work on ``device`` is timed."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class LiveCudaClock(_CudaEvents):
    """Timing events on the current stream of one GPU, used again once they have been read.

    Gradient hooks stamp the stream on which backward runs. In the callback of a collective's future
    the current stream is a side stream that waits for the collective, so that a stamp there is the
    collective's end (RULES.md, B(iii)).
    """

    name = "cuda events"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
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

    def release(self, stamps: Iterable[torch.cuda.Event]) -> None:
        """Keep the events for later stamps: creating one costs more than recording it."""
        self._free.extend(stamps)


def stream_of(device: torch.device) -> object:
    """The stream that work of this thread is put on; one on the CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def live_clock_for(device: torch.device) -> LiveClock:
    """The clock on which training on ``device`` is timed."""
    return LiveCudaClock(device) if device.type == "cuda" else HostClock()


def is_captured(device: torch.device) -> bool:
    """Whether work on ``device`` goes into a CUDA graph now, and does not run."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
