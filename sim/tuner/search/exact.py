"""The best contiguous partition on one FIFO channel, with nothing that stretches or blocks: exact, and fast.

To finish by F with copies back in order, a bucket's all-reduce must end before F minus the copies of it and
of all later buckets: a deadline that depends on the bucket's first gradient. For a given F the earliest end
of each prefix then decides, and the least F for which there is one is found by bisection. Without copies one
pass is enough. On any other machine the same search gives a bound: slow-downs and blocked launches only add,
and several channels together pass no more than one that is as fast as all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Ints
from sim.clock.machine_code import compiled
from sim.clock.program import FULL_SPEED
from sim.tuner.search import kernels
from sim.tuner.search.bound import lower_bound_ns
from sim.tuner.search.kernels import NEVER, rise_beyond, service
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem

# Effects of a machine with which this search is exact.
_KNOWN = frozenset({"launch_cost_ns"})
MOST_STEPS = 500_000_000  # of the search, some two seconds
MOST_POINTS = 20_000_000
_NEAR = 1 / 64  # ns: a float of up to 2**43 ns is off by less


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search found: buckets in launch order, and the ns before which no partition is synchronised.

    Where it ``covers`` the problem, these buckets are. ``free_at_least_ns`` is known without the search.
    """

    buckets: Buckets
    at_least_ns: int
    free_at_least_ns: int


def covers(problem: Problem) -> bool:
    """Whether what is found is the optimum: one channel, nothing that stretches or blocks, and launches that
    take no longer than the all-reduces they start, so that none waits for another's launch."""
    short = problem.machine.launch_cost_ns <= int(problem.curve_ns.min())
    return short and problem.machine.in_force <= _KNOWN


class _Runs:
    """The lattice of a problem, how many gradients of each run are sent: places and running sums, by run."""

    def __init__(self, problem: Problem) -> None:
        runs = [np.flatnonzero(problem.run == number) for number in range(int(problem.run.max()) + 1)]
        self.places = np.concatenate(runs)
        self.starts = np.cumsum([0, *map(len, runs)])
        self.wire = self._sums(problem.wire, runs)
        self.copied = self._sums(problem.copy_back, runs)
        lengths = [len(run) for run in runs]
        self.points = int(np.prod([float(length + 1) for length in lengths]))
        self.steps = self.points * max(lengths) / 2
        self.count = len(runs)

    def fit(self, copies: bool) -> bool:
        """Whether every lattice point can be visited, some 30 times where there are copies back."""
        return self.points <= MOST_POINTS and self.steps * (30 if copies else 1) <= MOST_STEPS

    @staticmethod
    def _sums(values: Ints, runs: list[NDArray[np.intp]]) -> Ints:
        return np.concatenate([np.concatenate([[0], np.cumsum(values[run])]) for run in runs])


class _Search:
    """Tells whether all gradients can be sent by a given time, and in which buckets, by the curve given."""

    def __init__(self, problem: Problem, runs: _Runs, curve_bytes: Ints, curve_ns: Ints) -> None:
        self.problem, self.runs = problem, runs
        self.curve = (curve_bytes, curve_ns)
        self.first = problem.ready + problem.machine.launch_cost_ns

    def ends(self, target: int) -> Ints:
        """The earliest end in ns of each prefix if all is to be synchronised by ``target``."""
        runs = self.runs
        return _earliest(self.first, runs.places, runs.starts, runs.wire, runs.copied, *self.curve, target)

    def least(self, low_ns: int, high_ns: int) -> tuple[int, Ints]:
        """The least ns by which all can be synchronised, ``high_ns`` at most, and each prefix's end."""
        if not self.problem.copies_out:
            ends = self.ends(NEVER)
            return max(self.problem.lane_end, int(ends[-1])), ends
        low_ns = min(low_ns, high_ns) - 1
        ends = self.ends(high_ns)
        while high_ns - low_ns > 1:
            middle = (low_ns + high_ns) // 2
            tried = self.ends(middle)
            if tried[-1] == NEVER:
                low_ns = middle
            else:
                high_ns, ends = middle, tried
        return high_ns, ends

    def closes(self, target: int, ends: Ints) -> NDArray[np.bool_]:
        """Which places end a bucket if all is synchronised by ``target``: long buckets, from the last."""
        runs, problem = self.runs, self.problem
        taken = np.diff(runs.starts)
        strides = np.append(np.cumprod(taken[:0:-1] + 1)[::-1], 1)
        closes = np.zeros(len(problem), dtype=np.bool_)
        deadline = target
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
            in_time = np.maximum(ends[before], self.first[lasts[owner]]) <= latest
            in_time[-1] = True
            chosen = int(np.argmax(in_time))
            deadline = int(latest[chosen])
            taken[owner] = chosen
        return closes


def exact_optimum(problem: Problem, upper_ns: int) -> Found | None:
    """The best contiguous partition on one FIFO channel (see ``covers``); elsewhere a bound, and a partition.

    Args:
        problem: the workload on the machine.
        upper_ns: ``sync_end_ns`` of some partition; not used where nothing is copied back.

    Returns:
        None where there are too many gradients.
    """
    runs = _Runs(problem)
    if not runs.fit(problem.copies_out):
        return None
    sizes, curve, slack_ns = _as_one_channel(problem)
    known = lower_bound_ns(problem)
    search = _Search(problem, runs, sizes, curve)
    least, ends = search.least(known, upper_ns + slack_ns)
    return Found(
        buckets=problem.buckets(search.closes(least, ends)),
        at_least_ns=max(known, least - slack_ns),
        free_at_least_ns=known,
    )


