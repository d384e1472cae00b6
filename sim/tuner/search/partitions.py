"""Partitions that are contiguous in ready order within each dtype and device: the tuner's search space."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sim.clock.arrays import Ints
from sim.nouns.workload import Gradient

Buckets = tuple[tuple[int, ...], ...]


def run_keys(ordered: Sequence[Gradient]) -> list[int]:
    """For each gradient in ready order the number of its run: one per dtype and device; a sparse gradient is
    a run alone. Runs are numbered by their first gradient."""
    keys = [("sparse", gradient.index) if gradient.sparse else gradient.key for gradient in ordered]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys] if len(numbers) > 1 else [0] * len(keys)


def gather(indices: Ints, bucket_of: Ints) -> Buckets:
    """The buckets, from the number of each gradient's bucket; within one, gradients stay in order."""
    members = indices[np.argsort(bucket_of, kind="stable")].tolist()
    stops = np.cumsum(np.bincount(bucket_of)).tolist()
    return tuple(tuple(members[start:stop]) for start, stop in pairwise([0, *stops]))
