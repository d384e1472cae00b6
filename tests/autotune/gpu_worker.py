"""One of some ranks on a GPU each, over NCCL, whose script never calls ``torch.cuda.set_device``.

``python -m tests.autotune.gpu_worker RANK FOLDER WORLD_SIZE``
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import switch
from sim.autotuner.prediction import LinkProbe
from sim.autotuner.unison import Unison

MIB = 1 << 20


def model(device: torch.device) -> DistributedDataParallel:
    """A GPT-2 in its number of layers and bytes, near the pace of its host."""
    torch.manual_seed(0)
    blocks = (nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12))
    inner = nn.Sequential(*blocks).to(device)
    return DistributedDataParallel(inner, device_ids=[device.index], bucket_cap_mb=4)


def step_ns(train: Callable[[], None], device: torch.device, each: bool) -> float:
    """A step of 40, waited for ``each`` or at their end only."""
    for _ in range(15):
        train()
    torch.cuda.synchronize(device)
    begun = time.perf_counter_ns()
    for _ in range(40):
        train()
        if each:
            torch.cuda.synchronize(device)
    torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - begun) / 40


def main() -> None:
    rank, folder, world = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", store=dist.FileStore(str(folder / "store"), world), rank=rank, world_size=world
    )
    ddp = model(device)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    batch = torch.randn(4, 128, 768, device=device)

    def train() -> None:
        optimizer.zero_grad()
        ddp(batch).square().mean().backward()
        optimizer.step()

    answers: dict[str, Any] = {"awaited": step_ns(train, device, True), "free": step_ns(train, device, False)}
    before = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    ranks = Unison(ddp)
    probe = LinkProbe(ddp, ranks)
    answers["small_ns"] = min(probe.time(16 << 10) for _ in range(20))
    tensor = torch.zeros(4096, device=device)
    answers["host_ns"] = step_ns(lambda: dist.all_reduce(tensor), device, False)
    del probe
    ranks.close()
    tuner = sim.autotune(ddp, verify_steps=12, max_verify_steps=24)
    for _ in range(200):
        train()
        tuner.step()
    answers["outcome"] = tuner.result and tuner.result.outcome
    answers["why"] = tuner.result and tuner.result.why
    torch.cuda.empty_cache()
    after = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    answers["nccl_bytes"], answers["room"] = before - after, switch._FOR_NCCL
    answers["current"] = torch.cuda.current_device()
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
