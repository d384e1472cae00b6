"""One of two gloo ranks of Lightning's Trainer, with and without the callbacks.

``python -m tests.autotune.lightning_worker RANK FOLDER``: answers go to a file.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.autotune.trainer_worker import hooks, port, same

STEPS = 50
MODES: tuple[tuple[int, dict[str, bool]], ...] = (
    (1, {}),
    (2, {"gradient_as_bucket_view": True}),
    (1, {"find_unused_parameters": True}),
    (1, {"static_graph": True}),
)


def train(callbacks: list[Any], accumulate: int, **ddp: bool) -> Any:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

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
    model = Model()
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", **ddp),
        callbacks=callbacks,
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader(inputs, batch_size=2))
    return model


def main() -> None:
    from sim.integrations.lightning import BucketAutotune, BucketRecording

    rank, folder = sys.argv[1], Path(sys.argv[2])
    os.environ |= {"LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(rank, folder)}
    rows = []
    for accumulate, ddp in MODES:
        callback = BucketAutotune(record_steps=4, verify_steps=12, max_verify_steps=20)
        model, plain = train([callback], accumulate, **ddp), train([], accumulate, **ddp)
        rows.append(
            {
                "outcome": callback.result.outcome,
                "why": callback.result.why,
                "steps": callback.result.steps,
                "same": same(model, plain),
                "hooks": hooks(model),
            }
        )
    recording = BucketRecording(folder / "recording", max_steps=STEPS - 10)
    model, plain = train([recording], 2), train([], 2)
    answers = {"tuned": rows, "recorded": {"same": same(model, plain), "hooks": hooks(model)}}
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
