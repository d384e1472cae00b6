"""One of some gloo ranks on which buckets are switched while a model trains.

``python -m tests.autotune.switch_worker RANK FOLDER WORLD STEPS [CASE...]``: answers go to a file, by case.
"""

import copy
import gc
import json
import pickle
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import loop
from sim.autotuner.switch import BucketSwitch, TriedBuckets
from tests.this_torch import HAS_BF16_HOOK

Gradients = list[Tensor | None]


class Net(nn.Module):
    """Layers with BatchNorm's buffers between them, some in another dtype, some not used by every rank.

    ``integers``: gradients are integers, which no order of adding them up rounds; there is no BatchNorm then.
    """

    def __init__(
        self,
        *,
        mixed: bool = False,
        skips: bool = False,
        unused: bool = False,
        integers: bool = False,
        width: int = 12,
    ) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.norm = nn.Identity() if integers else nn.BatchNorm1d(width)
        self.width, self.skips, self.unused, self.calls = width, skips, unused, 0
        self.integers = integers
        if mixed:
            for place in (1, 4):
                self.layers[place].double()

    def forward(self, x: Tensor) -> Tensor:
        if self.width > x.shape[1]:
            x = nn.functional.pad(x, (0, self.width - x.shape[1]))
        if self.integers:
            return torch.stack([layer((4 * x).round()).sum() for layer in self.layers]).sum()
        self.calls += self.skips  # a counter that torch.compile would compile for each time
        skipped = {2} if self.unused else set()
        if self.skips:
            skipped = {(self.calls + dist.get_rank()) % 6, 5}
        for place, layer in enumerate(self.layers):
            if place not in skipped:
                x = layer(x.to(next(layer.parameters()).dtype)).tanh()
        return self.norm(x.float()).square().mean()


# How each case trains: the model's switches, DDP's, the loop's.
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "plain": {},
    "views": {"ddp": {"gradient_as_bucket_view": True}},
    "kept gradients": {"loop": {"set_to_none": False}},
    "views, kept gradients": {"ddp": {"gradient_as_bucket_view": True}, "loop": {"set_to_none": False}},
    "find_unused": {"model": {"skips": True}, "ddp": {"find_unused_parameters": True}},
    "find_unused, views": {
        "model": {"skips": True},
        "ddp": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
        "loop": {"set_to_none": False},
    },
    "find_unused, accumulated": {
        "model": {"skips": True},
        "ddp": {"find_unused_parameters": True},
        "loop": {"micro_batches": 3},
    },
    "static_graph": {"model": {"unused": True}, "ddp": {"static_graph": True}},
    "static_graph, views": {
        "model": {"unused": True},
        "ddp": {"static_graph": True, "gradient_as_bucket_view": True},
    },
    "accumulated": {"loop": {"micro_batches": 3}},
    "accumulated, views": {
        "ddp": {"gradient_as_bucket_view": True},
        "loop": {"micro_batches": 3, "set_to_none": False},
    },
    "allreduce hook": {"loop": {"hook": allreduce_hook}},
    "fp16 hook": {"loop": {"hook": fp16_compress_hook}},
    "fp16 hook, views": {
        "ddp": {"gradient_as_bucket_view": True},
        "loop": {"hook": fp16_compress_hook},
    },
    "mixed dtypes": {"model": {"mixed": True}},
    "mixed dtypes, views": {"model": {"mixed": True}, "ddp": {"gradient_as_bucket_view": True}},
    **({"bf16 hook": {"loop": {"hook": bf16_compress_hook}}} if HAS_BF16_HOOK else {}),
    "no buffers": {"ddp": {"broadcast_buffers": False}},
    "integers": {"model": {"integers": True}},
    "compiled": {"loop": {"compiled": "module"}},
    "compiled DDP": {"loop": {"compiled": "ddp"}},
}
COMPILED = ("compiled", "compiled DDP")
BY_HAND = ("plain", "views", "kept gradients", "no buffers", "integers")  # reduced without DDP as well


def batch(number: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * number + dist.get_rank())
    return torch.randn(8, 12, generator=generator)


class Training:
    """One model under DDP, stepped by hand."""

    def __init__(self, case: dict[str, dict[str, Any]]) -> None:
        loop = case.get("loop", {})
        module: Any = Net(**case.get("model", {}))
        if loop.get("compiled") == "module":
            module = torch.compile(module, backend="aot_eager")
        cap = None if loop.get("compiled") else 0.002  # torch.compile takes none below 1 MiB
        self.ddp = DistributedDataParallel(module, bucket_cap_mb=cap, **case.get("ddp", {}))
        self.forward: Any = self.ddp
        if loop.get("compiled") == "ddp":
            self.forward = torch.compile(self.ddp, backend="aot_eager")
        if loop.get("hook"):
            self.ddp.register_comm_hook(None, loop["hook"])
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.05, momentum=0.9)
        self.micro_batches = loop.get("micro_batches", 1)
        self.set_to_none = loop.get("set_to_none", True)
        self.hooked = bool(loop.get("hook"))

    def step(self, number: int) -> Gradients:
        """The gradients that the optimizer saw."""
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        for part in range(self.micro_batches):
            last = part == self.micro_batches - 1
            with nullcontext() if last else self.ddp.no_sync():
                self.forward(batch(10 * number + part)).backward()
        seen = [None if p.grad is None else p.grad.clone() for p in self.ddp.parameters()]
        self.optimizer.step()
        return seen

    def state(self) -> list[Tensor]:
        return [*self.ddp.parameters(), *self.ddp.buffers()]


