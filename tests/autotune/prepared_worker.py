"""One of two gloo ranks that train a model which Accelerate or Fabric wrapped, tuned and not.

``python -m tests.autotune.prepared_worker RANK FOLDER PACKAGE``: answers go to a file.
"""

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sim
from sim.autotuner import loop
from tests.autotune.trainer_worker import port

STEPS = 60
ACCUMULATED = 2
# What a package makes of a model and its optimizer: both, backward, and a micro-batch.
Prepared = tuple[Any, Any, Callable[[Any], None], Callable[[Any, bool], AbstractContextManager[Any]]]


def by_accelerate(model: nn.Module, optimizer: Any) -> Prepared:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATED,
        kwargs_handlers=[DistributedDataParallelKwargs(bucket_cap_mb=0.01)],
    )
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer, accelerator.backward, lambda model, _: accelerator.accumulate(model)


def by_fabric(model: nn.Module, optimizer: Any) -> Prepared:
    import lightning
    from lightning.fabric.strategies import DDPStrategy

    fabric = lightning.Fabric(
        accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo", bucket_cap_mb=0.01)
    )
    fabric.launch()
    model, optimizer = fabric.setup(model, optimizer)
    return model, optimizer, fabric.backward, lambda model, last: fabric.no_backward_sync(model, not last)


PREPARE = {"accelerate": by_accelerate, "lightning": by_fabric}


def train(package: str, is_tuned: bool) -> tuple[Any, Any, nn.Module]:
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
    model, optimizer, backward, micro_batch = PREPARE[package](
        inner, torch.optim.SGD(inner.parameters(), lr=0.1)
    )
    tuner = None
    if is_tuned:
        tuner = sim.autotune(model, record_steps=4, verify_steps=12, max_verify_steps=12)
    rank = int(os.environ["RANK"])
    for number in range(STEPS * ACCUMULATED):
        is_last = number % ACCUMULATED == ACCUMULATED - 1
        batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(2 * number + rank))
        with micro_batch(model, is_last):
            backward(model(batch).square().mean())
            if package == "accelerate" or is_last:  # Accelerate's own optimizer waits for the last one
                optimizer.step()
                optimizer.zero_grad()
        if tuner is not None:
            tuner.step()
    return model, tuner, inner


def main() -> None:
    rank, folder, package = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(rank, folder)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "ACCELERATE_USE_CPU": "true"}
    loop._is_worth_a_trial = lambda found: True
    model, tuner, tuned = train(package, True)
    _, _, plain = train(package, False)
    pairs = zip(tuned.parameters(), plain.parameters(), strict=True)
    answer = {
        "outcome": tuner.result.outcome,
        "why": tuner.result.why,
        "steps": tuner.result.steps,
        "rounds": tuner.result.ab and tuner.result.ab.rounds,
        "same": all(torch.equal(mine, theirs) for mine, theirs in pairs),
        "hooks": sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()),
    }
    (folder / f"{rank}.json").write_text(json.dumps([answer]))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
