"""What copies out of buckets, one after another, add to a step after backward."""

import bisect
from collections.abc import Sequence


def added_by_copies(
    spans: Sequence[tuple[int, int]], collectives: Sequence[int], backward_end: int
) -> tuple[int, int]:
    """Time that copies add, and the end of the last; a copy's wait for its collective is not counted.

    A copy may seem to begin a little before its collective ends: what ended before its middle, it waited for.

    Args:
        spans: start and end of each copy, in order.
        collectives: when each of them ended, sorted.
        backward_end: when the lane was free.
    """
    added, free = 0, backward_end
    for start, end in spans:
        arrived = bisect.bisect_right(collectives, (start + end) // 2)
        since = max(free, min(start, collectives[arrived - 1])) if arrived else free
        added += max(0, end - since)
        free = max(free, end)
    return added, free
