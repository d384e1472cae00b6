"""An emulated link: an all-reduce that lasts as long as a curve says, and moves nothing.

With it one process shows what DDP would do on a machine that is not there: copies, launches, waits and the
order of everything are real, only the wire is a curve. A link is the reduction of a communication hook, so
DDP copies gradients into buckets by ``copy_`` instead of dividing them on the way (A3.4), and each launch
passes through Python; the noop hook pays for both too, so the noop lane is the one to compare with.
"""

import ctypes
import threading
import time
from functools import cache
from heapq import heappop, heappush
from itertools import count, cycle
from typing import Any

import torch
from torch import Tensor

from sim.costs.service_time import service_ns
from sim.errors import MachineError
from sim.nouns.hardware import Curve, Hardware
from sim.recorder.clocks import clock_for
from sim.validator.jobs import emulated_channels
from sim.validator.ranks.step import Launch, Reduced, sharpen_sleep


def link_of(hardware: Hardware, device: torch.device) -> Launch:
    """The link of ``hardware``, its all-reduce curve and its channels, for tensors on ``device``."""
    made = CudaLink if device.type == "cuda" else HostLink
    return made(hardware.all_reduce, emulated_channels(hardware), device)


class HostLink:
    """A wire kept by a thread that sleeps: futures are completed when their bytes would have arrived.

    Times are absolute, so waking late once does not delay what follows. Nothing of a tensor is read.

    Args:
        curve: service time by size, at the modelled world size.
        channels: how many collectives may be under way at once, first come, first served (A3.7, A3.8).
    """

    def __init__(self, curve: Curve, channels: int, device: object = None) -> None:
        self._curve, self._free_ns = curve, [0] * channels
        self._under_way: list[tuple[int, int, Reduced, Tensor]] = []
        self._numbers, self._changed = count(), threading.Condition()
        threading.Thread(target=self._keep, name="emulated-link", daemon=True).start()

    def __call__(self, tensor: Tensor) -> Reduced:
        """Carry the bytes of ``tensor``; the future holds ``[tensor]`` when they would have arrived."""
        future: Reduced = torch.futures.Future()
        with self._changed:
            end_ns = self.end_ns(time.monotonic_ns(), tensor.nbytes)
            heappush(self._under_way, (end_ns, next(self._numbers), future, tensor))
            self._changed.notify()
        return future

    def end_ns(self, launched_ns: int, num_bytes: int) -> int:
        """When a collective ends that is launched then, after all others that were; its channel is taken."""
        channel = self._free_ns.index(min(self._free_ns))
        begins_ns = max(launched_ns, self._free_ns[channel])
        self._free_ns[channel] = begins_ns + service_ns(self._curve, num_bytes)
        return self._free_ns[channel]

    def _keep(self) -> None:
        sharpen_sleep()
        while True:
            with self._changed:
                while not self._under_way or (left := self._under_way[0][0] - time.monotonic_ns()) > 0:
                    self._changed.wait(left / 1e9 if self._under_way else None)
                _, _, future, tensor = heappop(self._under_way)
            future.set_result([tensor])


class CudaLink:
    """A wire made of kernels that spin on side streams, one for each channel, in place of NCCL's kernels.

    Each collective waits for what the current stream holds at its launch (A3.7) and then spins for its
    service time. Collectives take the channels in turn. Args as of ``HostLink``.
    """

    def __init__(self, curve: Curve, channels: int, device: torch.device) -> None:
        self._curve, self._device, self._spin = curve, device, spin_on(device)
        self._streams = cycle(tuple(map(torch.cuda.Stream, [device] * channels)))

    def __call__(self, tensor: Tensor) -> Reduced:
        """Enqueue the spinning kernel behind all that the current stream holds."""
        stream = next(self._streams)
        launched = torch.cuda.current_stream(self._device).record_event()
        future: Reduced = torch.futures.Future(devices=[self._device])
        with torch.cuda.stream(stream):
            stream.wait_event(launched)
            self._spin(service_ns(self._curve, tensor.nbytes))
            future.set_result([tensor])  # the future is complete when this stream gets here
        return future


