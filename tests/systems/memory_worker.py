"""What real buckets hold in memory, on one gloo rank, with glibc told to map every tensor by itself
(``test_memory_ranks``), so that the process's resident memory follows what is allocated, whichever thread
frees it. A case is a dict:

- ``sizes`` (the shape of each gradient), ``policy`` (``ddp`` or a textbook system) and ``cap_mb``;
- for DDP ``ddp_kwargs``, ``comm_hook``, ``accumulation_steps`` and ``set_to_none``.

An answer: ``kept`` and ``peak``, bytes beside parameters and gradients, after a backward and at its worst.
"""

import gc
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.systems.ddp_worker import register
from tests.systems.real_ranks import answer_each, meet
from tests.systems.textbook_built import build_system

STEPS = 4  # buckets are rebuilt before the second
LOOKS = 6  # a thread of gloo's may let go of what it reduced last only after backward has returned


class Scalars(nn.Module):
    """Nothing but parameters, and gradients that need no memory until they are accumulated."""

    def __init__(self, sizes: list[list[int]]) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.ones(*size)) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([parameter.sum() for parameter in self.all]).sum() * x


def measure(
    sizes: list[list[int]],
    policy: str,
    cap_mb: float,
    ddp_kwargs: dict[str, Any] | None = None,
    comm_hook: str | None = None,
    accumulation_steps: int = 1,
    set_to_none: bool = True,
    looks: int = LOOKS,
) -> dict[str, int]:
    """Train a few steps, then look at some: ``kept`` and ``peak`` are the least that one of them held."""
    net = Scalars(sizes)
    gc.collect()
    dist.destroy_process_group()  # its threads may still hold what they reduced last; they end here
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = resident("VmRSS") + sum(parameter.nbytes for parameter in net.parameters())
    if policy == "ddp":
        model: Any = DistributedDataParallel(net, bucket_cap_mb=cap_mb, **(ddp_kwargs or {}))
        if comm_hook is not None:
            register(model, comm_hook)
    else:
        model = build_system(policy, net, cap_mb or 25)
    x = torch.ones(())
    kept, peak = [], []
    for _ in range(STEPS - 1 + looks):
        model.zero_grad(set_to_none=set_to_none)
        for _ in range(accumulation_steps - 1):
            with model.no_sync():
                model(x).backward()
        loss = model(x)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
        loss.backward()
        del loss
        kept.append(resident("VmRSS") - before)
        peak.append(resident("VmHWM") - before)
    return {"kept": min(kept[-looks:]), "peak": min(peak[-looks:])}


def resident(name: str) -> int:
    """Resident memory of this process in bytes: ``VmRSS`` now, ``VmHWM`` at its highest."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no {name}")


def answer(case: Any) -> Any:
    """Each case runs twice, as a first run loads libraries."""
    measure(**case, looks=1)
    return measure(**case)


if __name__ == "__main__":
    meet()
    answer_each(answer)
