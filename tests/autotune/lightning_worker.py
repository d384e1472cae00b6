"""One of two gloo ranks of Lightning's Trainer, with and without the callback.

``python -m tests.autotune.lightning_worker RANK FOLDER``: answers go to a file.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.autotune.trainer_worker import port

MODES: tuple[tuple[int, dict[str, bool]], ...] = (
    (1, {}),
    (2, {"gradient_as_bucket_view": True}),
    (1, {"find_unused_parameters": True}),
    (1, {"static_graph": True}),
)


def train(is_tuned: bool, accumulate: int, **ddp: bool) -> tuple[Any, Any]:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    from sim.integrations.lightning import BucketAutotune

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    inputs = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    callback = BucketAutotune(record_steps=4, verify_steps=12, max_verify_steps=20)
    model = Model()
    trainer = lightning.Trainer(
        max_steps=50,
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", **ddp),
        callbacks=[callback] if is_tuned else [],
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(inputs, batch_size=2))
    return model, callback


def main() -> None:
    rank, folder = sys.argv[1], Path(sys.argv[2])
    os.environ |= {"LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(rank, folder)}
    rows = []
    for accumulate, ddp in MODES:
        model, callback = train(True, accumulate, **ddp)
        plain, _ = train(False, accumulate, **ddp)
        pairs = zip(model.parameters(), plain.parameters(), strict=True)
        rows.append(
            {
                "outcome": callback.result.outcome,
                "why": callback.result.why,
                "steps": callback.result.steps,
                "same": all(torch.equal(mine, theirs) for mine, theirs in pairs),
                "hooks": sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters()),
            }
        )
    (folder / f"{rank}.json").write_text(json.dumps(rows))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
