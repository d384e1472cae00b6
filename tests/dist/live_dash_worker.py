"""One of two gloo ranks that train under ``sim.record``: ``RANK FOLDER``.

Layers are paced: most of their time is slept, not computed, as a device would take it, so that ranks hardly
compete for the cores of a busy machine. Rank 1's forward sleeps longer from step ``SLOW_FROM`` on.
"""

import gc
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sim

STEPS, SLOW_FROM, SLOW_S = 220, 140, 0.020
LAYERS, FORWARD_S, LAYER_S = 4, 0.010, 0.004


class Paced(torch.autograd.Function):
    """Nothing but a backward that takes ``LAYER_S``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(LAYER_S)
        return grad


class Net(nn.Module):
    """A few small layers; ``slow_s`` is what forward takes beyond ``FORWARD_S``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(LAYERS))
        self.slow_s = 0.0

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(FORWARD_S + self.slow_s)
        for layer in self.layers:
            x = Paced.apply(layer(x))
        return x.square().mean()


def main() -> None:
    """Train and record."""
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    net = Net()
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    batch = torch.randn(8, 128)
    with sim.record(ddp, folder / "recording"):
        for step in range(1, STEPS + 1):
            net.slow_s = SLOW_S if rank == 1 and step >= SLOW_FROM else 0.0
            optimizer.zero_grad()
            ddp(batch).backward()
            optimizer.step()
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
