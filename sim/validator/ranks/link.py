"""An emulated link: an all-reduce that lasts as long as a curve says, and moves nothing.

With it one process shows what DDP would do on a machine that is not there: copies, launches, waits and
the order of everything are real, only the wire is a curve. A link is a communication hook, so DDP copies
gradients into buckets by ``copy_`` instead of dividing them on the way (A3.4), and each launch passes
through Python; the noop hook pays for both too, so the noop lane is the one to compare with.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import GradBucket

from sim.costs.service_time import service_ns
from sim.errors import NotModelledError
from sim.nouns.hardware import Curve, Hardware
from sim.validator.ranks.cuda import Spin
from sim.validator.ranks.step import sharpen_sleep

_HALF_NS = 0.5
_NS_PER_S = 1e9
_FULL_SPEED = 1.0

Reduced = torch.futures.Future[list[torch.Tensor]]


class EmulatedLink(Protocol):
    """What stands in for the wire."""

    def launch(self, tensor: torch.Tensor) -> Reduced:
        """Carry the bytes of ``tensor``; the future holds ``[tensor]`` when they would have arrived."""

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Carry the bytes of a bucket, as a communication hook of DDP."""


@dataclass(slots=True)
class _Transfer:
    """One collective on the wire: when it was launched, the ns that are left, and its callback at the end."""

    launched_ns: int
    left_ns: float
    arrived: Callable[[], None]


class Wire:
    """Says when collectives start and end, first come, first served on a few channels; it reads no clock.

    While more than one is active, each stretches by ``channel_slowdown`` (CONTRACT, "How time runs", 4).

    Args:
        channels: how many may be active at once (A3.7, A3.8).
        channel_slowdown: stretch of each beside another, at least 1.
    """

    def __init__(self, channels: int, channel_slowdown: float) -> None:
        self._channels = channels
        self._slowdown = channel_slowdown
        self._waiting: deque[_Transfer] = deque()
        self._active: list[_Transfer] = []
        self._now_ns = 0

    def add(self, launched_ns: int, service_ns: int, arrived: Callable[[], None]) -> None:
        """Add a collective of ``service_ns`` that is launched now or later, after all that were added."""
        self._waiting.append(_Transfer(launched_ns, service_ns, arrived))

    def next_ns(self) -> int | None:
        """When something starts or ends next, ns; None: nothing is under way."""
        instants = [self._now_ns + ceil(one.left_ns * self._stretch) for one in self._active]
        if self._waiting and len(self._active) < self._channels:
            instants.append(max(self._now_ns, self._waiting[0].launched_ns))
        return min(instants, default=None)

    def advance(self, until_ns: int) -> list[tuple[int, Callable[[], None]]]:
        """Let time pass up to ``until_ns``; return instant (ns) and callback of each arrival, in order."""
        arrived: list[tuple[int, Callable[[], None]]] = []
        while (instant := self.next_ns()) is not None and instant <= until_ns:
            self._pass(instant)
            over = [one for one in self._active if one.left_ns < _HALF_NS]
            self._active = [one for one in self._active if one.left_ns >= _HALF_NS]
            arrived += [(instant, one.arrived) for one in over]
            while (
                self._waiting
                and len(self._active) < self._channels
                and self._waiting[0].launched_ns <= instant
            ):
                self._active.append(self._waiting.popleft())
        self._pass(until_ns)
        return arrived

    @property
    def _stretch(self) -> float:
        return self._slowdown if len(self._active) > 1 else _FULL_SPEED

    def _pass(self, until_ns: int) -> None:
        passed = max(0, until_ns - self._now_ns) / self._stretch
        for one in self._active:
            one.left_ns -= passed
        self._now_ns = max(self._now_ns, until_ns)


