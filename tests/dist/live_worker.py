"""One of two gloo ranks on which ``sim.record`` is tried: what it sees, and that training never notices it.

``python -m tests.dist.live_worker RANK FOLDER [killed]``: ``killed``, or every function of ``CASES``, is
called once, in a folder of its own.
"""

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import sim
from sim.errors import InputError
from sim.recorder import live_recording
from tests.checked import check_each
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
    count: int = STEPS,
) -> list[Tensor]:
    """Plain steps; the reduced gradients of each."""
    seen = []
    for batch in batches(count):
        optimizer.zero_grad()
        ddp(batch).backward()
        seen.append(torch.cat([p.grad.flatten().clone() for p in ddp.parameters() if p.grad is not None]))
        optimizer.step()
    return seen


def the_same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def lines(folder: Path) -> list[dict[str, Any]]:
    """This rank's file, line by line."""
    path = folder / f"rank-{dist.get_rank()}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(folder: Path) -> list[dict[str, Any]]:
    return [line for line in lines(folder) if line["kind"] == "step"]


def layouts(folder: Path) -> list[list[list[int]]]:
    return [line["bucket_indices"] for line in lines(folder) if line["kind"] == "buckets"]


def logged(ddp: DistributedDataParallel) -> list[list[int]]:
    """The buckets in DDP's own log."""
    text = str(ddp._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"])
    return [[int(index) for index in bucket.split()] for bucket in text.split(",")]


def refused(words: str, *given: Any, **options: Any) -> None:
    """``sim.record`` refuses with these words."""
    with pytest.raises(InputError, match=words), sim.record(*given, **options):
        pass


def gradients(folder: Path) -> None:
    """During a recording, after one that ended on its own, and in a second one on the same model: the
    gradients of plain DDP, to the bit; the recorded buckets are those in DDP's log (A2.6)."""
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
        with sim.record(ddp, folder / name):
            assert the_same(train(ddp, optimizer, count=3 * STEPS), expected), name
        ddp, optimizer = build(**kwargs)
        with sim.record(ddp, folder / f"{name} 1", max_steps=4) as recording:
            apart = train(ddp, optimizer)
            assert recording.steps_recorded == 4
        apart += train(ddp, optimizer)
        with sim.record(ddp, folder / f"{name} 2"):
            apart += train(ddp, optimizer)
        reference, optimizer = build(**kwargs)
        assert the_same(apart, [g for _ in range(3) for g in train(reference, optimizer)]), name
        assert (len(steps(folder / name)), len(steps(folder / f"{name} 2"))) == (18, 6)
        in_order(folder / name)
        if name != "unused":  # there is no rebuild and so nothing in the log
            buckets = logged(ddp)
            assert len(buckets) > 1
            assert layouts(folder / name)[-1] == layouts(folder / f"{name} 2")[-1] == buckets
            sizes = [parameter["num_bytes"] for parameter in lines(folder / name)[0]["parameters"]]
            sent = steps(folder / name)[-1]["backwards"][0]["buckets"]
            assert [one["num_bytes"] for one in sent] == [sum(sizes[i] for i in one) for one in buckets]


def in_order(folder: Path) -> None:
    """A3.2, A3.5, A3.10: gradient, bucket, launch in order, end, end of backward."""
    layout = layouts(folder)[-1]
    for step in steps(folder)[2:]:
        (backward,) = step["backwards"]
        assert 0 == backward["started_ns"] <= backward["forward_start_ns"] < backward["forward_end_ns"]
        assert 0 < max(backward["ready_ns"]) <= backward["backward_ns"] <= backward["sync_end_ns"]
        launches = [bucket["launch_ns"] for bucket in backward["buckets"]]
        assert launches == sorted(launches)
        for bucket, parameters in zip(backward["buckets"], layout, strict=True):
            assert max(backward["ready_ns"][index] for index in parameters) <= bucket["ready_ns"]
            assert bucket["ready_ns"] <= bucket["launch_ns"]
            assert bucket["ready_ns"] <= bucket["end_ns"] <= backward["sync_end_ns"]
        spent = backward["forward_end_ns"] + backward["sync_end_ns"] + step["optimizer_ns"]
        assert abs(step["step_ns"] - spent) <= 3


def light(folder: Path) -> None:
    """No hook is registered."""
    ddp, optimizer = build()
    expected = train(ddp, optimizer)
    ddp, optimizer = build()
    with sim.record(ddp, folder, level="light"):
        assert the_same(train(ddp, optimizer), expected)
    assert ddp._get_ddp_logging_data().get("comm_hook") is None
    assert layouts(folder) == [logged(ddp)]
    assert len(steps(folder)) == 6
    for step in steps(folder):
        (backward,) = step["backwards"]
        assert backward["buckets"] == []
        assert None not in backward["ready_ns"]


def accumulation(folder: Path) -> None:
    """Two backwards under no_sync and one without, evaluation after each step, no ``step()`` anywhere
    (A3.12); a forward with gradients and without backward arms the Reducer for the next backward."""

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
        assert the_same(run(ddp, optimizer), expected)
    first, *others = steps(folder)
    assert [b["synchronised"] for b in first["backwards"]] == [False, False, True]
    assert [len(b["buckets"]) for b in first["backwards"]] == [0, 0, 1]
    assert len(others) == 5
    for step in others:
        assert [b["synchronised"] for b in step["backwards"]] == [True, False, True]
        assert [len(b["buckets"]) for b in step["backwards"]] == [2, 0, 2]
        assert [b["forwards"] for b in step["backwards"]] == [2, 1, 1]
        assert step["backwards"][0]["started_ns"] == 0


def scaled(folder: Path) -> None:
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
    rows = steps(folder)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["optimizer_ns"] is None for row in rows] == [False] * 3 + [True] + [False] * 2
    assert all(len(row["backwards"]) == 1 for row in rows)


