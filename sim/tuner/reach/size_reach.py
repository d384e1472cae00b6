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


class Interval(NamedTuple):
    """The sizes that make the same step, in elements: the lowest and the highest of them."""

    low: int
    high: int


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
    while intervals[-1].high < NO_LIMIT and len(intervals) <= most:
        intervals.append(interval_of(intervals[-1].high + 1))
    if len(intervals) <= most:
        return intervals, True
    sizes = [gradient.elements for gradient in workload.gradients if gradient.elements]
    grid = {default, *np.geomspace(min(sizes), sum(sizes), most - 1).astype(np.int64).tolist()}
    return sorted({interval_of(size) for size in grid}), False


def try_interval(
    workload: Workload,
    hardware: Hardware,
    policy: str,
    setting: str,
    interval: Interval,
    default: int,
    **fixed: Any,
) -> tuple[int, Assignment]:
    """The whole step with a ``setting`` of the interval, ``default`` or the roundest, beside ``fixed``."""
    is_default = interval.low <= default <= interval.high
    size = default if is_default else int(find_roundest(*interval, 1))
    options: dict[str, Any] = {setting: size, **fixed}
    assignment = assign(workload, policy, **options)
    return simulated_step_ns(workload, hardware, assignment), assignment


def tried_words(count: int, complete: bool) -> str:
    """How a best size was found among ``count`` intervals."""
    return f"all {count} sizes that differ" if complete else f"{count} sizes on a logarithmic grid"
