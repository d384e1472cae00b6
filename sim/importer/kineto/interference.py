"""How much slower computation runs beside a collective, told by a trace of several steps alone.

Steps repeat the same kernels in the same order, but not each time beside a collective: the same kernel of
another step, alone, is what it would have taken. Nothing is fitted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.metrics.intervals import Interval
from sim.units import median_ns

# Clocks of a microsecond blur shorter kernels.
SHORTEST_NS = 5_000
FEWEST_KERNELS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """Time of kernels beside a collective over what the same kernels took alone, and quartiles over kernels.

    ``ratio`` is what was seen. ``kernels``: how many places in the step were seen both ways.
    """

    ratio: float
    kernels: int
    quartiles: tuple[float, float, float]

    @property
    def slowdown(self) -> float:
        """The factor by which computation takes longer beside a collective, at least 1."""
        return max(1.0, self.ratio)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of the compute lane."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """How long it ran."""
        return self.end_ns - self.start_ns


def find_interference(
    steps: Sequence[Sequence[Kernel]], communication: Sequence[Interval]
) -> Interference | None:
    """The slow-down of kernels that lie within a collective in one step and clear of all in another.

    Args:
        steps: the lane's kernels of each step, in order.
        communication: when any collective was active, disjoint and ascending.

    Returns:
        None where fewer than ``FEWEST_KERNELS`` kernels were seen both ways.
    """
    beside_ns = alone_ns = 0
    ratios: list[float] = []
    for same in zip(*(_placed(step, communication) for step in steps), strict=False):
        if len({kernel.name for kernel, _ in same}) > 1:
            break  # from here on the steps differ
        alone = [kernel.duration_ns for kernel, share in same if share == 0.0]
        beside = [kernel.duration_ns for kernel, share in same if share == 1.0]
        if not alone or not beside or median_ns(alone) < SHORTEST_NS:
            continue
        beside_ns += sum(beside)
        alone_ns += median_ns(alone) * len(beside)
        ratios.append(median_ns(beside) / median_ns(alone))
    if len(ratios) < FEWEST_KERNELS:
        return None
    ratios.sort()
    count = len(ratios)
    return Interference(
        ratio=beside_ns / alone_ns,
        kernels=count,
        quartiles=(ratios[count // 4], ratios[count // 2], ratios[(3 * count) // 4]),
    )


def _placed(step: Sequence[Kernel], communication: Sequence[Interval]) -> list[tuple[Kernel, float]]:
    """Each kernel with 1.0 where it lies within a collective, 0.0 where clear of all, 0.5 in between."""
    placed, at = [], 0
    for kernel in step:
        while at < len(communication) and communication[at][1] <= kernel.start_ns:
            at += 1
        share = 0.0
        if at < len(communication) and communication[at][0] < kernel.end_ns:
            begin, end = communication[at]
            share = 1.0 if begin <= kernel.start_ns and kernel.end_ns <= end else 0.5
        placed.append((kernel, share))
    return placed
