"""The best contiguous partition on one FIFO channel, with nothing that stretches or blocks: exact, and fast.

To finish by F with copies back in order, a bucket's all-reduce must end before F minus the copies of it and
of all later buckets: a deadline that depends on the bucket's first gradient. For a given F the earliest end
of each prefix then decides, and the least F for which there is one is found by bisection. Without copies one
pass is enough. On any other machine the same search gives a bound: slow-downs and blocked launches only add,
and several channels together pass no more than one that is as fast as all of them. ``lower_bound_ns`` needs
no search, and knows what slow-downs add.
"""

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled
from sim.clock.program import FULL_SPEED
from sim.tuner.problem import NEVER, Buckets, Problem, service, services

# Effects of a machine with which this search is exact.
_KNOWN = frozenset({"launch_cost_ns"})
MOST_STEPS = 500_000_000  # of the search, some two seconds
MOST_POINTS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the search found: buckets in launch order, and the ns before which no partition is synchronised.

    Where it ``covers`` the problem, these buckets are.
    """

    buckets: Buckets
    at_least_ns: int


def covers(problem: Problem) -> bool:
    """Whether what is found is the optimum: one channel, nothing that stretches or blocks, and launches that
    take no longer than the all-reduces they start, so that none waits for another's launch."""
    short = problem.machine.launch_cost_ns <= int(problem.curve_ns.min())
    return short and problem.machine.in_force <= _KNOWN


