"""A user's training script: a model of ``tests.training.models`` under DDP and AdamW, recorded."""

import argparse
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.recorder.factory import load_factory
from sim.recorder.training_step import find_loss


def _like(batch: Any) -> Any:
    """Other data of the same shape: on the same batch again and again gradients vanish into denormal numbers,
    which processors are slow with.
    """
    if isinstance(batch, dict):
        return {name: _like(value) for name, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(_like, batch))
    if batch.is_floating_point():
        return torch.randn_like(batch)
    return batch.flatten()[torch.randperm(batch.numel())].view_as(batch)


def main() -> None:
    """Train for some steps; every other one is preceded by a plain backward, whose gradients are dropped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("factory")
    parser.add_argument("--record", required=True)
    parser.add_argument("--steps", type=int, default=26)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, batch = load_factory(options.factory)
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(model.train())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)

    def backward(batch: Any) -> None:
        output = ddp(**batch) if isinstance(batch, dict) else ddp(*batch)
        find_loss(output).backward()

    with sim.record(ddp, options.record) as recording:
        for step in range(options.steps):
            given = _like(batch)
            if step % 2:
                with ddp.no_sync():
                    backward(given)
                optimizer.zero_grad()
            backward(given)
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
