"""Stamps on the host's clock or on a GPU's compute stream, behind one small interface."""

import time
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


class HostClock:
    """The host's monotonic clock: right wherever backward runs on the host."""

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


class CudaClock:
    """Timing events on the current stream of one GPU.

    A stamp is reached when the stream gets there, not when the host records it: *ready* is a
    device time. Hooks run on autograd's own thread, under the stream of the node that they belong
    to, so the stream is asked for anew at every stamp. Events are kept and used again, because
    creating one costs more than recording it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
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

    def between_ns(self, start: torch.cuda.Event, end: torch.cuda.Event) -> int:
        """Elapsed device time, from CUDA's float milliseconds to ns."""
        elapsed_ms: float = start.elapsed_time(end)
        return round(elapsed_ms * NS_PER_MS)


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
