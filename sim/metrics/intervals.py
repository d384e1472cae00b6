"""Sets of instants as half-open intervals in ns."""

from collections.abc import Iterable

Interval = tuple[int, int]


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
    total = i = j = 0
    while i < len(one) and j < len(two):
        total += max(0, min(one[i][1], two[j][1]) - max(one[i][0], two[j][0]))
        if one[i][1] < two[j][1]:
            i += 1
        else:
            j += 1
    return total
