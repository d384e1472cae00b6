"""One of two gloo ranks of transformers' Trainer, with and without the callback.

``python -m tests.autotune.trainer_worker RANK FOLDER``: answers go to a file.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

STEPS = 50


class Tokens(Dataset[dict[str, Tensor]]):
    """Random ones, the same in every run."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(500, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def train(folder: Path, is_tuned: bool, **options: Any) -> tuple[Any, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from sim.integrations.transformers import BucketAutotuneCallback

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=2, n_head=2, n_embd=32, vocab_size=500, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        ddp_backend="gloo",
        disable_tqdm=True,
        **options,
    )
    trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens())
    callback = None
    if is_tuned:
        callback = BucketAutotuneCallback(trainer, record_steps=4, verify_steps=12, max_verify_steps=20)
        trainer.add_callback(callback)
    trainer.train()
    return trainer, callback


def main() -> None:
    rank, folder = sys.argv[1], Path(sys.argv[2])
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(rank, folder)}
    rows = []
    for options in ({}, {"gradient_accumulation_steps": 2, "ddp_find_unused_parameters": False}):
        tuned, callback = train(folder, True, **options)
        plain, _ = train(folder, False, **options)
        pairs = zip(tuned.model.parameters(), plain.model.parameters(), strict=True)
        rows.append(
            {
                "outcome": callback.result.outcome,
                "why": callback.result.why,
                "steps": callback.result.steps,
                "same": all(torch.equal(mine, theirs) for mine, theirs in pairs),
                "hooks": len(tuned.model_wrapped._forward_hooks),
            }
        )
    (folder / f"{rank}.json").write_text(json.dumps(rows))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def port(rank: str, folder: Path) -> str:
    """A free one, that the first rank finds."""
    store = torch.distributed.FileStore(str(folder / "port"), 2)
    if rank == "0":
        import socket

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            store.set("port", str(free.getsockname()[1]))
    return store.get("port").decode()


if __name__ == "__main__":
    main()
