"""Buckets switched at random while models train: in every mode gradients and weights are as without.

``python -m tests.autotune.test_switch RANK FOLDER WORLD STEPS CASE...`` is one of the ranks, which check
themselves: a CASE is a key of ``CASES``, of which "tuned: " is tuned, or ``swaps``.
"""

import copy
import gc
import pickle
import random
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
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
from tests.checked import assert_nothing_fails, check_each
from tests.this_torch import HAS_BF16_HOOK

pytestmark = pytest.mark.dist
Gradients = list[Tensor | None]
VIEWS = {"gradient_as_bucket_view": True}


class Net(nn.Module):
    """Layers with BatchNorm's buffers between them, some in another dtype, some not used by every rank.

    ``integers``: gradients are integers, which no order of adding them up rounds; there is no BatchNorm then.
    """

    def __init__(
        self,
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
    "views": {"ddp": VIEWS},
    "kept gradients": {"loop": {"set_to_none": False}},
    "views, kept gradients": {"ddp": VIEWS, "loop": {"set_to_none": False}},
    "find_unused": {"model": {"skips": True}, "ddp": {"find_unused_parameters": True}},
    "find_unused, views": {
        "model": {"skips": True},
        "ddp": {"find_unused_parameters": True, **VIEWS},
        "loop": {"set_to_none": False},
    },
    "find_unused, accumulated": {
        "model": {"skips": True},
        "ddp": {"find_unused_parameters": True},
        "loop": {"micro_batches": 3},
    },
    "static_graph": {"model": {"unused": True}, "ddp": {"static_graph": True}},
    "static_graph, views": {"model": {"unused": True}, "ddp": {"static_graph": True, **VIEWS}},
    "accumulated": {"loop": {"micro_batches": 3}},
    "accumulated, views": {"ddp": VIEWS, "loop": {"micro_batches": 3, "set_to_none": False}},
    "allreduce hook": {"loop": {"hook": allreduce_hook}},
    "fp16 hook": {"loop": {"hook": fp16_compress_hook}},
    "fp16 hook, views": {"ddp": VIEWS, "loop": {"hook": fp16_compress_hook}},
    "mixed dtypes": {"model": {"mixed": True}},
    "mixed dtypes, views": {"model": {"mixed": True}, "ddp": VIEWS},
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


def random_switches(name: str, steps: int) -> None:
    """Switched at random after every step, against the same training that is never switched."""
    chance, world_size = random.Random(name), dist.get_world_size()
    mine, plain = Training(CASES[name]), Training(CASES[name])
    for number in range(3):
        mine.step(number), plain.step(number)
    before = mine.ddp.reducer
    switch = BucketSwitch(mine.ddp)
    fresh = partitions(mine.ddp, chance)
    # The order in which more than two numbers are added rounds them, but no integers and their quarters.
    is_exact = world_size == 2 or (world_size == 4 and name == "integers")
    others: list[TriedBuckets] = []
    for number in range(3, 3 + steps):
        if number % 5 == 0:
            lane = switch.original
        elif len(others) < 2:
            lane = switch.make(next(fresh))
            others.append(lane)
        else:
            lane = chance.choice([switch.original, *others])
        switch.use(lane)
        if len(others) == 2 and chance.random() < 0.3:
            idle = next(one for one in others if one is not lane)
            others.remove(idle)
            switch.drop(idle)
        by_hand = reduced_by_hand(mine, number, lane.buckets) if name in BY_HAND else None
        seen, expected = mine.step(number), plain.step(number)
        assert by_hand is None or same(seen, by_hand), number
        assert not is_exact or (same(seen, expected) and same(mine.state(), plain.state())), number
    switch.use(switch.original)
    for lane in others:
        switch.drop(lane)
    after = mine.step(0)
    assert mine.ddp.reducer is before
    alike([one.tolist() for one in mine.ddp.parameters()])
    alike([None if one is None else one.tolist() for one in after])
    if name == "plain":  # a switched DDP is pickled as ever
        assert len(list(pickle.loads(pickle.dumps(mine.ddp)).parameters())) == 14


def tuned(name: str) -> None:
    """A whole tuning in this mode, with a trial whatever is predicted: it comes to a verdict, the same on all
    ranks, and changes no gradient."""
    mine, plain = Training(CASES[name]), Training(CASES[name])
    loop._is_worth_a_trial = lambda found: True
    tuner = sim.autotune(mine.forward, record_steps=4, verify_steps=12, max_verify_steps=12)
    for number in range(60):
        seen, expected = mine.step(number), plain.step(number)
        assert same(seen, expected), number
        assert same(mine.state(), plain.state()), number
        if tuner.result is not None:
            break
        tuner.step()
    result: Any = tuner.result
    assert result.outcome in ("kept", "reverted"), result
    assert result.ab.rounds == 6
    alike(result.why)


def alike(mine: Any) -> None:
    """All ranks hold the same."""
    each: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(each, mine)
    assert all(one == each[0] for one in each)


def live_reducers() -> int:
    gc.collect()
    return sum(type(one).__name__ == "FixedReducer" for one in gc.get_objects())


def many_swaps(steps: int) -> None:
    """New buckets after every step: none of the old ones stay, nor their memory.

    Any that stayed would hold a copy of the gradients: of a thousand, seven hundred between the first and
    last looks.
    """
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
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            held.append(pages * resource.getpagesize())
    assert live_reducers() == before + 1
    gradients = sum(parameter.nbytes for parameter in training.ddp.parameters())
    assert len(held) <= 3 or max(held[-3:]) - min(held[:3]) < 10 * gradients


def check(folder: Path, world: int, steps: int, *cases: str) -> None:
    words = str(world), str(steps), *cases
    assert_nothing_fails("tests.autotune.test_switch", folder, *words, world_size=world)


def test_every_step_is_that_of_plain_ddp(tmp_path: Path) -> None:
    """And where the model allows it, that of an all-reduce by hand; so it is in a whole tuning in the mode
    whose recording is the most special."""
    quick = [name for name in CASES if name not in COMPILED]
    check(tmp_path, 2, 6, *quick, "tuned: find_unused, accumulated", "swaps")


MANY = {
    "tuned": (1, [f"tuned: {name}" for name in CASES]),
    "switched": (1000 // len(CASES) + 40, [*CASES]),
    "swapped": (1000, ["swaps"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "cases"), MANY.values(), ids=MANY)
def test_a_thousand_times_in_every_mode(steps: int, cases: list[str], tmp_path: Path) -> None:
    check(tmp_path, 2, steps, *cases)


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 4])
def test_every_step_is_an_all_reduce_of_the_buckets_in_use(world: int, tmp_path: Path) -> None:
    """On more than two ranks other buckets round in another order: what counts are the bits of these.

    Gradients that are integers are not rounded: on four ranks they are plain DDP's as well.
    """
    check(tmp_path, world, 40, *BY_HAND, "swaps")


def main(rank: str, folder: str, world: str, steps: str, *names: str) -> None:
    cases: dict[str, Callable[[], None]] = {}
    for name in names:
        mode = name.removeprefix("tuned: ")
        act = partial(random_switches, name, int(steps)) if mode == name else partial(tuned, mode)
        cases[name] = partial(many_swaps, int(steps)) if name == "swaps" else act
    check_each(int(rank), Path(folder), cases, int(world))


if __name__ == "__main__":
    main(*sys.argv[1:])