def reduced_by_hand(training: Training, number: int, buckets: Any) -> list[Tensor]:
    """What all-reduces of ``buckets`` make of this rank's gradients, computed without DDP."""
    module = copy.deepcopy(training.ddp.module)
    module.zero_grad()
    module(batch(10 * number)).backward()
    parameters = list(module.parameters())
    for bucket in buckets:
        flat = torch.cat([parameters[index].grad.flatten() for index in bucket])
        flat.mul_(1 / dist.get_world_size())
        dist.all_reduce(flat)
        for index, part in zip(bucket, flat.split([parameters[i].numel() for i in bucket]), strict=True):
            parameters[index].grad.copy_(part.view_as(parameters[index]))
    return [parameter.grad for parameter in parameters]


def same(one: Any, other: Any) -> bool:
    return all(
        mine is theirs if mine is None or theirs is None else torch.equal(mine, theirs)
        for mine, theirs in zip(one, other, strict=True)
    )


def partitions(ddp: DistributedDataParallel, chance: random.Random) -> Iterator[list[list[int]]]:
    """Any partitions within one dtype a bucket, in any order."""
    parameters = list(ddp.parameters())
    while True:
        groups: dict[Any, list[int]] = {}
        parts = chance.randint(1, len(parameters))
        for index in chance.sample(range(len(parameters)), len(parameters)):
            groups.setdefault((parameters[index].dtype, chance.randint(1, parts)), []).append(index)
        buckets = list(groups.values())
        chance.shuffle(buckets)
        yield buckets


def random_switches(name: str, steps: int) -> dict[str, Any]:
    """Switched at random after every step, against the same training that is never switched."""
    chance = random.Random(name)
    mine, plain = Training(CASES[name]), Training(CASES[name])
    for number in range(3):
        mine.step(number), plain.step(number)
    before = mine.ddp.reducer
    switch = BucketSwitch(mine.ddp)
    fresh = partitions(mine.ddp, chance)
    # The order in which more than two numbers are added rounds them, but no integers and their quarters.
    world_size = dist.get_world_size()
    is_exact = world_size == 2 or (world_size == 4 and name == "integers")
    others: list[TriedBuckets] = []
    wrong, used = [], []
    for number in range(3, 3 + steps):
        if number % 5 == 0:
            lane = switch.original
        elif len(others) < 2:
            lane = switch.make(next(fresh))
            others.append(lane)
        else:
            lane = chance.choice([switch.original, *others])
        switch.use(lane)
        used.append("own" if lane is switch.original else "other")
        if len(others) == 2 and chance.random() < 0.3:
            idle = next(one for one in others if one is not lane)
            others.remove(idle)
            switch.drop(idle)
        by_hand = reduced_by_hand(mine, number, lane.buckets) if name in BY_HAND else None
        seen, expected = mine.step(number), plain.step(number)
        if by_hand is not None and not same(seen, by_hand):
            wrong.append(number)
        if is_exact and not (same(seen, expected) and same(mine.state(), plain.state())):
            wrong.append(-number)
    switch.use(switch.original)
    for lane in others:
        switch.drop(lane)
    after = mine.step(0)
    return {
        "wrong": wrong,
        "used": used,
        "original": mine.ddp.reducer is before,
        "alike": alike(mine.state()[: len(list(mine.ddp.parameters()))]) and alike(after),
        "pickled": len(list(pickle.loads(pickle.dumps(mine.ddp)).parameters())) if name == "plain" else None,
    }


def tuned(name: str) -> dict[str, Any]:
    """A whole tuning in this mode, with a trial whatever is predicted."""
    mine, plain = Training(CASES[name]), Training(CASES[name])
    loop._is_worth_a_trial = lambda found: True
    tuner = sim.autotune(mine.forward, record_steps=4, verify_steps=12, max_verify_steps=12)
    wrong = []
    for number in range(60):
        seen, expected = mine.step(number), plain.step(number)
        if not (same(seen, expected) and same(mine.state(), plain.state())):
            wrong.append(number)
        ended = tuner.result is not None
        tuner.step()
        if ended:
            break
    result = tuner.result
    assert result is not None
    return {
        "outcome": result.outcome,
        "why": result.why,
        "rounds": result.ab and result.ab.rounds,
        "wrong": wrong,
    }


def alike(tensors: Any) -> bool:
    """Whether all ranks hold the same."""
    digest = torch.stack([torch.zeros(()) if t is None else t.double().sum().float() for t in tensors])
    others = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(others, digest)
    return all(torch.equal(digest, other) for other in others)


def live_reducers() -> int:
    gc.collect()
    return sum(type(one).__name__ == "FixedReducer" for one in gc.get_objects())


def many_swaps(steps: int) -> dict[str, Any]:
    """New buckets after every step: none of the old ones stay, nor their memory."""
    training = Training({"model": {"width": 512}} if steps >= 1000 else {})
    for number in range(3):
        training.step(number)
    switch = BucketSwitch(training.ddp)
    fresh = partitions(training.ddp, random.Random(1))
    before, held = live_reducers(), []
    for number in range(steps):
        switch.keep(switch.make(next(fresh)))
        training.step(number)
        if number % 100 == 99:
            held.append(resident_bytes())
    return {
        "live": live_reducers() - before,
        "grown": max(held[-3:]) - min(held[:3]) if len(held) > 3 else 0,
        "gradients": sum(parameter.nbytes for parameter in training.ddp.parameters()),
    }


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    rank, folder, world, steps, *cases = sys.argv[1:]
    store = dist.FileStore(str(Path(folder) / "store"), int(world))
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world))
    answers: dict[str, Any] = {}
    for name in [] if cases == ["none"] else cases or CASES:
        mode = name.removeprefix("tuned: ")
        answers[name] = random_switches(mode, int(steps)) if mode == name else tuned(mode)
    answers["many swaps"] = many_swaps(int(steps))
    (Path(folder) / f"{rank}.json").write_text(json.dumps(answers))
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
