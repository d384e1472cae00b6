"""The best contiguous partition on one FIFO channel, with nothing that stretches or blocks: exact, and fast.

To finish by F with copies back in order, a bucket's all-reduce must end before F minus the copies of it and
of all later buckets: a deadline that depends on the bucket's first gradient. For a given F the earliest end
of each prefix then decides, and the least F for which there is one is found by bisection. Without copies one
pass is enough. On any other machine the same search gives a bound: slow-downs and blocked launches only add,
and several channels together pass no more than one that is as fast as all of them.

Sums are float64: beyond 2**53 ns (104 days) they are off by a few ns.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Floats, Ints
from sim.systems.cut import NO_LIMIT
from sim.tuner.search import earliest, kernels
from sim.tuner.search.bound import lower_bound_ns
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem

# Effects of a machine with which this search and ``labels`` are exact.
KNOWN = frozenset({"launch_cost_ns"})
LATE = 0.5 + 1e-3  # ns allowed past a deadline: the times compared are not rounded, and sums may be off
MOST_STEPS = 150_000_000  # of the lattice search, about a second
MOST_POINTS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search found: buckets in launch order, and the ns before which no partition is synchronised.

    ``is_rounded`` says that ``buckets`` may not be the best to the ns. The copy back of each bucket is
    rounded by itself, so that the buckets found may take longer than ``at_least_ns``, by up to one ns a
    gradient and one more. If the curve falls somewhere and windows were searched, they may take longer still.
    ``free_at_least_ns`` is known without the search.
    """

    buckets: Buckets
    at_least_ns: int
    free_at_least_ns: int
    is_rounded: bool


def covers(problem: Problem) -> bool:
    """Whether what is found is the optimum: one channel, nothing that stretches or blocks, and launches that
    take no longer than the all-reduces they start, so that none waits for another's launch."""
    short = problem.effects.launch_cost_ns <= int(problem.curve_ns.min())
    return short and problem.effects.in_force <= KNOWN


class _Runs:
    """The lattice of a problem, how many gradients of each run are sent: places and running sums, by run."""

    def __init__(self, problem: Problem) -> None:
        runs = [np.flatnonzero(problem.run == number) for number in range(int(problem.run.max()) + 1)]
        self.places = np.concatenate(runs)
        self.starts = np.cumsum([0, *map(len, runs)])
        self.wire = self._sums(problem.wire, runs)
        self.dense = self._sums(problem.dense, runs)
        copied = self._sums(problem.copied, runs).astype(np.float64)
        self.copied: Floats = copied * problem.machine.copy_out_ns_per_byte
        lengths = [len(run) for run in runs]
        self.points = int(np.prod([float(length + 1) for length in lengths]))
        self.steps = self.points * max(lengths) / 2
        self.count = len(runs)

    def fit_lattice(self, copies: bool) -> bool:
        """Whether every lattice point can be visited, some 30 times where there are copies back."""
        return self.points <= MOST_POINTS and self.steps * (30 if copies else 1) <= MOST_STEPS

    @staticmethod
    def _sums(values: Ints, runs: list[NDArray[np.intp]]) -> Ints:
        return np.concatenate([np.concatenate([[0], np.cumsum(values[run])]) for run in runs])


