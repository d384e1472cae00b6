"""Every cap of a workload on one machine: their steps, the best, and which are as good."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Ints
from sim.metrics.step import step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.tuner.reach.cap_layouts import Intervals, Walk, find_intervals, make_walk, round_cap_mb
from sim.tuner.reach.cap_search import Search
from sim.tuner.reach.layout_scores import score_layouts
from sim.tuner.search.as_searched import Searched
from sim.tuner.search.score import Scorer
from sim.tuner.spread.gain import NOTHING
from sim.units import MIB, cap_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapSteps:
    """The caps of a workload that are tried, as intervals that cut alike: all, or the given ones alone."""

    workload: Workload
    walk: Walk
    intervals: Intervals
    are_given: bool

    def cap_mb(self, at: int) -> float:
        """The cap (MiB) that stands for interval ``at``: a round one of it, or the given one."""
        low, high = int(self.intervals.low_bytes[at]), int(self.intervals.high_bytes[at])
        return low / MIB if self.are_given else round_cap_mb(low, high)

    def at(self, cap_mb: float) -> int:
        """The interval of a cap that ``cap_mb`` gave."""
        return int(np.searchsorted(self.intervals.low_bytes, cap_bytes(cap_mb), side="right")) - 1


def caps_of(workload: Workload, caps_mb: Sequence[float] | None) -> CapSteps:
    """All caps that cut ``workload`` differently, or these (MiB). Raises ``InputError`` for a cap below 0."""
    walk = make_walk(workload)
    if caps_mb is None:
        return CapSteps(workload=workload, walk=walk, intervals=find_intervals(walk), are_given=False)
    sizes = np.array(sorted({cap_bytes(cap) for cap in caps_mb}), dtype=np.int64)
    intervals = Intervals(low_bytes=sizes, high_bytes=sizes, complete=False)
    return CapSteps(workload=workload, walk=walk, intervals=intervals, are_given=True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """The caps on one machine: the step of each in ns, one entry an interval, and the best's place.

    Of equal steps the best is that of the fewest buckets. ``default``: the timeline of DDP's own caps;
    ``rest_ns``: the step without ``sync_end``.
    """

    caps: CapSteps
    asked: Searched
    steps_ns: Ints
    best: int
    default: Timeline
    rest_ns: int

    @property
    def scorer(self) -> Scorer:
        """What scores buckets."""
        return self.asked.scorer

    @property
    def best_mb(self) -> float:
        """The best cap, in MiB."""
        return self.caps.cap_mb(self.best)

    @property
    def best_ns(self) -> int:
        """Its step."""
        return int(self.steps_ns[self.best])

    @property
    def default_regret_ns(self) -> int:
        """What DDP's default loses against the best cap; below 0 where its first bucket helps."""
        return step_ns(self.default) - self.best_ns

    def regret_ns(self, cap_mb: float) -> int:
        """What a cap loses against the best one."""
        return int(self.steps_ns[self.caps.at(cap_mb)]) - self.best_ns

    def is_alike(self, regret_ns: int) -> bool:
        """Whether so much is nothing: 0.1 % of the best step at most."""
        return regret_ns <= NOTHING * self.best_ns

    @property
    def all_are_alike(self) -> bool:
        """Whether no cap is worse than the best."""
        return self.is_alike(int(self.steps_ns.max()) - self.best_ns)

    @property
    def _good(self) -> NDArray[np.bool_]:
        return self.steps_ns <= self.best_ns * (1 + NOTHING)

    @property
    def stretch_count(self) -> int:
        """How many unbroken stretches of caps are as good as the best, its own among them."""
        good = self._good
        return int(good[0]) + int((good[1:] & ~good[:-1]).sum())

    def stretch_mb(self) -> tuple[float, float | None]:
        """First and last cap (MiB) of the unbroken stretch around the best that is as good; None: no end."""
        good = self._good
        first = last = self.best
        while first > 0 and good[first - 1]:
            first -= 1
        while last + 1 < len(good) and good[last + 1]:
            last += 1
        high = int(self.caps.intervals.high_bytes[last])
        return int(self.caps.intervals.low_bytes[first]) / MIB, None if high == NO_LIMIT else high / MIB

    def assignment(self, cap_mb: float) -> Assignment:
        """DDP's buckets under a cap."""
        return assign(self.caps.workload, bucket_cap_mb=cap_mb)

    def timeline(self, assignment: Assignment) -> Timeline:
        """The step under an assignment, by the analytic engine."""
        return self.asked.simulate(self.asked.as_used(assignment), "analytic")


def tune_caps(caps: CapSteps, hardware: Hardware) -> Tuned:
    """Score all of ``caps`` on ``hardware``.

    Raises:
        InputError, NotModelledError: DDP does not train this workload as it is.
    """
    asked = Searched(caps.workload, hardware)
    scorer = asked.scorer
    lows = caps.intervals.low_bytes
    scores = score_layouts(scorer.problem, caps.walk, lows, lows)
    search = Search(scorer=scorer, walk=caps.walk)
    best = search.best_scored(lows, lows, scores)
    bare = assign(caps.workload)
    default = asked.simulate(bare, "analytic")
    rest_ns = asked.rest_ns(step_ns(default), bare)
    steps = asked.times * scores.sync_end_ns + rest_ns
    at = int(np.searchsorted(lows, best.later_bytes))
    steps[at] = asked.times * best.sync_end_ns + rest_ns  # to the ns
    return Tuned(caps=caps, asked=asked, steps_ns=steps, best=at, default=default, rest_ns=rest_ns)
