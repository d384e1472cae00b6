"""Who came last, and how long the others waited: what all micro-batches of a job add up to."""

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled


@compiled
def tally(came: Ints, last: Ints, waited_by_rank: Ints, last_by_rank: Floats) -> tuple[Ints, Ints, Ints]:
    """Add one micro-batch to the ranks' sums, in place.

    Args:
        came: when each rank came to each collective [ranks, collectives]; ``last``: the latest of them.
        waited_by_rank: ns that each rank has waited.
        last_by_rank: how often it came last; where several did, each has its part of it, and where all came
            together nobody has.

    Returns:
        By collective: ns that all ranks waited, ns that the first to come waited, and 1 where any rank did,
        else 0.
    """
    ranks, count = came.shape
    waited, longest, latest = np.zeros((3, count), np.int64)
    for rank in range(ranks):
        own = 0
        for number in range(count):
            wait = last[number] - came[rank, number]
            own += wait
            waited[number] += wait
            longest[number] = max(longest[number], wait)
            latest[number] += wait == 0
        waited_by_rank[rank] += own
    any_waited = np.zeros(count, np.int64)
    for number in range(count):
        if latest[number] < ranks:
            any_waited[number] = 1
    for rank in range(ranks):
        for number in range(count):
            if came[rank, number] == last[number] and any_waited[number]:
                last_by_rank[rank] += 1 / latest[number]
    return waited, longest, any_waited
