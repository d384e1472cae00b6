"""Every cap of a workload on one machine: their steps, the best, and which are as good."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.clock.arrays import Ints
from sim.metrics.step import step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.tuner.caps import CapCurve, cap_curve
from sim.tuner.gain import NOTHING
from sim.tuner.problem import Problem
from sim.units import MIB, cap_bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """The caps on one machine (MiB; None: all that cut differently), and the step of each in ns.

    Of equal steps the best is that of the fewest buckets. ``default``: the timeline of DDP's own caps;
    ``rest_ns``: the step without ``sync_end``.
    """

    problem: Problem
    caps_mb: Sequence[float] | None
    curve: CapCurve
    steps_ns: Ints
    default: Timeline
    rest_ns: int

    @property
    def best_mb(self) -> float:
        """The best cap, in MiB: a round one of its interval, or the given one."""
        at = self.curve.best
        return self.curve.cap_mb(at) if self.caps_mb is None else int(self.curve.low_bytes[at]) / MIB

    @property
    def best_ns(self) -> int:
        """Its step."""
        return int(self.steps_ns[self.curve.best])

    @property
    def default_regret_ns(self) -> int:
        """What DDP's default loses against the best cap; below 0 where its first bucket helps."""
        return step_ns(self.default) - self.best_ns

    def regret_ns(self, cap_mb: float) -> int:
        """What a cap loses against the best one."""
        at = int(np.searchsorted(self.curve.low_bytes, cap_bytes(cap_mb), side="right")) - 1
        return int(self.steps_ns[at]) - self.best_ns

    def is_alike(self, regret_ns: int) -> bool:
        """Whether so much is nothing: 0.1 % of the best step at most."""
        return regret_ns <= NOTHING * self.best_ns

    @property
    def all_are_alike(self) -> bool:
        """Whether no cap is worse than the best."""
        return self.is_alike(int(self.steps_ns.max()) - self.best_ns)

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Unbroken stretches of caps, by first and last interval, that are as good as the best."""
        return self.curve.stretches(self.steps_ns <= self.best_ns * (1 + NOTHING))

    def stretch_mb(self) -> tuple[float, float | None]:
        """First and last cap (MiB) of the stretch around the best; None: no end."""
        first, last = next(one for one in self.stretches if one[0] <= self.curve.best <= one[1])
        high = int(self.curve.high_bytes[last])
        return int(self.curve.low_bytes[first]) / MIB, None if high == NO_LIMIT else high / MIB

    def assignment(self, cap_mb: float) -> Assignment:
        """DDP's buckets under a cap."""
        return assign(self.problem.job, bucket_cap_mb=cap_mb)

    def timeline(self, assignment: Assignment) -> Timeline:
        """The step under an assignment, by the analytic engine."""
        return self.problem.simulate(self.problem.as_used(assignment), "analytic")


def tune_caps(workload: Workload, hardware: Hardware, caps_mb: Sequence[float] | None = None) -> Tuned:
    """All caps that cut ``workload`` differently, or these (MiB), on ``hardware``.

    Raises:
        InputError, NotModelledError: DDP does not train this workload as it is, or a cap below 0.
    """
    problem = Problem(workload, hardware)
    given = None if caps_mb is None else sorted({cap_bytes(cap) for cap in caps_mb})
    curve = cap_curve(problem, given)
    bare = assign(workload)
    default = problem.simulate(bare, "analytic")
    rest_ns = problem.rest_ns(step_ns(default), bare)
    return Tuned(
        problem=problem,
        caps_mb=caps_mb,
        curve=curve,
        steps_ns=problem.times * curve.sync_end_ns + rest_ns,
        default=default,
        rest_ns=rest_ns,
    )
