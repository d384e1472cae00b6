"""What the installed torch can do with buckets, backends and GPUs, and how late sleeps end under it."""

import inspect
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.validator.ranks.step import sharpen_sleep, sleep_until

_SLEEPS = 50
_SLEEP_NS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as torch names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """What the installed torch can do.

    ``distributed``, ``gloo``, ``nccl`` and ``mpi`` are whether torch was built with them, ``nccl_version``
    and ``cuda`` their versions. ``bucket_cap_mb_list`` (from 2.11) and ``batched_grad_copy`` (from 2.12) are
    keywords of DistributedDataParallel, ``missing_for_injection`` what free ``bucket_indices`` lack (empty:
    possible). ``sleep_late_median_ns`` and ``sleep_late_p90_ns`` are by how much short sleeps of the paced
    replay end late.
    """

    version: str
    distributed: bool
    gloo: bool
    nccl: bool
    mpi: bool
    nccl_version: str | None
    cuda: str | None
    gpus: tuple[Gpu, ...]
    bucket_cap_mb_list: bool
    batched_grad_copy: bool
    missing_for_injection: tuple[str, ...]
    sleep_late_median_ns: int
    sleep_late_p90_ns: int


def torch_facts() -> TorchFacts:
    """Ask torch; takes some 50 ms and starts no process group."""
    keywords = inspect.signature(DistributedDataParallel.__init__).parameters
    available = dist.is_available()
    nccl = available and dist.is_nccl_available()
    late = sleep_lateness_ns()
    return TorchFacts(
        version=str(torch.__version__),
        distributed=available,
        gloo=available and dist.is_gloo_available(),
        nccl=nccl,
        mpi=available and dist.is_mpi_available(),
        nccl_version=_nccl_version() if nccl else None,
        cuda=torch.version.cuda,
        gpus=_gpus(),
        bucket_cap_mb_list="bucket_cap_mb_list" in keywords,
        batched_grad_copy="batched_grad_copy" in keywords,
        missing_for_injection=_missing_for_injection() if available else ("torch.distributed",),
        sleep_late_median_ns=late[len(late) // 2],
        sleep_late_p90_ns=late[len(late) * 9 // 10],
    )


def gpus_here() -> int:
    """How many GPUs torch sees; asks the driver, and takes none of their memory."""
    return torch.cuda.device_count()


def sleep_lateness_ns() -> list[int]:
    """By how much 50 sleeps of 1 ms ended late, ascending, slept as the paced replay sleeps.

    On a thread of its own, so that its sharpened timer ends with it.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_sleep_often).result()


def _sleep_often() -> list[int]:
    sharpen_sleep()
    deadlines = (time.monotonic_ns() + _SLEEP_NS for _ in range(_SLEEPS))
    return sorted(sleep_until(deadline) - deadline for deadline in deadlines)


def _nccl_version() -> str:
    return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]


def _gpus() -> tuple[Gpu, ...]:
    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return tuple(Gpu(name=one.name, memory_bytes=one.total_memory) for one in found)


def _missing_for_injection() -> tuple[str, ...]:
    # Not at the top: without torch.distributed there is no Reducer to import.
    from sim.validator.ranks.reducer import missing_for_injection

    return tuple(missing_for_injection())
