"""A training script as people write them, with what bucketsim adds to it behind two flags.

Accumulation, automatic mixed precision and a learning-rate schedule, under torchrun::

    torchrun --nproc-per-node 2 -m sim.examples.train --accumulate 2 --amp --record recording
    bucketsim import recording ./recording -o imported
    bucketsim tune imported/workload.json --hardware wire.json -o best.json
    torchrun --nproc-per-node 2 -m sim.examples.train --accumulate 2 --amp --assignment best.json
    bucketsim ab sim.examples.train:model_and_batch --arg amp=true --assignment best.json

The lines that are bucketsim's are marked in ``train``; all else would be there without it. Autocast is the
model's own, so that whatever runs the model gets the same backward: casts change the order in which
gradients become ready, and so the buckets.
"""

import argparse
import logging
import os
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sim

log = logging.getLogger(__name__)


class Classifier(nn.Module):
    """A deep MLP with layer norms that returns its own loss; ``amp`` runs forward under autocast."""

    def __init__(self, *, width: int, layers: int, classes: int, amp: bool) -> None:
        super().__init__()
        self.amp = amp
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers))
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy of ``labels`` ``[B]`` for ``x`` ``[B, width]``."""
        with torch.autocast(x.device.type, dtype=low_precision(x.device), enabled=self.amp):
            loss: Tensor = nn.functional.cross_entropy(self.head(self.blocks(x)), labels)
        return loss


def low_precision(device: torch.device) -> torch.dtype:
    """float16 on a GPU, where the loss is scaled; bfloat16 on a CPU, which has the range of float32."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def model_and_batch(
    *, width: int = 512, layers: int = 8, classes: int = 100, batch: int = 32, amp: bool = False
) -> tuple[Classifier, tuple[Tensor, Tensor]]:
    """The model and one batch of random data: what ``bucketsim record`` and ``validate --model`` take."""
    model = Classifier(width=width, layers=layers, classes=classes, amp=amp)
    return model, (torch.randn(batch, width), torch.randint(classes, (batch,)))


def train(options: argparse.Namespace, device: torch.device) -> float:
    """Train for ``options.steps`` optimizer steps; the last loss of this rank."""
    torch.manual_seed(0)
    model, batch = model_and_batch(width=options.width, layers=options.layers, amp=options.amp)
    model = model.to(device)
    x, labels = (tensor.to(device) for tensor in batch)
    # bucketsim: the tuned buckets
    ddp = sim.apply(model, options.assignment) if options.assignment else DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=options.steps)
    is_scaled = options.amp and low_precision(device) is torch.float16
    scaler = torch.amp.GradScaler(device.type, enabled=is_scaled)
    loss = torch.zeros(())
    # bucketsim: a recording; without the flag nothing is hooked.
    with sim.record(ddp, options.record) if options.record else nullcontext() as recording:
        for _ in range(options.steps):
            for part in range(options.accumulate):
                is_last = part == options.accumulate - 1
                with _synchronised_if(ddp, is_last):
                    loss = ddp(x, labels) / options.accumulate
                    scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            if recording:
                recording.step()  # bucketsim: GradScaler may skip an optimizer step
    last: float = loss.item() * options.accumulate
    return last


def _synchronised_if(ddp: DistributedDataParallel, is_last: bool) -> AbstractContextManager[None]:
    """Gradients are all-reduced in the last part of an accumulated step only (A3.12)."""
    return nullcontext() if is_last else ddp.no_sync()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a classifier on random data under DDP.")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes per optimizer step")
    parser.add_argument("--amp", action="store_true", help="autocast: float16 on a GPU, bfloat16 on a CPU")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that ranks wait for each other")
    parser.add_argument("--record", metavar="DIR", help="write a recording for bucketsim")
    parser.add_argument("--assignment", metavar="FILE", help="use the buckets that bucketsim tune wrote")
    return parser.parse_args()


def main() -> None:
    """Join the other ranks, train, and say how it went."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    options = _options()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    patience = timedelta(seconds=options.timeout)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=patience)
    loss = train(options, device)
    if dist.get_rank() == 0:
        log.info("loss %.4f after %d steps on %d ranks", loss, options.steps, dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
