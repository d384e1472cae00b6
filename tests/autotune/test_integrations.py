"""``sim.autotune`` and ``sim.record`` in real trainers on two gloo ranks, where they are installed.

``python -m tests.autotune.test_integrations RANK FOLDER LOOP`` is one of the ranks, tuned, recorded and
plain, and checks itself; LOOP is a key of ``LOOPS``.
"""

import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import sim
from sim.autotuner import loop
from sim.formats.recordings import load_recording
from sim.importer.recorded import workload_of
from tests.ranks import run_together

pytestmark = [pytest.mark.dist, pytest.mark.slow]
STEPS = 50
OPTIONS = {"record_steps": 4, "verify_steps": 12}
# By "tuned", "recorded" or "plain": the model, what it was wrapped in, and how the tuning ended.
Train = Callable[[str], tuple[nn.Module, nn.Module, Any]]


class Tokens(Dataset[dict[str, Tensor]]):
    """Random ones, the same in every run."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(500, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))


def by_transformers(folder: Path, how: str, **options: Any) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from sim.integrations.transformers import BucketAutotuneCallback, BucketRecordingCallback

    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 500, "n_positions": 16}
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
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens())
    callback: Any = None
    if how == "tuned":
        callback = BucketAutotuneCallback(trainer, **OPTIONS, max_verify_steps=20)
    elif how == "recorded":
        callback = BucketRecordingCallback(trainer, folder / "recording", max_steps=STEPS - 10)
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train()
    return trainer.model, trainer.model_wrapped, getattr(callback, "result", None)


def by_lightning(folder: Path, how: str, accumulate: int, **ddp: Any) -> Any:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    from sim.integrations.lightning import BucketAutotune, BucketRecording

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = layers()

        def training_step(self, batch: torch.Tensor) -> torch.Tensor:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    callback: Any = None
    if how == "tuned":
        callback = BucketAutotune(**OPTIONS, max_verify_steps=20)
    elif how == "recorded":
        callback = BucketRecording(folder / "recording", max_steps=STEPS - 10)
    model = Model()
    trainer = lightning.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo", **ddp),
        callbacks=[] if callback is None else [callback],
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    inputs = torch.randn(1000, 64, generator=torch.Generator().manual_seed(0))
    trainer.fit(model, DataLoader(inputs, batch_size=2))
    return model, model, getattr(callback, "result", None)


def by_hand(prepare: Callable[[nn.Module, Any], Any], waits: bool, how: str) -> Any:
    """A loop around what Accelerate or Fabric ``prepare``: ``sim.autotune`` takes it as it is.

    ``waits``: its own optimizer waits for the last micro-batch.
    """
    torch.manual_seed(0)
    inner = layers()
    model, optimizer, backward, micro_batch = prepare(inner, torch.optim.SGD(inner.parameters(), lr=0.1))
    tuner: Any = None
    if how == "tuned":
        loop._is_worth_a_trial = lambda found: True
        tuner = sim.autotune(model, **OPTIONS, max_verify_steps=12)
    for number in range(2 * STEPS):
        is_last = number % 2 == 1
        seed = 2 * number + int(os.environ["RANK"])
        batch = torch.randn(4, 64, generator=torch.Generator().manual_seed(seed))
        with micro_batch(model, is_last):
            backward(model(batch).square().mean())
            if is_last or waits:
                optimizer.step()
                optimizer.zero_grad()
        if tuner is not None:
            tuner.step()
    if tuner is not None:
        assert tuner.result.ab.rounds == 6
    return inner, model, tuner and tuner.result


def accelerated(model: nn.Module, optimizer: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs

    cap = DistributedDataParallelKwargs(bucket_cap_mb=0.01)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[cap])
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer, accelerator.backward, lambda model, _: accelerator.accumulate(model)


def in_fabric(model: nn.Module, optimizer: Any) -> Any:
    import lightning
    from lightning.fabric.strategies import DDPStrategy

    strategy = DDPStrategy(process_group_backend="gloo", bucket_cap_mb=0.01)
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    fabric.launch()
    prepared = fabric.setup(model, optimizer)
    return *prepared, fabric.backward, lambda model, last: fabric.no_backward_sync(model, not last)


# Each in its modes; where something can be recorded, it is in the last one, which accumulates gradients.
LOOPS: dict[str, Callable[[Path], list[Train]]] = {
    "transformers": lambda folder: [
        partial(by_transformers, folder),
        partial(by_transformers, folder, gradient_accumulation_steps=2, ddp_find_unused_parameters=False),
    ],
    "lightning": lambda folder: [
        partial(by_lightning, folder, accumulate=1),
        partial(by_lightning, folder, accumulate=1, find_unused_parameters=True),
        partial(by_lightning, folder, accumulate=1, static_graph=True),
        partial(by_lightning, folder, accumulate=2, gradient_as_bucket_view=True),
    ],
    "accelerate": lambda _: [partial(by_hand, accelerated, True)],
    "fabric": lambda _: [partial(by_hand, in_fabric, False)],
}

NEEDS = {
    "transformers": ("transformers", "accelerate"),
    "lightning": ("lightning",),
    "accelerate": ("accelerate",),
    "fabric": ("lightning",),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_tuned_or_recorded_and_its_weights_are_those_without(name: str, tmp_path: Path) -> None:
    """Ranks check themselves; what was recorded accumulates gradients."""
    for package in NEEDS[name]:
        pytest.importorskip(package)
    for code, error in run_together("tests.autotune.test_integrations", tmp_path, name):
        assert code == 0, error
    if name in ("accelerate", "fabric"):
        return
    recording = load_recording(tmp_path / "recording")
    for recorded in recording.ranks:
        assert len(recorded.steps) == 40
        for step in recorded.steps:
            assert [backward.synchronised for backward in step.backwards] == [False, True]
    assert len(workload_of(recording).gradients) == len(recording.ranks[0].header.parameters)


def main(rank: str, folder: Path, name: str) -> None:
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port(rank, folder)}
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "False", "ACCELERATE_USE_CPU": "true"}
    modes = LOOPS[name](folder)
    for train in modes:
        model, wrapped, result = train("tuned")
        plain, _, _ = train("plain")
        assert result.outcome in ("kept", "reverted"), result.why
        assert result.steps >= 14
        check_untouched(model, wrapped, plain)
    if len(modes) > 1:
        model, wrapped, _ = modes[-1]("recorded")
        check_untouched(model, wrapped, plain)
    torch.distributed.barrier()
    os._exit(0)  # a group of gloo whose models outlive it may hang as they are freed, without any of ours too


def check_untouched(model: nn.Module, wrapped: nn.Module, plain: nn.Module) -> None:
    """Its weights are the plain one's, and none of our hooks is left."""
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in wrapped.parameters())
    assert (len(wrapped._forward_hooks), len(wrapped._forward_pre_hooks)) == (0, 0)


def port(rank: str, folder: Path) -> str:
    """A free one, that the first rank finds."""
    store = torch.distributed.FileStore(str(folder / "port"), 2)
    if rank == "0":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            store.set("port", str(free.getsockname()[1]))
    return store.get("port").decode()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