def _as_one_channel(problem: Problem) -> tuple[Ints, Ints, int]:
    """The curve of one channel that is as fast as all channels together: its sizes in bytes and times in ns;
    and ``slack_ns``, by how much a whole partition may be quicker than this curve says.

    Every time on the curve is lowered by 2 ns, so that rounding cannot make it too long. Three roundings of
    half a ns each meet there: of an all-reduce's time, of the line between two points, and of the point that
    is added here for the size of all gradients together. With that point no size lies beyond
    the curve. Times below 0 become 0, which is what ``slack_ns`` allows for.
    """
    sizes, curve, together = problem.curve_bytes, problem.curve_ns, problem.together
    if together <= FULL_SPEED:
        return sizes, curve, 0
    whole = np.array([problem.wire.sum()])
    if whole[0] > sizes[-1]:
        curve = np.append(curve, kernels.services(sizes, curve, whole))
        sizes = np.append(sizes, whole)
    curve = curve * FULL_SPEED // together - 2
    slack_ns = 2 * len(problem) if (curve < 0).any() else 0
    return sizes, np.maximum(0, curve), slack_ns


@compiled
def _earliest(
    first: Ints,
    run_places: Ints,
    run_starts: Ints,
    wire: Ints,
    copied: Ints,
    curve_bytes: Ints,
    curve_ns: Ints,
    target: int,
) -> Ints:
    """The earliest time at which one FIFO channel can have sent each prefix, if all is to end by ``target``.

    A prefix takes some first gradients of each run, and is a point of a lattice. The last bucket of a prefix
    belongs to the run whose last place is latest, as buckets are launched in that order. A bucket has to end
    early enough for its own copy back and those of all buckets that follow. The curve may fall.

    Args:
        first: by place, the earliest start in ns of a bucket that waits for it.
        run_places: places of all runs, one run after the other; run r's begin at ``run_starts[r]``.
        wire, copied: running sums along ``run_places`` from 0 (one entry more for each run) of bytes on the
            wire, and ns of copying back.
        target: ns; ``NEVER`` where copies back are free.

    Returns:
        For each lattice point the earliest end in ns; ``NEVER`` if there is none.
    """
    runs = run_starts.size - 1
    strides, digits = np.empty(runs, np.int64), np.zeros(runs, np.int64)
    points = 1
    total = 0
    for run in range(runs - 1, -1, -1):
        strides[run] = points
        points *= run_starts[run + 1] - run_starts[run] + 1
        total += copied[run_starts[run + 1] + run]
    # The curve as lines through points, one line more than these: the first is constant. ``least_later``: the
    # least ns from a point on, which no larger message can beat.
    sizes = curve_bytes.size
    slope, least_later = np.zeros(sizes + 1), np.full(sizes + 1, np.inf)
    for k in range(1, sizes):
        slope[k] = (curve_ns[k] - curve_ns[k - 1]) / (curve_bytes[k] - curve_bytes[k - 1])
    rise, run = rise_beyond(curve_bytes, curve_ns)
    slope[sizes] = rise / run
    for k in range(sizes - 1, -1, -1):
        least_later[k] = min(least_later[k + 1], curve_ns[k])

    ends = np.full(points, NEVER)
    ends[0] = 0
    for point in range(1, points):
        run = runs - 1
        while digits[run] == run_starts[run + 1] - run_starts[run]:
            digits[run] = 0
            run -= 1
        digits[run] += 1
        latest, owner, sent = -1, 0, 0
        for run in range(runs):
            sent += copied[run_starts[run] + run + digits[run]]
            if digits[run]:
                place = run_places[run_starts[run] + digits[run] - 1]
                if place > latest:
                    latest, owner = place, run
        start = run_starts[owner] + owner  # of the owner's running sums
        last = start + digits[owner]
        ready = first[latest]
        left = target - (total - (sent - copied[last]))  # when copies must begin, but for the owner's own
        # What ends first before it is rounded does so after it, too: floats tell which, but near half a ns.
        best, choice, segment, stop = np.inf, -1, 0, start
        for at in range(last - 1, start - 1, -1):
            size, limit = wire[last] - wire[at], left + copied[at]
            while segment < sizes and size >= curve_bytes[segment]:
                segment += 1
            known = max(segment - 1, 0)
            about = curve_ns[known] + slope[segment] * (size - curve_bytes[known])
            soonest = ready + min(about, least_later[segment]) - 1.0
            if soonest > best or soonest > limit:
                stop = at + 1
                break  # a longer bucket takes no less, and leaves no more time for copies
            begin = max(ends[point - (last - at) * strides[owner]], ready)
            end = begin + about
            if end >= best or end > limit + (0.5 + _NEAR):
                continue
            if end < limit + (0.5 - _NEAR) or begin + service(curve_bytes, curve_ns, size) <= limit:
                best, choice = end, at
        if choice < 0:
            continue
        begin = max(ends[point - (last - choice) * strides[owner]], ready)
        ends[point] = begin + service(curve_bytes, curve_ns, wire[last] - wire[choice])
        if abs(best - np.floor(best) - 0.5) < _NEAR:
            for at in range(last - 1, stop - 1, -1):
                begin = max(ends[point - (last - at) * strides[owner]], ready)
                if begin < ends[point]:
                    counted = begin + service(curve_bytes, curve_ns, wire[last] - wire[at])
                    if counted <= left + copied[at]:
                        ends[point] = min(ends[point], counted)
    return ends
