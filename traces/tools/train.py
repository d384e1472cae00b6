"""A user's training script: a model of ``traces.tools.models`` under DDP and AdamW, recorded or tuned."""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner.loop import Autotuned
from sim.recorder.models import load_factory
from sim.recorder.training_step import build_step, find_device, find_loss


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


def _write(result: Autotuned, folder: Path) -> None:
    found = asdict(result) | {"assignment": None}
    (folder / "result.json").write_text(json.dumps(found))
    if result.assignment is not None:
        (folder / "assignment.json").write_text(sim.to_text(result.assignment))


def main() -> None:
    """Record some steps, half of them preceded by a plain backward whose gradients are dropped; or tune."""
    parser = argparse.ArgumentParser()
    parser.add_argument("factory")
    parser.add_argument("--record", help="a directory for the recording")
    parser.add_argument("--autotune", type=Path, help="a directory for how the tuning ended")
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--dtype")
    parser.add_argument("--cap", type=float, help="bucket_cap_mb; without it DDP's default")
    options = parser.parse_args()
    torch.manual_seed(0)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    made = load_factory(options.factory)
    step = build_step(made, device=find_device(options.device), dtype=options.dtype)
    batch = step.batch
    dist.init_process_group(options.backend)
    ddp = DistributedDataParallel(step.model, bucket_cap_mb=options.cap)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)

    def backward(batch: Any) -> None:
        output = ddp(**batch) if isinstance(batch, dict) else ddp(*batch)
        find_loss(output).backward()

    def train(given: Any) -> None:
        backward(given)
        optimizer.step()
        optimizer.zero_grad()

    if options.autotune:
        tuner = sim.autotune(ddp)
        while tuner.result is None:
            train(_like(batch))
            tuner.step()
        if dist.get_rank() == 0:
            _write(tuner.result, options.autotune)
    else:
        with sim.record(ddp, options.record) as recording:
            for step in range(options.steps):
                given = _like(batch)
                if step % 2:
                    with ddp.no_sync():
                        backward(given)
                    optimizer.zero_grad()
                train(given)
                recording.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
