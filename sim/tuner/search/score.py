"""``sync_end_ns`` of many partitions of one workload, fast."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from sim.clock import analytic
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.tuner.search import kernels
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem


class Scorer:
    """Scores partitions for a search, remembering each.

    A compiled step says when gradients are available. Where rounding could go either way in it, which takes
    work that is stretched, the analytic engine decides.
    """

    def __init__(self, workload: Workload, hardware: Hardware, asked: Workload | None = None) -> None:
        self.problem = Problem(workload, hardware, asked)
        self._rough: dict[Buckets, tuple[int, bool]] = {}
        self._known: dict[Buckets, int] = {}

    @cached_property
    def for_search(self) -> "Scorer":
        """Scores what a search tries: without the rule for small messages (``shared_connection``).

        With it a search cuts dozens of tiny buckets off, for half a percent of a step, less than the rule is
        known to. What is found, and all that it is compared with, is scored with the rule.
        """
        problem = self.problem
        if not problem.hardware.shared_connection:
            return self
        return Scorer(problem.workload, replace(problem.hardware, shared_connection=False), problem.asked)

    def sync_end_ns(self, buckets: Sequence[Sequence[int]]) -> int:
        """When all gradients are available under these buckets, to the ns, from the start of backward."""
        key = tuple(map(tuple, buckets))
        end = self._known.get(key)
        if end is None:
            rough, sure = self._play(key)
            end = self._known[key] = rough if sure else self._engine(key)
        return end

    def rough_ns(self, buckets: Sequence[Sequence[int]]) -> int:
        """``sync_end_ns`` for a search: within a few ns of it."""
        return self._play(tuple(map(tuple, buckets)))[0]

    def _play(self, buckets: Buckets) -> tuple[int, bool]:
        played = self._rough.get(buckets)
        if played is None:
            problem = self.problem
            stops, wires, copied = problem.stops(buckets)
            played = self._rough[buckets] = kernels.play_surely(
                problem.machine,
                problem.grains,
                problem.work,
                problem.copy_in,
                problem.tail,
                stops,
                kernels.services(problem.curve_bytes, problem.curve_ns, wires),
                problem.small(wires),
                problem.copies_back(copied),
            )
        return played

    def _engine(self, buckets: Buckets) -> int:
        assignment = Assignment(bucket_indices=buckets)
        problem = self.problem
        return analytic.play(write(problem.workload, problem.hardware, assignment)[-1]).sync_end_ns