class HostLink:
    """A wire kept by a thread that sleeps: futures are completed at the times that ``Wire`` says.

    Times are absolute, so waking late once does not delay what follows.

    Args:
        curve: service time by size, at the modelled world size.
        channels: how many collectives may be active at once.
        channel_slowdown: stretch of each beside another.
    """

    def __init__(self, curve: Curve, channels: int, channel_slowdown: float) -> None:
        self._curve = curve
        self._wire = Wire(channels, channel_slowdown)
        self._changed = threading.Condition()
        threading.Thread(target=self._keep, name="emulated-link", daemon=True).start()

    def launch(self, tensor: torch.Tensor) -> Reduced:
        """Hand ``tensor`` to the wire; nothing of it is read or written."""
        future: Reduced = torch.futures.Future()
        self._add(tensor, lambda: future.set_result([tensor]))
        return future

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A communication hook that launches the bucket."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        tensor = bucket.buffer()
        self._add(tensor, lambda: future.set_result(tensor))
        return future

    def _add(self, tensor: torch.Tensor, arrived: Callable[[], None]) -> None:
        service = service_ns(self._curve, tensor.nbytes)
        with self._changed:
            self._wire.add(time.monotonic_ns(), service, arrived)
            self._changed.notify()

    def _keep(self) -> None:
        sharpen_sleep()
        while True:
            with self._changed:
                now = time.monotonic_ns()
                arrived = self._wire.advance(now)
                if not arrived:
                    upcoming = self._wire.next_ns()
                    self._changed.wait(None if upcoming is None else max(0, upcoming - now) / _NS_PER_S)
            for _, tell in arrived:
                tell()


class CudaLink:
    """A wire made of kernels that spin on side streams, one for each channel, in place of NCCL's kernels.

    Each collective waits for what the current stream holds at its launch (A3.7) and then spins for its
    service time. Collectives take the channels in turn. A channel does not slow another down.

    Args:
        curve: service time by size, at the modelled world size.
        channels: number of side streams.
        channel_slowdown: must be 1 with several channels.
        device: the GPU.
        spin: enqueues a kernel of so many ns on the current stream; None: one is made.

    Raises:
        NotModelledError: channels that share a wire.
    """

    def __init__(
        self,
        curve: Curve,
        channels: int,
        channel_slowdown: float,
        device: torch.device,
        spin: Spin | None,
    ) -> None:
        if channels > 1 and channel_slowdown > 1:
            raise NotModelledError(
                f"channel_slowdown: {channel_slowdown} with {channels} channels is not emulated on a GPU; "
                f"give comm_channels 1 (NCCL's) or channel_slowdown 1"
            )
        self._curve = curve
        self._device = device
        self._spin = spin or Spin(device)
        self._streams: list[torch.cuda.Stream] = [
            torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            for _ in range(channels)
        ]
        self._launched = 0

    def launch(self, tensor: torch.Tensor) -> Reduced:
        """Enqueue the spinning kernel behind all that the current stream holds."""
        return self._enqueue(tensor.nbytes, [tensor])

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A communication hook that launches the bucket."""
        future: torch.futures.Future[torch.Tensor] = self._enqueue(bucket.buffer().nbytes, bucket.buffer())
        return future

    def _enqueue(self, num_bytes: int, value: Any) -> torch.futures.Future[Any]:
        stream = self._streams[self._launched % len(self._streams)]
        self._launched += 1
        launched = torch.cuda.current_stream(self._device).record_event()
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self._device])
        with torch.cuda.stream(stream):
            stream.wait_event(launched)
            self._spin(service_ns(self._curve, num_bytes))
            future.set_result(value)  # the future is complete when this stream gets here
        return future


def link_of(hardware: Hardware, device: torch.device, spin: Spin | None = None) -> EmulatedLink:
    """The link of ``hardware``, for tensors on ``device``; ``spin``: the GPU's, where it is made."""
    carried = hardware.all_reduce, hardware.comm_channels, hardware.channel_slowdown
    return CudaLink(*carried, device, spin) if device.type == "cuda" else HostLink(*carried)
