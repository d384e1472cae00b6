"""Partitions that are contiguous in ready order within each dtype and device: the tuner's search space."""

from sim.nouns.workload import Workload

Buckets = tuple[tuple[int, ...], ...]


def run_keys(workload: Workload) -> list[int]:
    """For each gradient in ready order the number of its run: one per dtype and device; a sparse gradient is
    a run alone. Runs are numbered by their first gradient."""
    numbers: dict[object, int] = {}
    keys = []
    for index in workload.order():
        gradient = workload.gradients[index]
        key = ("sparse", index) if gradient.sparse else gradient.key
        keys.append(numbers.setdefault(key, len(numbers)))
    return keys