def checkpointed(folder: Path) -> None:
    """A reentrant checkpoint ends before DDP waits."""
    ddp, optimizer = build(static_graph=True)
    ddp.module.checkpointed = True
    with sim.record(ddp, folder):
        for batch in batches():
            optimizer.zero_grad()
            ddp(batch.requires_grad_()).backward()
            optimizer.step()
    for row in steps(folder)[2:]:
        (backward,) = row["backwards"]
        assert max(backward["ready_ns"]) <= backward["backward_ns"]
        assert max(bucket["end_ns"] for bucket in backward["buckets"]) <= backward["sync_end_ns"]
        last = backward["buckets"][-1]["ready_ns"]
        assert backward["backward_ns"] - last < backward["sync_end_ns"] - last


def every(folder: Path) -> None:
    """Every third step is recorded, and no more than asked for."""
    ddp, optimizer = build()
    with sim.record(ddp, folder, every=3, max_steps=2):
        train(ddp, optimizer, count=10)
    assert [row["step"] for row in steps(folder)] == [1, 4]


def failing(folder: Path) -> None:
    """An exception in the loop flushes and propagates; a loop may also be left."""
    ddp, optimizer = build()
    with pytest.raises(KeyError, match="the user's own"), sim.record(ddp, folder / "loop"):  # noqa: PT012
        for number, batch in enumerate(batches()):
            optimizer.zero_grad()
            ddp(batch).backward()
            if number == 3:
                raise KeyError("the user's own")
            optimizer.step()
    assert not any(p._post_accumulate_grad_hooks for p in ddp.parameters())
    assert [step["step"] for step in steps(folder / "loop")] == [1, 2, 3]
    ddp, optimizer = build()
    with sim.record(ddp, folder / "break"):
        for number, batch in enumerate(batches()):
            if number == 4:
                break
            optimizer.zero_grad()
            ddp(batch).backward()
            optimizer.step()
    assert [step["step"] for step in steps(folder / "break")] == [1, 2, 3, 4]


def hooks(folder: Path) -> None:
    """fp16 compression, alone and wrapped; what is in the way is refused."""
    ddp, optimizer = build()
    ddp.register_comm_hook(None, fp16_compress_hook)
    expected = train(ddp, optimizer)
    refused("fp16_compress_hook.*level='light'.*wrap=", ddp, folder / "refused")
    with sim.record(ddp, folder / "light", level="light"):
        train(ddp, optimizer)
    builtin, _ = build()
    builtin._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    refused("FP16_COMPRESS.*level='light'.*wrap=", builtin, folder / "refused")
    ddp, optimizer = build()
    with sim.record(ddp, folder / "wrapped", wrap=fp16_compress_hook):
        assert the_same(train(ddp, optimizer), expected)
    refused("one communication hook", ddp, folder / "other", wrap=lambda state, bucket: None)
    assert os.listdir(folder / "refused") == []
    names = [lines(folder / level)[0]["comm_hook"] for level in ("light", "wrapped")]
    assert names == ["fp16_compress_hook"] * 2
    sent = [len(step["backwards"][0]["buckets"]) for step in steps(folder / "wrapped")]
    assert sent == [1, 2, 2, 2, 2, 2]


def arguments(folder: Path) -> None:
    """What cannot be recorded is refused by name."""
    ddp, optimizer = build()
    frozen, _ = build()
    next(iter(frozen.parameters())).requires_grad_(False)
    refused("a Net is not legal", ddp.module, folder)
    refused("full, light", ddp, folder, level="deep")
    refused("integer >= 1", ddp, folder, every=0)
    refused("integer >= 1", ddp, folder, max_steps=True)
    refused("level='full' only", ddp, folder, level="light", wrap=fp16_compress_hook)
    refused("11 parameters require grad, DDP was made with 12", frozen, folder)
    with sim.record(ddp, folder / "twice", level="light"):
        refused("being recorded already", ddp, folder / "nested", level="light")
        train(ddp, optimizer, count=1)
    refused("exists already", ddp, folder / "twice", level="light")


def full_disk(folder: Path) -> None:
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
    with mock.patch("os.write", write), sim.record(ddp, folder):
        seen = train(ddp, optimizer)
    assert the_same(seen, expected)
    (said,) = warned
    assert f"rank-{dist.get_rank()}.jsonl: recording stops here" in said


def killed(folder: Path) -> None:
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
    with pytest.raises(RuntimeError, match="by peer"), sim.record(ddp, folder):
        train(ddp, optimizer)
    os._exit(0)  # the group is broken


CASES = (gradients, light, accumulation, scaled, checkpointed, every, failing, hooks, arguments, full_disk)

if __name__ == "__main__":
    place = Path(sys.argv[2])
    tried = (killed,) if sys.argv[3:] == ["killed"] else CASES
    check_each(int(sys.argv[1]), place, {one.__name__: partial(one, place / one.__name__) for one in tried})