class _Search:
    """Tells whether all gradients can be sent by a given time, and in which buckets, by the curve given."""

    def __init__(
        self, problem: Problem, runs: _Runs, curve_bytes: Ints, curve_ns: Ints, max_bytes: int
    ) -> None:
        self.problem, self.runs, self.max_bytes = problem, runs, max_bytes
        self.curve = (curve_bytes, curve_ns)
        self.first = problem.ready + problem.effects.launch_cost_ns
        self.copies = problem.copies_out

    def ends(self, target: float) -> Floats:
        """The earliest end in ns of each prefix if all is to be synchronised by ``target``."""
        runs, curve = self.runs, self.curve
        sums = (runs.wire, runs.dense, runs.copied)
        limits = (float(target), self.max_bytes)  # one type and one layout: kernels are compiled once
        if runs.fit_lattice(self.copies):
            return earliest.earliest_on_lattice(self.first, runs.places, runs.starts, *sums, *curve, *limits)
        return earliest.earliest_by_windows(self.first, *sums, *curve, *limits)

    def least(self, low_ns: int, high_ns: int) -> tuple[int, Floats]:
        """The least ns by which all can be synchronised, ``high_ns`` at most, and each prefix's end."""
        if not self.copies:
            ends = self.ends(inf)
            return max(self.problem.lane_end, int(ends[-1])), ends
        low_ns = min(low_ns, high_ns) - 1
        ends = self.ends(high_ns)
        while high_ns - low_ns > 1:
            middle = (low_ns + high_ns) // 2
            tried = self.ends(middle)
            if tried[-1] == inf:
                low_ns = middle
            else:
                high_ns, ends = middle, tried
        return high_ns, ends

    def closes(self, target: int, ends: Floats) -> NDArray[np.bool_]:
        """Which places end a bucket if all is synchronised by ``target``: long buckets, from the last."""
        runs, problem = self.runs, self.problem
        taken = np.diff(runs.starts)
        strides = np.append(np.cumprod(taken[:0:-1] + 1)[::-1], 1)
        closes = np.zeros(len(problem), dtype=np.bool_)
        deadline = float(target)
        total = sum(runs.copied[start + run - 1] for run, start in enumerate(runs.starts[1:], start=1))
        while taken.any():
            lasts = np.where(taken > 0, runs.places[runs.starts[:-1] + taken - 1], -1)
            owner = int(np.argmax(lasts))
            closes[lasts[owner]] = True
            start, count = int(runs.starts[owner]) + owner, int(taken[owner])
            begins = slice(start, start + count)
            services = kernels.services(*self.curve, runs.wire[start + count] - runs.wire[begins])
            others = sum(
                runs.copied[s + r + t] for r, (s, t) in enumerate(zip(runs.starts, taken, strict=False))
            )
            others -= runs.copied[start + count]
            before = int(taken @ strides) - strides[owner] * np.arange(count, 0, -1)
            latest = np.minimum(deadline, target - (total - others - runs.copied[begins])) - services
            in_time = np.maximum(ends[before], self.first[lasts[owner]]) <= latest + LATE
            small = runs.dense[start + count] - runs.dense[begins] <= self.max_bytes
            possible = in_time & small
            possible[-1] = True
            chosen = int(np.argmax(possible))
            deadline = float(latest[chosen])
            taken[owner] = chosen
        return closes


def exact_optimum(problem: Problem, upper_ns: int, max_bytes: int = NO_LIMIT) -> Found | None:
    """The best contiguous partition on one FIFO channel (see ``covers``); elsewhere a bound, and a partition.

    Args:
        problem: the workload on the machine.
        upper_ns: ``sync_end_ns`` of some partition that keeps to ``max_bytes``; not used where nothing is
            copied back.
        max_bytes: largest bucket, by DDP's caps; a gradient that is larger is a bucket alone.

    Returns:
        None where there are several dtypes or devices and too many gradients.
    """
    runs = _Runs(problem)
    sizes, curve, slack_ns = _as_one_channel(problem)
    copies = problem.copies_out
    above = below = curve
    if not runs.fit_lattice(copies):
        if runs.count > 1:
            return None
        above = np.maximum.accumulate(curve)
        below = np.ascontiguousarray(np.minimum.accumulate(curve[::-1])[::-1])
    known = lower_bound_ns(problem)
    search = _Search(problem, runs, sizes, below, max_bytes)
    # Each copy is rounded by itself, which may make a partition shorter than searched by half a ns a copy.
    slack_ns += len(problem) // 2 + 1 if copies else 0
    least, ends = search.least(known, upper_ns + slack_ns)
    at_least = max(known, least - slack_ns)
    if (above != below).any():
        search = _Search(problem, runs, sizes, above, max_bytes)
        least, ends = search.least(known, NO_LIMIT)
    return Found(
        buckets=problem.buckets(search.closes(least, ends)),
        at_least_ns=at_least,
        free_at_least_ns=known,
        is_rounded=copies or bool((above != below).any()),
    )


def _as_one_channel(problem: Problem) -> tuple[Ints, Ints, int]:
    """The curve of one channel that is as fast as all channels together: its sizes in bytes and times in ns;
    and ``slack_ns``, by how much a whole partition may be quicker than this curve says.

    Every time on the curve is lowered by 2 ns, so that rounding cannot make it too long. Four roundings of
    half a ns each meet there: two of an all-reduce's time, one of the line between two points, and one of
    the point that is added here for the size of all gradients together. With that point no size lies beyond
    the curve. Times below 0 become 0, which is what ``slack_ns`` allows for.
    """
    sizes, curve, together = problem.curve_bytes, problem.curve_ns, problem.together
    if together <= 1:
        return sizes, curve, 0
    whole = np.array([problem.wire.sum()])
    if whole[0] > sizes[-1]:
        curve = np.append(curve, kernels.services(sizes, curve, whole))
        sizes = np.append(sizes, whole)
    curve = np.floor(curve / together).astype(np.int64) - 2
    slack_ns = 2 * len(problem) if (curve < 0).any() else 0
    return sizes, np.maximum(0, curve), slack_ns
