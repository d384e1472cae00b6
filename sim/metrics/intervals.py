"""Sets of instants as half-open intervals in ns, and the intervals (95 %) that a measured median lies in."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

Interval = tuple[int, int]
_BOOTSTRAPS, _LEVEL = 2000, 0.95


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint, ascending intervals that cover the same instants; empty ones are dropped."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    """Total length of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def intersection_length(left: Iterable[Interval], right: Iterable[Interval]) -> int:
    """Length of the time in which both of two sets of intervals are active."""
    one, two = union(left), union(right)
    return length(one) + length(two) - length(union(one + two))


def step_of_ranks(lasted_ns: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """How long steps last, of ns by rank and step: the mean over ranks, which wait for each other, so that a
    step is short for one that begins late."""
    return np.asarray(np.rint(np.asarray(lasted_ns, np.int64).mean(axis=0)), np.int64)


def median_interval(values: Sequence[int]) -> tuple[int, int]:
    """95 % bootstrap confidence interval of the median, in the unit of ``values``."""
    return _between(_LEVEL, np.random.default_rng(0).choice(np.asarray(values), (_BOOTSTRAPS, len(values))))


def difference_interval(ones: Sequence[int], others: Sequence[int], level: float = _LEVEL) -> tuple[int, int]:
    """Paired bootstrap confidence interval (95 %) of median(ones) - median(others), in their unit.

    Value ``k`` of both belongs to the same round: rounds are drawn, each with both its values, so that what
    disturbs a whole round cancels. Only the rounds that both have are drawn from.
    """
    rounds = min(len(ones), len(others))
    picks = np.random.default_rng(0).integers(rounds, size=(_BOOTSTRAPS, rounds))
    return _between(level, np.asarray(ones[:rounds])[picks], np.asarray(others[:rounds])[picks])


def _between(level: float, *drawn: npt.NDArray[np.int64]) -> tuple[int, int]:
    """Of the medians of rows, less those of a second table; a sorted row tells its median soonest."""
    last = drawn[0].shape[1] - 1
    ends = (np.sort(one, axis=1)[:, [last // 2, (last + 1) // 2]] for one in drawn)
    middle, *other = (both.mean(axis=1) for both in ends)
    low, high = np.quantile(middle - sum(other), ((1 - level) / 2, (1 + level) / 2))
    return round(float(low)), round(float(high))
