"""What ranks on GPUs need: a GPU each, sums that are right, kernels that last as long as they are told."""

import ctypes
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError, MachineError
from sim.units import NS_PER_MS

_NEVER = 2**31 - 1
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
    """Enqueues kernels of known length on the current stream of ``device``, a GPU of NVIDIA's.

    Each is one thread that reads the GPU's own timer of ns, not its clock's cycles: beside matrix products
    that heat a H100, ``torch.cuda._sleep`` of 2.0 ms took 2.5 to 3.3, since their power lowers the clock, and
    this kernel 2.02. The timer ticks every 32 ns there (every us on GPUs up to Ampere).

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


def keep_logger_from_waiting(model: Any) -> None:
    """DDP's logger waits for the host in forward: always up to iteration 11, then never again (A4.3)."""
    if isinstance(model, DistributedDataParallel):
        model._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]


def choose_gpu(place: int) -> int:
    """The GPU of the rank at ``place`` among those of its machine, of the GPUs that it is let see.

    Launchers show a rank all GPUs of the machine, or its own only, so that their number says nothing of how
    many ranks there may be.

    Raises:
        MachineError: it sees none.
    """
    gpus = torch.cuda.device_count()
    if not gpus:
        raise MachineError(f"device: cuda is not here; torch {torch.__version__} sees 0 GPUs")
    return place % gpus


def check_apart(gpus: Sequence[str]) -> None:
    """Refuse NCCL with several ranks on one GPU before it hangs or fails in its own words (Part C).

    Args:
        gpus: what tells the GPU of each rank from all others anywhere.

    Raises:
        InputError: two ranks have the same.
    """
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) < rank:
            raise InputError(
                f"ranks: {first} and {rank} over NCCL on one GPU, {gpu}, are not legal: NCCL refuses that "
                f"('Duplicate GPU detected'); start no more ranks on a machine than it has GPUs, "
                f"set LOCAL_RANK, or give gloo as the backend"
            )


def check_sums(
    rank: int, world_size: int, device: torch.device, delay: Callable[[], object] | None = None
) -> None:
    """All-reduce known numbers and compare: gloo on CUDA has returned wrong sums (Part C).

    ``delay`` enqueues something slow ahead of the numbers, so that a sum that does not wait for them is seen.

    Raises:
        MachineError: a wrong sum, with the figures.
    """
    for numel in (1, 1000, 1 << 20):
        for repeat in range(3):
            tensor = torch.full((numel,), -1.0, device=device)
            if delay is not None:
                delay()
            tensor.fill_(rank + 1 + repeat)
            dist.all_reduce(tensor, async_op=True).get_future().wait()
            exact = float(world_size * (world_size + 1) // 2 + repeat * world_size)
            wrong = int((tensor != exact).sum().item())
            if wrong:
                seen = tensor[tensor != exact][0].item()
                raise MachineError(
                    f"all-reduce on {device}: {wrong} of {numel} sums are wrong ({seen:g} instead of "
                    f"{exact:g}) on rank {rank}; this torch {torch.__version__} cannot be measured with "
                    f"this backend"
                )
