"""The cut: which tensors share a bucket (A1). The one place of the rule and of its inverse.

``ddp_assignment`` calls it on lists for a step's buckets, ``ddp`` for those of buffers, and
``tuner.caps`` compiles it and tries every cap on arrays. So ``cut`` may call nothing that is not
compiled. Another rule of when a bucket closes changes the comparison in ``cut``, ``bounds`` on both sides of
it, and the limits by which ``tuner.recommend`` writes down what it found.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = Sequence[int] | NDArray[np.int64]

NO_LIMIT = 1 << 62  # bytes: above every sum
ALONE = -1  # the key of a sparse gradient
PER_KEY = 3  # numbers that a walk keeps of each key


def cut(sizes: Row, keys: Row, limits: Row, bucket_of: Any, bounds: Any, emitted: Any, opened: Any) -> int:
    """One walk under the limits (A1.1 to A1.5); returns the number of buckets.

    All rows are lists or int64 arrays; the last four are written, whatever they hold before.

    Args:
        sizes: bytes of each tensor, in the sequence walked.
        keys: number of each tensor's dtype and device, in the order in which these are first seen; ``ALONE``
            of a sparse gradient, which is a bucket for itself (A1.2).
        limits: bytes; each key starts at the first, the last repeats for ever (A1.3, A1.4).
        bucket_of: out, for each tensor the place of its bucket in the order of emission.
        bounds: out, twice as many as limits: of each limit the lowest and the highest value that give this
            same layout: one byte more than the largest sum left open under it, and the least sum closed.
        emitted: room for as many as tensors.
        opened: room for ``PER_KEY`` for each key.
    """
    made, count, last = 0, 0, len(limits) - 1
    for place in range(len(limits)):
        bounds[2 * place], bounds[2 * place + 1] = 0, NO_LIMIT
    for key in range(0, len(opened), PER_KEY):
        opened[key], opened[key + 1], opened[key + 2] = -1, 0, 0  # open bucket, its bytes, place in limits
    for position in range(len(sizes)):
        if keys[position] == ALONE:
            bucket_of[position], emitted[made] = made, count
            made += 1
            count += 1
            continue
        key = PER_KEY * keys[position]
        held, place = opened[key + 1], opened[key + 2]
        if opened[key] < 0:
            opened[key] = made
            made += 1
        bucket_of[position] = opened[key]
        size = held + sizes[position]
        if size < limits[place]:
            bounds[2 * place] = max(bounds[2 * place], size + 1)
            opened[key + 1] = size
            continue
        bounds[2 * place + 1] = min(bounds[2 * place + 1], size)
        emitted[opened[key]] = count
        count += 1
        opened[key], opened[key + 1], opened[key + 2] = -1, 0, min(place + 1, last)
    for key in range(len(opened) - PER_KEY, -1, -PER_KEY):
        if opened[key] >= 0:
            emitted[opened[key]] = count
            count += 1
    for position in range(len(sizes)):
        bucket_of[position] = emitted[bucket_of[position]]
    return count


def number_keys(keys: Iterable[tuple[Hashable, bool]]) -> tuple[list[int], int]:
    """(dtype and device, whether sparse) of each tensor as ``cut`` takes it, and how many keys there are."""
    numbers: dict[Hashable, int] = {}
    numbered = [ALONE if sparse else numbers.setdefault(key, len(numbers)) for key, sparse in keys]
    return numbered, len(numbers)