class _Search:
    """Tells whether all gradients can be sent by a given time, and in which buckets.

    It goes over a lattice, how many gradients of each run are sent: places and running sums, by run.
    ``fits``: every lattice point can be visited, some 30 times where there are copies back.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        runs = [np.flatnonzero(problem.run == number) for number in range(int(problem.run.max()) + 1)]
        self.places = np.concatenate(runs)
        self.starts = np.cumsum([0, *map(len, runs)])
        self.wire, self.copied = (
            np.concatenate([np.append(0, np.cumsum(values[run])) for run in runs])
            for values in (problem.wire, problem.copy_back)
        )
        points = float(np.prod([len(run) + 1.0 for run in runs]))
        steps = points * max(map(len, runs)) / 2 * (30 if problem.copies_out else 1)
        self.fits = points <= MOST_POINTS and steps <= MOST_STEPS
        sizes, times, self.slack_ns = _as_one_channel(problem)
        self.curve = (sizes, times)
        self.first = problem.ready + problem.machine.launch_cost_ns

    def ends(self, target: int) -> Ints:
        """The earliest end in ns of each prefix if all is to be synchronised by ``target``."""
        return _earliest(self.first, self.places, self.starts, self.wire, self.copied, *self.curve, target)

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
        starts, copied = self.starts, self.copied
        taken = np.diff(starts)
        strides = np.append(np.cumprod(taken[:0:-1] + 1)[::-1], 1)
        closes = np.zeros(len(self.problem), dtype=np.bool_)
        deadline = target
        total = sum(copied[start + run - 1] for run, start in enumerate(starts[1:], start=1))
        while taken.any():
            lasts = np.where(taken > 0, self.places[starts[:-1] + taken - 1], -1)
            owner = int(np.argmax(lasts))
            closes[lasts[owner]] = True
            start, count = int(starts[owner]) + owner, int(taken[owner])
            begins = slice(start, start + count)
            sent = services(*self.curve, self.wire[start + count] - self.wire[begins])
            others = sum(copied[s + r + t] for r, (s, t) in enumerate(zip(starts, taken, strict=False)))
            others -= copied[start + count]
            before = int(taken @ strides) - strides[owner] * np.arange(count, 0, -1)
            latest = np.minimum(deadline, target - (total - others - copied[begins])) - sent
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
    search = _Search(problem)
    if not search.fits:
        return None
    known = lower_bound_ns(problem)
    least, ends = search.least(known, upper_ns + search.slack_ns)
    at_least = max(known, least - search.slack_ns)
    if problem.copies_out and not covers(problem):
        at_least = max(at_least, _copied_ns(problem, int(search.ends(NEVER)[-1]) - search.slack_ns))
    return Found(buckets=problem.buckets(search.closes(least, ends)), at_least_ns=at_least)


def _copied_ns(problem: Problem, sent_ns: int) -> int:
    """When all can be copied back at the earliest, in ns, if nothing is sent before ``sent_ns``.

    Copies begin when backward has ended, and from then on something is being sent until all is. What is
    copied meanwhile takes longer, and holds up what is sent; the rest comes behind it. The bucket that ends
    last is copied behind it in any case.
    """
    machine, total = problem.machine, int(problem.copy_back.sum())
    last = int(problem.copy_back[-1]) if problem.has_one_run else 0
    rates = machine.copying_out
    passes = max(rates.alone, machine.channels * rates.shared) / problem.together
    held_up = min(1.0, (1 - min(1.0, passes)) * FULL_SPEED / rates.lane)  # ns for each ns of copies
    waits = 0 if machine.launch_blocks_compute else machine.launch_cost_ns  # for the last launch, and copies
    return floor(sent_ns + last + (total - last) * held_up) - waits - 1


def _as_one_channel(problem: Problem) -> tuple[Ints, Ints, int]:
    """The curve of one channel that is as fast as all channels together: its sizes in bytes and times in ns;
    and ``slack_ns``, by how much a whole partition may be quicker than this curve says.

    Every time on the curve is lowered by 2 ns, so that rounding cannot make it too long: half a ns of an
    all-reduce's time, and half of a line between two points. Times below 0 become 0, which is what
    ``slack_ns`` allows for.
    """
    sizes, curve, together = problem.curve_bytes, problem.curve_ns, problem.together
    if together <= FULL_SPEED:
        return sizes, curve, 0
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
    # The curve as lines to points, and what no message reaches beyond the last. ``least_later``: the least ns
    # from a point on, which no larger message can beat.
    sizes = curve_bytes.size
    slope, least_later = np.zeros(sizes + 1), np.full(sizes + 1, np.inf)
    for k in range(1, sizes):
        slope[k] = (curve_ns[k] - curve_ns[k - 1]) / (curve_bytes[k] - curve_bytes[k - 1])
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
        # What cannot end sooner by floats, which are off by less than a ns, is not counted in whole ns.
        best, segment = NEVER, 0
        for at in range(last - 1, start - 1, -1):
            size, limit = wire[last] - wire[at], left + copied[at]
            while segment < sizes and size >= curve_bytes[segment]:
                segment += 1
            known = max(segment - 1, 0)
            about = curve_ns[known] + slope[segment] * (size - curve_bytes[known]) - 1.0
            soonest = ready + min(about, least_later[segment] - 1.0)
            if soonest > best or soonest > limit:
                break  # a longer bucket takes no less, and leaves no more time for copies
            begin = max(ends[point - (last - at) * strides[owner]], ready)
            if begin >= best or begin + about > min(best, limit):
                continue
            end = begin + service(curve_bytes, curve_ns, size)
            if end < best and end <= limit:
                best = end
        ends[point] = best
    return ends


def least_services_ns(problem: Problem) -> Floats:
    """Least total service time in ns of all gradients from each place on, however they are cut; 0 at the end.

    By lines alpha + beta * num_bytes, both >= 0, that no message is below: buckets that hold S bytes in all
    cost at least alpha + beta * S, however many they are. They are steep as the lower hull of the curve, from
    each point to the next, but no steeper than its cheapest byte. A real service time is rounded to the
    nearest ns, so that the bound is half a ns lower for each bucket.
    """
    sizes = np.append(0, problem.curve_bytes).astype(np.float64)
    times = np.append(problem.curve_ns[0], problem.curve_ns).astype(np.float64)
    run, rise = sizes - sizes[:, None], times - times[:, None]
    to_right = np.divide(rise, run, out=np.full_like(run, np.inf), where=run > 0).min(axis=1)
    with_bytes = sizes > 0
    cheapest = float((times[with_bytes] / sizes[with_bytes]).min()) if with_bytes.any() else 0.0
    rest = np.append(np.cumsum(problem.wire[::-1])[::-1], 0).astype(np.float64)
    at_most = np.arange(len(problem), -1, -1)
    best = np.zeros(len(problem) + 1)
    for slope in np.unique(np.clip(np.append(to_right, cheapest), 0.0, cheapest)):
        each = max(0.0, float((times - slope * sizes).min()))
        best = np.maximum(best, each + slope * rest - (0.5 if each >= 0.5 else 0.5 * at_most))
    best[-1] = 0.0
    return best * (1 - 1e-12)


def lower_bound_ns(problem: Problem) -> int:
    """No contiguous partition synchronises before this, in ns from the start of backward; needs no search.

    Of a machine without small messages, as a ``Scorer`` has it, and as is true of ``exact_optimum``.

    For every gradient i: what is ready from i on cannot start before i is ready and copied in, and
    must all be sent; the last of it must be copied back. And: nothing ends before the compute lane
    and all copies back. With several channels, work passes at most at the rate of all channels together.
    Where backward and collectives slow each other down, what is sent beside backward makes it longer and
    takes longer: the bound takes the best share of both. Other slow-downs only add, and are left out; so do
    ends that are rounded up.
    """
    machine, count, keys = problem.machine, len(problem), int(problem.run.max()) + 1
    copy_out = int(problem.copy_back.sum())
    lane_end = problem.lane_end + (machine.launch_cost_ns * keys if machine.launch_blocks_compute else 0)
    bound = lane_end + copy_out
    if problem.curve_ns.any():
        # Copies are in bucket order: with a single run, the last follows every collective.
        last = np.zeros(count) if keys > 1 else np.full(count, float(problem.copy_back[-1]))
        last[-1] = float(problem.copy_back[-1])
        start = problem.ready + machine.launch_cost_ns
        ends = _shared(problem, start, least_services_ns(problem)[:-1], lane_end, last, copy_out)
        bound = max(bound, ceil(float(np.max(ends)) - 1e-3))
    return bound


def _shared(
    problem: Problem, start: Ints, work: Floats, lane_end: int, last: Floats, copy_out: int
) -> Floats:
    """When ``work`` ns of collectives that begin at ``start`` can at the earliest be over and copied back.

    Some of them run beside what is left of the lane, which may slow both down.

    In ``beside`` ns of the lane's time with a collective under way ``beside * slow`` of the work is done, and
    of the lane's ``beside * own``. Between its corners the end is linear in ``beside``.
    """
    rates = problem.machine.computing
    free = problem.together / FULL_SPEED
    slow = max(rates.alone, problem.machine.channels * rates.shared) / FULL_SPEED
    own = rates.lane / FULL_SPEED
    lane = np.maximum(0.0, lane_end - start)
    most = np.minimum(lane / own, work / slow)

    def over(beside: Floats) -> Floats:
        longer = beside * (1 - own)
        left = work - beside * slow
        sent = np.where(left > 1e-9 * work, start + lane + longer + left / free, start + beside)
        return np.maximum(sent + last, lane_end + longer + copy_out)

    # Where the two lines of the maximum cross, as far as that is within reach.
    cross = np.clip((start + lane + work / free + last - lane_end - copy_out) * free / slow, 0.0, most)
    corners = [over(beside) for beside in (np.zeros_like(most), most, cross)]
    return np.asarray(np.min(corners, axis=0))
