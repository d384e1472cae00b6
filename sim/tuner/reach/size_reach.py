"""What a setting that is a size reaches: the sizes at which a step changes, and the step of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.tuner.progress import tell
from sim.tuner.reach.cap_layouts import find_roundest

_WORK = 20_000  # gradients simulated, in all that is tried of one family
_FEWEST = 3  # tries, however many gradients there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The best that one family reaches; ``complete``: none of it was left out; ``how`` says so in words."""

    assignment: Assignment
    complete: bool
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeReach(Reach):
    """The best of a family whose members were simulated: with its whole step."""

    step_ns: int


Interval = tuple[int, int]  # the lowest and the highest of the sizes that make one step, in elements


class TriedSize(NamedTuple):
    """The whole step of an interval, in ns, and the assignment of one size in it."""

    step_ns: int
    interval: Interval
    assignment: Assignment


def most_tries(workload: Workload) -> int:
    """How many settings of one family are tried: the fewer, the more gradients there are."""
    return max(_FEWEST, _WORK // len(workload.gradients))


def find_intervals(
    workload: Workload, interval_of: Callable[[int], Interval], least: int, default: int, most: int
) -> tuple[list[Interval], bool]:
    """Every interval of sizes from ``least`` on, ascending, and whether these are all.

    Where there are more than ``most``, at most so many: those of ``default`` and of sizes on a logarithmic
    grid from the smallest gradient to all elements.
    """
    intervals = [interval_of(least)]
    while intervals[-1][1] < NO_LIMIT and len(intervals) <= most:
        intervals.append(interval_of(intervals[-1][1] + 1))
    if len(intervals) <= most:
        return intervals, True
    sizes = [gradient.elements for gradient in workload.gradients if gradient.elements]
    grid = {default, *np.geomspace(min(sizes), sum(sizes), most - 1).astype(np.int64).tolist()}
    return sorted({interval_of(size) for size in grid}), False


def try_sizes(
    workload: Workload,
    hardware: Hardware,
    policy: str,
    setting: str,
    intervals: list[Interval],
    default: int,
    **fixed: Any,
) -> list[TriedSize]:
    """Simulate a size of each interval: ``default`` if it lies in the interval, else the roundest size."""
    tried = []
    for low, high in intervals:
        tell(f"trying bucket sizes of {policy}")
        size = default if low <= default <= high else int(find_roundest(low, high, 1))
        options: dict[str, Any] = {setting: size, **fixed}
        assignment = assign(workload, policy, **options)
        tried.append(TriedSize(simulated_step_ns(workload, hardware, assignment), (low, high), assignment))
    return tried


def best_size(tried: list[TriedSize], *, complete: bool) -> SizeReach:
    """The shortest step of all tried; of equal ones that of the largest size."""
    best = min(tried, key=lambda one: (one.step_ns, -one.interval[0]))
    how = f"all {len(tried)} sizes that differ" if complete else f"{len(tried)} sizes on a logarithmic grid"
    return SizeReach(assignment=best.assignment, step_ns=best.step_ns, complete=complete, how=how)
