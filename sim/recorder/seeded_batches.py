"""What the factories of models share: checked sizes, and weights and batches that are always alike."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sim.errors import InputError

Batch = tuple[Tensor, Tensor]

MASKED_FRACTION = 0.15  # of BERT's tokens
IGNORED = -100  # cross_entropy's label for "no loss here"


@contextmanager
def seeded() -> Iterator[None]:
    """The same weights and batches each time; the caller's random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def check_sizes(**sizes: int) -> None:
    """Raise ``InputError`` unless all are integers >= 1 and ``heads`` divides ``width``."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"{name}: {value!r} is not legal; give an integer >= 1")
    if "heads" in sizes and sizes["width"] % sizes["heads"]:
        raise InputError(f"heads: {sizes['heads']} is not legal; it must divide width, {sizes['width']}")
