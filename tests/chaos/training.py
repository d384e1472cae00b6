"""A rank that trains and tunes its buckets: ``torchrun --nproc-per-node 2 -m tests.chaos.training``."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.examples.train import model_and_batch

STEPS = 60


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, batch = model_and_batch(width=64, layers=3)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    tuned = sim.autotune(ddp)
    for _ in range(STEPS):
        ddp(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        tuned.step()
    if dist.get_rank() == 0:
        print(f"trained {STEPS} steps", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
