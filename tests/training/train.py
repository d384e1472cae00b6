"""A user's training script: a model of ``tests.training.models`` under DDP and AdamW, recorded."""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.recorder.factory import load_factory
from sim.recorder.step import find_loss


def main() -> None:
    """Train for some steps; every other one is preceded by a plain backward, whose gradients are dropped."""
    parser = argparse.ArgumentParser()
    parser.add_argument("factory")
    parser.add_argument("--record", required=True)
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--without-plain", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    model, batch = load_factory(options.factory)
    dist.init_process_group("gloo")
    ddp = DistributedDataParallel(model.train())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)

    def backward() -> None:
        output = ddp(**batch) if isinstance(batch, dict) else ddp(*batch)
        find_loss(output).backward()

    with sim.record(ddp, options.record) as recording:
        for step in range(options.steps):
            if step % 2 and not options.without_plain:
                with ddp.no_sync():
                    backward()
                optimizer.zero_grad()
            backward()
            optimizer.step()
            optimizer.zero_grad()
            recording.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
