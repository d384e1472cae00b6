"""What real buckets hold in memory, on one gloo rank: cases in, bytes out.

Usage: ``python -m tests.systems.memory_worker CASES ANSWERS STORE`` for a world of one (the store is not
needed), with glibc told to map every tensor by itself (``test_memory_ranks``), so that the process's resident
memory follows what is allocated, whichever thread frees it. A case is a dict:

- ``sizes`` (the shape of each gradient), ``policy`` (``ddp`` or a textbook system) and ``cap_mb``;
- for DDP ``ddp_kwargs``, ``comm_hook`` (ddp_hooks), ``accumulation_steps`` and ``set_to_none``.

An answer: ``kept`` and ``peak``, bytes beside parameters and gradients, after a backward and at its worst.
"""

import gc
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sim.validator.ranks.textbook import build_system
from tests.systems import ddp_hooks

STEPS = 4  # buckets are rebuilt before the second
LOOKS = 6  # a thread of gloo's may let go of what it reduced last only after backward has returned


class Scalars(nn.Module):
    """Nothing but parameters, and gradients that need no memory until they are accumulated."""

    def __init__(self, sizes: list[list[int]]) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.ones(*size)) for size in sizes)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([parameter.sum() for parameter in self.all]).sum() * x


def main() -> None:
    """Answer every case, in the order given; each runs twice, as a first run loads libraries."""
    cases, answers, _ = sys.argv[1:]
    torch.set_num_threads(1)
    gc.freeze()
    warnings.simplefilter("ignore")
    with open(f"{answers}.0", "w") as file:
        for case in json.loads(Path(cases).read_text()):
            measure(**case, looks=1)
            print(json.dumps({"events": []} | measure(**case)), file=file, flush=True)
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


def measure(
    sizes: list[list[int]],
    policy: str,
    cap_mb: float,
    ddp_kwargs: dict[str, Any] | None = None,
    comm_hook: dict[str, Any] | None = None,
    accumulation_steps: int = 1,
    set_to_none: bool = True,
    looks: int = LOOKS,
) -> dict[str, int]:
    """Train a few steps, then look at some: ``kept`` and ``peak`` are the least that one of them held."""
    net = Scalars(sizes)
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()  # its threads may still hold what they reduced last; they end here
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    before = resident("VmRSS") + sum(parameter.nbytes for parameter in net.parameters())
    if policy == "ddp":
        model: Any = DistributedDataParallel(net, bucket_cap_mb=cap_mb, **(ddp_kwargs or {}))
        if comm_hook is not None:
            ddp_hooks.register(model, **comm_hook)
    else:
        model = build_system(policy, net, {"bucket_cap_mb": cap_mb} if cap_mb else {})
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


if __name__ == "__main__":
    main()
