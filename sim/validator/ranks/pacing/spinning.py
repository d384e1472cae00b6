"""A kernel that lasts as long as it is told, on a GPU of NVIDIA's: what stands for work, or for a wire.

It is one thread that reads the GPU's own timer of ns, not its clock's cycles: beside matrix products that
heat a H100, ``torch.cuda._sleep`` of 2.0 ms took 2.5 to 3.3, since their power lowers the clock, and this
kernel 2.02. The timer ticks every 32 ns there (every us on GPUs up to Ampere).
"""

import ctypes
from statistics import median

import torch

from sim.errors import MachineError
from sim.units import NS_PER_MS

_SOURCE = """
extern "C" __global__ void keep(long long duration_ns) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    while ((long long)(now - begin) < duration_ns);
}
"""
_WARM_UP_NS = 50_000_000  # in which the clock comes up
_AHEAD_NS = 1_000_000  # keeps the GPU busy while kernels are enqueued
_CHAIN = 32
_REPEATS = 7
_TRIED_NS = 20_000


def keep_busy(cycles: int) -> None:
    """Enqueue a kernel of some ``cycles`` of the GPU's clock on the current stream, whatever they last."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


class Spin:
    """Enqueues kernels of known length on the current stream of ``device``.

    Attributes:
        overhead_ns: what a kernel takes beside the time that it waits for, measured here.

    Raises:
        MachineError: no kernel can be made here, or kernels do not keep time.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        try:
            self._kernel = torch.cuda._compile_kernel(_SOURCE, "keep")
            self._driver = ctypes.CDLL("libcuda.so.1")
        except (OSError, RuntimeError) as error:
            raise MachineError(f"{device}: no kernel that keeps time can be made here: {error}") from error
        self._context = ctypes.c_void_p()
        self._driver.cuCtxGetCurrent(ctypes.byref(self._context))
        self.overhead_ns = 0
        self._enqueue(_WARM_UP_NS)
        short = [self._timed(0) for _ in range(_REPEATS)]
        long = [self._timed(_TRIED_NS) for _ in range(_REPEATS)]
        self.overhead_ns = round(median(short))
        if abs(median(long) - median(short) - _TRIED_NS) > _TRIED_NS / 10:
            raise MachineError(
                f"{device}: kernels of {_TRIED_NS} ns took {median(long):.0f} ns, of none "
                f"{median(short):.0f} ns; time cannot be kept by kernels here"
            )

    def __call__(self, duration_ns: int) -> int:
        """Enqueue a kernel of ``duration_ns``; returns how long it lasts, 0: none is short enough."""
        if duration_ns < self.overhead_ns:
            return 0
        self._enqueue(duration_ns - self.overhead_ns)
        return duration_ns

    def _enqueue(self, waits_ns: int) -> None:
        value = ctypes.c_longlong(waits_ns)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(value))
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._device.index or 0))
        self._driver.cuCtxSetCurrent(self._context)  # autograd's thread may have none yet
        if code := self._driver.cuLaunchKernel(
            self._kernel.func, 1, 1, 1, 1, 1, 1, 0, stream, arguments, None
        ):
            raise MachineError(f"{self._device}: a kernel that keeps time was refused, CUDA error {code}")

    def _timed(self, waits_ns: int) -> float:
        """Device time of one of many such kernels, one behind the other, ns."""
        start, end = (torch.Event(self._device, enable_timing=True) for _ in range(2))
        self._enqueue(_AHEAD_NS)
        start.record()
        for _ in range(_CHAIN):
            self._enqueue(waits_ns)
        end.record()
        end.synchronize()
        elapsed_ms: float = start.elapsed_time(end)
        return elapsed_ms * NS_PER_MS / _CHAIN
