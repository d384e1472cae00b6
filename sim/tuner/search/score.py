"""``sync_end_ns`` of many partitions of one workload, fast."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.search import kernels
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem


class Scorer:
    """Scores partitions for a search, remembering each."""

    def __init__(self, workload: Workload, hardware: Hardware, asked: Workload | None = None) -> None:
        self.problem = Problem(workload, hardware, asked)
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
        """When all gradients are available under these buckets, in ns from the start of backward."""
        key = tuple(map(tuple, buckets))
        end = self._known.get(key)
        if end is None:
            problem = self.problem
            stops, wires, back = problem.stops(key)
            end = self._known[key] = kernels.play_step(
                problem.machine,
                problem.work,
                problem.copy_in,
                problem.tail,
                stops,
                kernels.services(problem.curve_bytes, problem.curve_ns, wires),
                problem.small(wires),
                back,
            )
        return end