@cache
def spin_on(device: torch.device) -> "Spin":
    """What spins on a GPU."""
    return Spin(device)


def keeps_time(device: torch.device) -> bool:
    """Whether kernels can be made to last as long as they should there: not on GPUs of other makers."""
    try:
        spin_on(device)
    except MachineError:
        return False
    return True


_PTX = """
.version 6.0 .target sm_50 .address_size 64
.visible .entry keep(.param .s64 wait_ns) {
    .reg .s64 left, begin, now; .reg .pred early;
    ld.param.s64 left, [wait_ns]; mov.u64 begin, %globaltimer;
again:
    mov.u64 now, %globaltimer; sub.s64 now, now, begin; setp.lt.s64 early, now, left; @early bra again; ret;
}
"""
_WARM_UP_NS = 50_000_000  # in which the clock comes up
_AHEAD_NS = 1_000_000  # keeps the GPU busy while kernels are enqueued
_CHAIN, _REPEATS, _TRIED_NS = 32, 7, 20_000


class Spin:
    """Enqueues kernels of known length on the current stream of ``device``, a GPU of NVIDIA's.

    Each is one thread that reads the GPU's own timer of ns, not its clock's cycles: beside matrix products
    that heat a H100, ``torch.cuda._sleep`` of 2.0 ms took 2.5 to 3.3, since their power lowers the clock, and
    this kernel 2.02. The timer ticks every 32 ns there (every us on GPUs up to Ampere). The driver compiles
    it: what torch compiles takes a CUDA toolkit on the host. Of a GPU that ranks share the least time counts.

    Raises:
        MachineError: no kernel can be made here, or kernels do not keep time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        try:
            made: Any = torch.cuda._utils._cuda_load_module(_PTX, ["keep"])
            self._driver = ctypes.CDLL("libcuda.so.1")
        except (AttributeError, OSError, RuntimeError) as error:
            raise MachineError(f"{device}: no kernel that keeps time can be made here: {error}") from error
        self._kernel, self._context = made["keep"], ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(self._context))
        self._enqueue(_WARM_UP_NS)
        short, long = (min(self._timed(ns) for _ in range(_REPEATS)) for ns in (0, _TRIED_NS))
        self._overhead_ns = round(short)  # what a kernel takes beside the time that it waits for
        if abs(long - short - _TRIED_NS) > _TRIED_NS / 10:
            raise MachineError(
                f"{device}: kernels of {_TRIED_NS} ns took {long:.0f} ns, of none {short:.0f} ns; time "
                f"cannot be kept by kernels here"
            )

    def __call__(self, duration_ns: int) -> int:
        """Enqueue a kernel of ``duration_ns``; returns how long it lasts, 0: none is short enough."""
        if duration_ns < self._overhead_ns:
            return 0
        self._enqueue(duration_ns - self._overhead_ns)
        return duration_ns

    def _enqueue(self, waits_ns: int) -> None:
        value = ctypes.c_longlong(waits_ns)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._device.index or 0))
        self._driver.cuCtxSetCurrent(self._context)  # autograd's thread may have none yet
        shape: Any = (1, 1, 1, 1, 1, 1, 0)  # one thread
        if code := self._driver.cuLaunchKernel(self._kernel.func, *shape, stream, arguments, None):
            raise MachineError(f"{self._device}: a kernel that keeps time was refused, CUDA error {code}")

    def _timed(self, waits_ns: int) -> float:
        """Device time of one of many such kernels, one behind the other, ns."""
        clock = clock_for(self._device)
        self._enqueue(_AHEAD_NS)
        start = clock.stamp()
        for _ in range(_CHAIN):
            self._enqueue(waits_ns)
        end = clock.stamp()
        clock.wait(end)
        return clock.between_ns(start, end) / _CHAIN
