"""One of two gloo ranks that train a small model under ``sim.record`` until told to stop: ``RANK FOLDER``.

It stops once ``FOLDER/stop`` is there, or after ``MOST`` steps, of 20 ms and more.
"""

import gc
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sim

MOST = 50_000


def main() -> None:
    """Train; both ranks stop after the same step."""
    torch.set_num_threads(1)
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
    ddp = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    with sim.record(ddp, folder / "watched" / "run"):
        for _ in range(MOST):
            optimizer.zero_grad()
            ddp(torch.randn(64, 256)).square().mean().backward()
            optimizer.step()
            stop = torch.tensor([float((folder / "stop").exists())])
            dist.all_reduce(stop)
            if stop.item():
                break
            time.sleep(0.02)
    gc.collect()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
