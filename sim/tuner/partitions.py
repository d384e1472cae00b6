"""Partitions that are contiguous in ready order within each dtype and device: the tuner's search space."""

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise

from sim.nouns.workload import Workload

Buckets = tuple[tuple[int, ...], ...]


def runs(workload: Workload) -> list[list[int]]:
    """Gradient indices in ready order, one run per dtype and device; a sparse gradient is a run alone."""
    by_key: dict[object, list[int]] = {}
    for index in workload.order():
        gradient = workload.gradients[index]
        key = ("sparse", index) if gradient.sparse else gradient.key
        by_key.setdefault(key, []).append(index)
    return list(by_key.values())


def cut_places(workload: Workload) -> list[tuple[int, int]]:
    """Every place at which a run can be cut: (run, number of gradients before the cut)."""
    return [(number, place) for number, run in enumerate(runs(workload)) for place in range(1, len(run))]


def cut(workload: Workload, cuts: Iterable[tuple[int, int]]) -> Buckets:
    """Buckets made by cutting the runs at ``cuts``, ordered by when their last gradient is ready."""
    places: dict[int, list[int]] = {}
    for number, place in cuts:
        places.setdefault(number, []).append(place)
    position = {index: at for at, index in enumerate(workload.order())}
    buckets = [
        tuple(run[start:stop])
        for number, run in enumerate(runs(workload))
        for start, stop in pairwise([0, *sorted(places.get(number, [])), len(run)])
    ]
    return tuple(sorted(buckets, key=lambda bucket: position[bucket[-1]]))


def cuts_of(workload: Workload, buckets: Sequence[Sequence[int]]) -> frozenset[tuple[int, int]] | None:
    """The cuts that make these buckets; None where they are not contiguous within their runs."""
    bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket}
    cuts = set()
    for number, run in enumerate(runs(workload)):
        for place, (before, after) in enumerate(pairwise(run), start=1):
            if bucket_of[before] != bucket_of[after]:
                cuts.add((number, place))
    made = {frozenset(bucket) for bucket in cut(workload, cuts)}
    return frozenset(cuts) if made == {frozenset(bucket) for bucket in buckets} else None


def every_partition(workload: Workload) -> Iterable[frozenset[tuple[int, int]]]:
    """All sets of cuts: 2 to the number of places."""
    places = cut_places(workload)
    for count in range(len(places) + 1):
        for chosen in combinations(places, count):
            yield frozenset(chosen)
