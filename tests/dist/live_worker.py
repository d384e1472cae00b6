"""One of two gloo ranks on which ``sim.record`` is tried; its answers go to a JSON file by name of the case.

``python -m tests.dist.live_worker RANK FOLDER [CASE...]``: the named cases (default: all but ``killed``)
are called once each, in a folder of their own.
"""

import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import sim
from sim.errors import InputError
from sim.recorder import live_recording
from sim.recorder.live_recording import LiveRecording
from tests.this_torch import takes

STEPS = 6


class Net(nn.Module):
    """Five layers with a batch norm between them (its buffers are broadcast)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 1)
        self.checkpointed = False

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self.layers, x, use_reentrant=True) if self.checkpointed else self.layers(x)
        return self.head(self.norm(x).relu()).square().mean()


def build(**kwargs: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    model = DistributedDataParallel(Net(), **{"bucket_cap_mb": 0.008, **kwargs})
    return model, torch.optim.SGD(model.parameters(), lr=0.05)


def batches(count: int = STEPS) -> Iterator[Tensor]:
    for number in range(count):
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        yield torch.randn(8, 32, generator=generator)


def train(
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    recording: LiveRecording | None = None,
    count: int = STEPS,
) -> list[Tensor]:
    """Plain steps; the reduced gradients of each."""
    seen = []
    for batch in batches(count):
        optimizer.zero_grad()
        ddp(batch).backward()
        seen.append(torch.cat([p.grad.flatten().clone() for p in ddp.parameters() if p.grad is not None]))
        optimizer.step()
        if recording is not None:
            recording.step()
    return seen


def equal(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def lines(folder: Path) -> list[dict[str, Any]]:
    """This rank's file, line by line."""
    path = folder / f"rank-{dist.get_rank()}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def refusal(call: Callable[[], Any]) -> str:
    try:
        call()
    except InputError as error:
        return str(error)
    return "accepted"


def entered(*args: Any, **kwargs: Any) -> Callable[[], None]:
    def call() -> None:
        with sim.record(*args, **kwargs):
            pass

    return call


def gradients(folder: Path) -> Any:
    """During, after and in a second recording: the gradients of plain DDP, to the bit."""
    answers = {}
    for name, kwargs in {
        "plain": {},
        "view": {"gradient_as_bucket_view": True},
        "static": {"static_graph": True},
        "unused": {"find_unused_parameters": True},
        "batched": {"batched_grad_copy": True},
    }.items():
        if not takes(kwargs):
            continue
        ddp, optimizer = build(**kwargs)
        expected = train(ddp, optimizer, count=3 * STEPS)
        ddp, optimizer = build(**kwargs)
        seen = []
        with sim.record(ddp, folder / name):
            seen += train(ddp, optimizer, count=3 * STEPS)
        ddp, optimizer = build(**kwargs)
        apart = []
        with sim.record(ddp, folder / f"{name} 1", max_steps=4) as recording:
            apart += train(ddp, optimizer)
            kept = recording.steps_recorded
        apart += train(ddp, optimizer)
        with sim.record(ddp, folder / f"{name} 2"):
            apart += train(ddp, optimizer)
        reference, optimizer = build(**kwargs)
        thrice = [g for _ in range(3) for g in train(reference, optimizer)]
        log = ddp._get_ddp_logging_data()
        answers[name] = {
            "equal": equal(seen, expected),
            "apart": equal(apart, thrice),
            "max_steps": kept,
            "log": str(log.get("rebuilt_per_bucket_param_indices")),
            "lines": lines(folder / name),
            "second": lines(folder / f"{name} 2"),
        }
    return answers


def light(folder: Path) -> Any:
    ddp, optimizer = build()
    expected = train(ddp, optimizer)
    ddp, optimizer = build()
    with sim.record(ddp, folder, level="light"):
        seen = train(ddp, optimizer)
    log = ddp._get_ddp_logging_data()
    return {
        "equal": equal(seen, expected),
        "hook": log.get("comm_hook"),
        "log": str(log["rebuilt_per_bucket_param_indices"]),
        "lines": lines(folder),
    }


