"""Our bucket assignment against torch's own C++ (A1), on random tensors."""

import random
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from sim.systems.ddp_assignment import compute_bucket_assignment_by_size

DTYPES = (torch.float32, torch.float16, torch.float64, torch.bfloat16, torch.int8)
DEVICES = ("cpu", "meta")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One call: numels and keys in the sequence walked; ``sparse`` by index; ``order`` or ()."""

    numels: tuple[int, ...]
    keys: tuple[tuple[torch.dtype, str], ...]
    limits: tuple[int, ...]
    sparse: tuple[bool, ...]
    order: tuple[int, ...]

    @property
    def order_is_defined(self) -> bool:
        """A1.5, A1.6: with an order given, leftovers of three or more keys come in hash-map order."""
        return not self.order or len(set(self.keys)) <= 2


def torchs(problem: Problem) -> list[list[int]]:
    tensors = [
        torch.empty(numel, dtype=dtype, device=device)
        for numel, (dtype, device) in zip(problem.numels, problem.keys, strict=True)
    ]
    buckets, _ = dist._compute_bucket_assignment_by_size(
        tensors, list(problem.limits), list(problem.sparse), list(problem.order)
    )
    return buckets


def ours(problem: Problem) -> list[list[int]]:
    sizes = [numel * key[0].itemsize for numel, key in zip(problem.numels, problem.keys, strict=True)]
    given = problem.keys, problem.limits, problem.sparse, problem.order
    return compute_bucket_assignment_by_size(sizes, *given)


def check(problem: Problem) -> None:
    """The same set of buckets always; the same order wherever A1.5 defines one."""
    mine, theirs = ours(problem), torchs(problem)
    if problem.order_is_defined:
        assert mine == theirs, problem
    else:
        assert sorted(mine) == sorted(theirs), problem
        # Only leftovers are unordered: what was closed by a limit stands first, in the order of closing.
        leftovers = len({problem.keys[problem.order.index(bucket[-1])] for bucket in mine})
        closed = max(0, len(mine) - leftovers)
        assert mine[:closed] == theirs[:closed], problem


def drawn(draw: random.Random) -> Problem:
    """Up to 40 tensors, of which some may be empty or sparse, under up to 6 limits."""
    count = draw.randint(1, 40)
    keys = [(dtype, device) for dtype in DTYPES for device in DEVICES]
    palette = draw.sample(keys, draw.choice([1, 1, 2, 2, 3, 6]))
    largest = draw.choice([1, 50, 2000])
    least = draw.choice([(draw.random() < 0.3) * -largest, 0])  # of which half are empty
    may_be_sparse, has_order = draw.random() < 0.5, draw.random() < 0.6
    limits = [0, 1, *(draw.randint(0, most) for most in (300, 300, 32 * largest, 32 * largest))]
    return Problem(
        numels=tuple(max(0, draw.randint(least, largest)) for _ in range(count)),
        keys=tuple(draw.choice(palette) for _ in range(count)),
        limits=tuple(draw.choice(limits) for _ in range(draw.randint(1, 6))),
        sparse=tuple(draw.random() < 0.15 for _ in range(count)) if may_be_sparse else (),
        order=tuple(draw.sample(range(count), count)) if has_order else (),
    )


@pytest.mark.parametrize("seed", range(4))
def test_a1_buckets_are_torchs_on_thousands_of_layers(seed: int) -> None:
    """A1.1-A1.6 on 4 x 1,200 random cases."""
    generator = random.Random(seed)
    for _ in range(1200):
        check(drawn(generator))
