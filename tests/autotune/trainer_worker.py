"""One of two gloo ranks of transformers' Trainer, with and without the callbacks.

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


def train(folder: Path, name: str, **options: Any) -> tuple[Any, Any]:
    """The trainer and the callback of this name, after ``STEPS`` steps; ``plain``: none."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from sim.integrations.transformers import BucketAutotuneCallback, BucketRecordingCallback

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
    callback: Any = None
    if name == "tuned":
        callback = BucketAutotuneCallback(trainer, record_steps=4, verify_steps=12, max_verify_steps=20)
    elif name == "recorded":
        callback = BucketRecordingCallback(trainer, folder / "recording", max_steps=STEPS - 10)
    if callback is not None:
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
        tuned, callback = train(folder, "tuned", **options)
        plain, _ = train(folder, "plain", **options)
        rows.append(
            {
                "outcome": callback.result.outcome,
                "why": callback.result.why,
                "steps": callback.result.steps,
                "same": same(tuned.model, plain.model),
                "hooks": len(tuned.model_wrapped._forward_hooks),
            }
        )
    recorded, _ = train(folder, "recorded", **options)
    answers = {
        "tuned": rows,
        "recorded": {"same": same(recorded.model, plain.model), "hooks": hooks(recorded.model_wrapped)},
    }
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def hooks(ddp: torch.nn.Module) -> int:
    on_parameters = sum(len(p._post_accumulate_grad_hooks or ()) for p in ddp.parameters())
    return on_parameters + len(ddp._forward_hooks) + len(ddp._forward_pre_hooks)


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