def accumulation(folder: Path) -> Any:
    """Two backwards under no_sync and one without, evaluation after each step, no ``step()`` anywhere."""

    def run(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        seen = []
        for batch in batches():
            optimizer.zero_grad()
            with ddp.no_sync():
                for part in (batch[:4], batch[4:]):
                    ddp(part).backward()
            ddp(batch).backward()
            seen.append(torch.cat([p.grad.flatten().clone() for p in ddp.parameters() if p.grad is not None]))
            optimizer.step()
            ddp.eval()
            with torch.no_grad():
                ddp(batch)
            ddp(batch)  # gradients enabled, and no backward
            ddp.train()
        return seen

    expected = run(*build())
    ddp, optimizer = build()
    with sim.record(ddp, folder):
        seen = run(ddp, optimizer)
    return {"equal": equal(seen, expected), "lines": lines(folder)}


def scaled(folder: Path) -> Any:
    """autocast and a GradScaler that skips a step; a second optimizer of another model in between."""
    ddp, optimizer = build()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with sim.record(ddp, folder) as recording:
        for number, batch in enumerate(batches()):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = ddp(batch)
            scaler.scale(loss * (float("inf") if number == 3 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            other.step()
            recording.step()
    return lines(folder)


def checkpointed(folder: Path) -> Any:
    ddp, optimizer = build(static_graph=True)
    ddp.module.checkpointed = True
    with sim.record(ddp, folder):
        for batch in batches():
            optimizer.zero_grad()
            ddp(batch.requires_grad_()).backward()
            optimizer.step()
    return lines(folder)


def every(folder: Path) -> Any:
    ddp, optimizer = build()
    with sim.record(ddp, folder, every=3, max_steps=2):
        train(ddp, optimizer, count=10)
    return lines(folder)


def failing(folder: Path) -> Any:
    """An exception in the loop, and one inside backward that the loop survives."""
    ddp, optimizer = build()
    caught = None
    try:
        with sim.record(ddp, folder / "loop"):
            for number, batch in enumerate(batches()):
                optimizer.zero_grad()
                ddp(batch).backward()
                if number == 3:
                    raise KeyError("the user's own")
                optimizer.step()
    except KeyError as error:
        caught = repr(error)
    left = [len(p._post_accumulate_grad_hooks or ()) for p in ddp.parameters()]
    ddp, optimizer = build()
    with sim.record(ddp, folder / "break"):
        for number, batch in enumerate(batches()):
            if number == 4:
                break
            optimizer.zero_grad()
            ddp(batch).backward()
            optimizer.step()
    return {
        "caught": caught,
        "left": sum(left),
        "lines": lines(folder / "loop"),
        "broken off": lines(folder / "break"),
    }


def hooks(folder: Path) -> Any:
    """fp16 compression, alone and wrapped; what is in the way is refused."""
    ddp, optimizer = build()
    ddp.register_comm_hook(None, fp16_compress_hook)
    expected = train(ddp, optimizer)
    refused = [refusal(entered(ddp, folder / "refused"))]
    with sim.record(ddp, folder / "light", level="light"):
        train(ddp, optimizer)
    builtin, _ = build()
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    refused.append(refusal(entered(builtin, folder / "refused")))
    ddp, optimizer = build()
    with sim.record(ddp, folder / "wrapped", wrap=fp16_compress_hook):
        seen = train(ddp, optimizer)
    other = refusal(entered(ddp, folder / "other", wrap=lambda state, bucket: None))
    return {
        "equal": equal(seen, expected),
        "refused": refused,
        "other": other,
        "left behind": (folder / "refused").is_dir() and sorted(os.listdir(folder / "refused")),
        "light": lines(folder / "light"),
        "wrapped": lines(folder / "wrapped"),
    }


def arguments(folder: Path) -> Any:
    ddp, optimizer = build()
    frozen, _ = build()
    next(iter(frozen.parameters())).requires_grad_(False)
    cases = {
        "model": entered(ddp.module, folder),
        "level": entered(ddp, folder, level="deep"),
        "every": entered(ddp, folder, every=0),
        "max_steps": entered(ddp, folder, max_steps=True),
        "wrap": entered(ddp, folder, level="light", wrap=fp16_compress_hook),
        "frozen": entered(frozen, folder),
    }
    answers = {name: refusal(call) for name, call in cases.items()}
    with sim.record(ddp, folder / "twice", level="light"):
        answers["nested"] = refusal(entered(ddp, folder / "nested", level="light"))
        train(ddp, optimizer, count=1)
    answers["exists"] = refusal(entered(ddp, folder / "twice", level="light"))
    return answers


def full_disk(folder: Path) -> Any:
    """The disk is full after three lines, then from the start; training goes on with equal gradients."""
    real = os.write
    taken = 0

    def write(handle: int, text: bytes) -> int:
        nonlocal taken
        taken += 1
        if taken > 3:
            if taken == 4:
                return real(handle, text[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, text)

    warned: list[str] = []
    live_recording._log.addFilter(lambda record: bool(warned.append(record.getMessage())))
    ddp, optimizer = build()
    expected = train(ddp, optimizer)
    ddp, optimizer = build()
    os.write = write
    try:
        with sim.record(ddp, folder):
            seen = train(ddp, optimizer)
    finally:
        os.write = real
    text = (folder / f"rank-{dist.get_rank()}.jsonl").read_text()
    return {"equal": equal(seen, expected), "warned": warned, "text": text}


def killed(folder: Path) -> Any:
    """Rank 1 is killed in the middle of a backward of its fifth step."""
    ddp, optimizer = build()
    if dist.get_rank() == 1:
        count = 0

        def die(_: Tensor) -> None:
            nonlocal count
            count += 1
            if count == 5:
                os.kill(os.getpid(), signal.SIGKILL)

        ddp.module.layers[1].weight.register_post_accumulate_grad_hook(die)
    reason = None
    try:
        with sim.record(ddp, folder):
            train(ddp, optimizer)
    except RuntimeError as error:
        reason = str(error)
    return {"reason": reason}


CASES: dict[str, Callable[[Path], Any]] = {
    case.__name__: case
    for case in (
        gradients, light, accumulation, scaled, checkpointed, every, failing, hooks, arguments, full_disk
    )
}  # fmt: skip


def main() -> None:
    """Answer the cases."""
    torch.set_num_threads(1)
    rank, folder = int(sys.argv[1]), Path(sys.argv[2])
    names = sys.argv[3:]
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    answers = {}
    for name in names or CASES:
        case = killed if name == "killed" else CASES[name]
        answers[name] = case(folder / name)
        gc.collect()
    (folder / f"answers-{rank}.json").write_text(json.dumps(answers))
    if "killed" not in names:
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
