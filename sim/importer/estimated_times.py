"""Ready times where only an order, sizes and the length of backward are known."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Literal, get_args

from sim.nouns.workload import Workload
from sim.units import divide_half_even

By = Literal["position", "bytes"]


def split_backward(sizes: Sequence[int], backward_ns: int, by: By) -> tuple[int, ...]:
    """Ready times in ns of gradients of ``sizes`` bytes in ready order; the last is ready as backward ends.

    By position each gradient takes the same time, by bytes a time in proportion to its size (the same time
    where all are empty).
    """
    weights = list(sizes) if by == "bytes" and sum(sizes) > 0 else [1] * len(sizes)
    total = sum(weights)
    return tuple(divide_half_even(backward_ns * done, total) for done in accumulate(weights))


def split_band(sizes: Sequence[int], backward_ns: int) -> tuple[float, float]:
    """(low, high) factors on the times of ``split_backward``: how far its two splits are from each other.

    Neither split knows what the operators cost. The factor is that between the mean ready times of a byte
    under the two, taken in both directions.
    """
    means = [sum(map(operator.mul, sizes, split_backward(sizes, backward_ns, by))) for by in get_args(By)]
    if min(means) <= 0:
        return (0.0, 2.0)
    factor = max(means) / min(means)
    return (round(1 / factor, 3), round(factor, 3))


def bounds_band(sizes: Sequence[int], times: Sequence[int], known: int) -> tuple[float, float]:
    """(low, high) factors on ``times`` of which only the first ``known`` and the last are known.

    The others can be anywhere between: at the earliest with the last known before them (or at 0), at the
    latest with the last. The factors are those on the mean ready time of a byte.
    """

    def mean(unknown_ns: int) -> int:
        spread = [*times[:known], *[unknown_ns] * (len(times) - known - 1), times[-1]]
        return sum(size * time for size, time in zip(sizes, spread, strict=True))

    own = sum(size * time for size, time in zip(sizes, times, strict=True))
    if known >= len(times) or own == 0:
        return (1.0, 1.0)
    return (round(mean(times[known - 1] if known else 0) / own, 3), round(mean(times[-1]) / own, 3))


def stretch_backward(workload: Workload, backward_ns: int) -> Workload:
    """``workload`` with its ready times stretched to a backward of ``backward_ns``; its samples are left out.

    Its own ``backward_ns`` must be above 0.
    """
    own = workload.backward_ns
    gradients = tuple(
        replace(g, ready_ns=None if g.ready_ns is None else divide_half_even(g.ready_ns * backward_ns, own))
        for g in workload.gradients
    )
    return replace(workload, gradients=gradients, backward_ns=backward_ns, samples=())
