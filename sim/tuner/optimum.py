"""The best contiguous partition for any machine, and what is proved: exact, all tried, or climbed to.

On one FIFO channel, with nothing that stretches or blocks, the search is exact. To finish by F with copies
back in order, a bucket's all-reduce must end before F minus the copies of it and of all later buckets: a
deadline that depends on the bucket's first gradient. For a given F the earliest end of each prefix then
decides, and the least F for which there is one is found by bisection. Without copies one pass is enough. On
any other machine the same search gives a bound: slow-downs and blocked launches only add, and several
channels together pass no more than one that is as fast as all of them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil, floor
from typing import NamedTuple

import numpy as np

from sim.clock.arrays import Flags, Ints
from sim.clock.machine_code import compiled
from sim.clock.play import NEVER
from sim.clock.program import FULL_SPEED
from sim.systems.cut import NO_LIMIT
from sim.tuner.problem import Buckets, Problem, Tables, number_buckets, play_layouts, service

EXHAUSTIVE_PLACES = 15  # 32,768 partitions
_PLACES_PLAYED = 2_000_000  # by a climb: evaluations x gradients
MOST_STEPS = 2_000_000_000  # of the exact search, some seconds
MOST_POINTS = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best partition that was found, in launch order.

    No partition is synchronised before ``at_least_ns``; ``proof`` says in words how it is known.
    """

    buckets: Buckets
    sync_end_ns: int
    at_least_ns: int
    proof: str

    @property
    def is_proved(self) -> bool:
        """Whether no partition is better."""
        return self.sync_end_ns == self.at_least_ns


def find_optimum(
    problem: Problem, known: Iterable[Buckets], further: Callable[[], Iterable[Buckets]] | None = None
) -> Optimum:
    """The best partition that is contiguous in ready order within each dtype and device.

    Args:
        problem: the job on the machine.
        known: such partitions, one at least; the answer is never worse than any.
        further: what else is known and takes long to find. It is asked for where the search does not prove
            its answer without it, and where gradients have several dtypes or devices, whose buckets it may
            launch in another order than the search does. The answer is then no worse than any of it either.
    """
    problem.tell("searching for the best buckets")
    pool = list(known)
    exact = exact_optimum(problem, min(map(problem.sync_end_ns, pool)) if problem.copies_out else NO_LIMIT)
    places = np.flatnonzero(~problem.run_ends)
    is_exact, is_small = exact is not None and covers(problem), len(places) <= EXHAUSTIVE_PLACES
    at_least = lower_bound_ns(problem) if exact is None else exact.at_least_ns
    if further is not None and not (problem.has_one_run and (is_exact or is_small)):
        pool = [*further(), *pool]
    pool += [exact.buckets] if exact is not None else []

    def quality(buckets: Buckets) -> tuple[int, int]:
        return problem.sync_end_ns(buckets), len(buckets)

    best = min(pool, key=quality)
    if is_exact:
        proof = "exact search over all contiguous partitions"
    elif is_small:
        ends = problem.score_all(places)
        tried, shortest = problem.run_ends.copy(), np.flatnonzero(ends == ends.min()).tolist()
        tried[places] = min(shortest, key=int.bit_count) >> np.arange(len(places)) & 1
        best = min(best, problem.buckets(tried), key=quality)
        proof = f"all {len(ends)} contiguous partitions simulated"
    else:
        problem.tell("improving buckets by simulation")
        able = (problem.closes(start) for start in sorted(set(pool), key=quality))
        if (closes := next((one for one in able if one is not None), None)) is not None:
            climb(problem.tables, closes, max(400, _PLACES_PLAYED // len(problem)), 0)
            best = min(best, problem.buckets(closes), key=quality)
        proof = "refined by simulation; not proved by search"
    end = problem.sync_end_ns(best)
    if is_exact or is_small:
        at_least = end
    elif end <= at_least:
        at_least, proof = end, "meets the lower bound"
    return Optimum(buckets=best, sync_end_ns=end, at_least_ns=at_least, proof=proof)


# ---- The exact search.


class Exact(NamedTuple):
    """Buckets in launch order, and the ns before which no partition is synchronised: where the search
    ``covers`` the problem, these buckets are."""

    buckets: Buckets
    at_least_ns: int


class Lattice(NamedTuple):
    """How many gradients of each run are sent: a prefix takes some first ones of each, and is a point.

    ``first``: by place, the earliest start in ns of a bucket that waits for it. ``places``: those of all
    runs, one run after the other; run r's begin at ``starts[r]``, and one gradient more of it is
    ``strides[r]`` points further. ``wire``, ``copied``: running sums along ``places`` from 0 (one entry more
    for each run) of bytes on the wire, and ns of copying back. ``curve_bytes``, ``curve_ns``: the curve of
    the one channel.
    """

    first: Ints
    places: Ints
    starts: Ints
    strides: Ints
    wire: Ints
    copied: Ints
    curve_bytes: Ints
    curve_ns: Ints


def covers(problem: Problem) -> bool:
    """Whether what is found is the optimum: one channel, nothing that stretches or blocks, launches that take
    no longer than the all-reduces they start, so that none waits for another's launch, and neither a search
    for unused parameters, whose own all-reduce it leaves out, nor passes over whole buckets, of which it
    knows the least that they take of the lane."""
    machine, least = problem.machine, int(problem.wire.min())
    later_ns = problem.curve_ns[problem.curve_bytes >= least].tolist()
    is_quick = machine.launch_cost_ns <= min(service(problem.curve_bytes, problem.curve_ns, least), *later_ns)
    knows_all = not (problem.switches.searches or problem.has_passes)
    return is_quick and knows_all and machine.in_force <= {"launch_cost_ns"}


def exact_optimum(problem: Problem, upper_ns: int) -> Exact | None:
    """The best contiguous partition on one FIFO channel (see ``covers``); elsewhere a bound, and a partition.

    Args:
        problem: the workload on the machine.
        upper_ns: ``sync_end_ns`` of some partition; not used where nothing is copied back.

    Returns:
        None where some gradients may never be sent, and where it would take too long: several dtypes of many
        gradients each, or tens of thousands of gradients of which most fit into a bucket.
    """
    runs = [np.flatnonzero(problem.run == number) for number in range(int(problem.run.max()) + 1)]
    taken = [len(run) + 1 for run in runs]
    if not problem.sends.all() or np.prod(taken, dtype=np.float64) > MOST_POINTS:
        return None
    curve_ns, slack_ns = _as_one_channel(problem)
    wire, copied = (
        np.concatenate([np.append(0, np.cumsum(each[run])) for run in runs])
        for each in (problem.wire, problem.copies.back)
    )
    lattice = Lattice(
        first=problem.ready + problem.machine.launch_cost_ns,
        places=np.concatenate(runs),
        starts=np.cumsum([0, *map(len, runs)]),
        strides=np.append(np.cumprod(taken[:0:-1])[::-1], 1).astype(np.int64),
        wire=wire,
        copied=copied,
        curve_bytes=problem.curve_bytes,
        curve_ns=curve_ns,
    )
    most, known = MOST_STEPS // (30 if problem.copies_out else 1), lower_bound_ns(problem)
    least = upper_ns + slack_ns if problem.copies_out else NEVER
    ends = earliest_ends(lattice, least, most)
    if not ends.size:
        return None
    low = min(known, least) - 1
    if not problem.copies_out:  # one pass is enough
        least = max(known, int(ends[-1]))
        low = least - 1
    while least - low > 1:
        middle = (low + least) // 2
        tried = earliest_ends(lattice, middle, most)
        if not tried.size:
            return None
        if tried[-1] == NEVER:
            low = middle
        else:
            least, ends = middle, tried
    at_least = max(known, least - slack_ns)
    if problem.copies_out and not covers(problem):
        sent_ns = int(earliest_ends(lattice, NEVER, NEVER)[-1]) - slack_ns
        at_least = max(at_least, _copied_ns(problem, sent_ns))
    return Exact(problem.buckets(longest_buckets(lattice, ends, least)), at_least)


@compiled
def earliest_ends(lattice: Lattice, target: int, most: int) -> Ints:
    """The earliest time at which one FIFO channel can have sent each prefix, if all is to end by ``target``,
    ns (``NEVER`` where copies back are free); ``NEVER`` where there is none. Empty: it takes more than
    ``most`` steps.

    The last bucket of a prefix belongs to the run whose last place is latest, as buckets are launched in that
    order. A bucket has to end early enough for its own copy back and those of all buckets that follow. The
    curve may fall.
    """
    starts, wire, copied = lattice.starts, lattice.wire, lattice.copied
    curve_bytes, curve_ns = lattice.curve_bytes, lattice.curve_ns
    runs = starts.size - 1
    digits = np.zeros(runs, np.int64)
    points, total = 1, 0
    for run in range(runs):
        points *= starts[run + 1] - starts[run] + 1
        total += copied[starts[run + 1] + run]
    # The curve as lines to points, and what no message reaches beyond the last. ``least_later``: the least ns
    # from a point on, which no larger message can beat.
    sizes = curve_bytes.size
    slope, least_later = np.zeros(sizes + 1), np.full(sizes + 1, np.inf)
    for k in range(1, sizes):
        slope[k] = (curve_ns[k] - curve_ns[k - 1]) / (curve_bytes[k] - curve_bytes[k - 1])
    for k in range(sizes - 1, -1, -1):
        least_later[k] = min(least_later[k + 1], curve_ns[k])

    ends, steps = np.full(points, NEVER), 0
    ends[0] = 0
    for point in range(1, points):
        if steps > most:
            return np.empty(0, np.int64)
        run = runs - 1
        while digits[run] == starts[run + 1] - starts[run]:
            digits[run] = 0
            run -= 1
        digits[run] += 1
        place, owner, sent = _last_of(lattice, digits)
        start = starts[owner] + owner  # of the owner's running sums
        last = start + digits[owner]
        ready = lattice.first[place]
        left = target - (total - (sent - copied[last]))  # when copies must begin, but for the owner's own
        # What cannot end sooner by floats, which are off by less than a ns, is not counted in whole ns.
        best, segment = NEVER, 0
        for at in range(last - 1, start - 1, -1):
            size, limit = wire[last] - wire[at], left + copied[at]
            steps += 1
            while segment < sizes and size >= curve_bytes[segment]:
                segment += 1
            about = curve_ns[segment - 1] + slope[segment] * (size - curve_bytes[segment - 1]) - 1.0
            soonest = ready + min(about, least_later[segment] - 1.0)
            if soonest > best or soonest > limit:
                break  # a longer bucket takes no less, and leaves no more time for copies
            begin = max(ends[point - (last - at) * lattice.strides[owner]], ready)
            if begin >= best or begin + about > min(best, limit):
                continue
            end = begin + service(curve_bytes, curve_ns, size)
            if end < best and end <= limit:
                best = end
        ends[point] = best
    return ends


@compiled
def longest_buckets(lattice: Lattice, ends: Ints, target: int) -> Flags:
    """Which places end a bucket if all is synchronised by ``target``, ns, given the ``earliest_ends``: from
    the last on, each as long as can be."""
    starts, wire, copied = lattice.starts, lattice.wire, lattice.copied
    closes = np.zeros(lattice.places.size, np.bool_)
    digits = starts[1:] - starts[:-1]
    total = _last_of(lattice, digits)[2]
    point, deadline = ends.size - 1, target
    while point > 0:
        place, owner, sent = _last_of(lattice, digits)
        closes[place] = True
        start = starts[owner] + owner
        last = start + digits[owner]
        for at in range(start, last):
            back = total - (sent - copied[last]) - copied[at]  # ns of its own copy and of all behind it
            took = service(lattice.curve_bytes, lattice.curve_ns, wire[last] - wire[at])
            latest = min(deadline, target - back) - took
            before = point - (last - at) * lattice.strides[owner]
            if at == last - 1 or max(ends[before], lattice.first[place]) <= latest:
                break
        point, deadline, digits[owner] = before, latest, at - start
    return closes


@compiled
def _last_of(lattice: Lattice, digits: Ints) -> tuple[int, int, int]:
    """Of a prefix with so many gradients of each run: its latest place, the run of that, and ns to copy all
    of it back."""
    latest, owner, sent = -1, 0, 0
    for run in range(digits.size):
        sent += lattice.copied[lattice.starts[run] + run + digits[run]]
        if digits[run]:
            place = lattice.places[lattice.starts[run] + digits[run] - 1]
            if place > latest:
                latest, owner = place, run
    return latest, owner, sent


# ---- Bounds.


def _copied_ns(problem: Problem, sent_ns: int) -> int:
    """When all can be copied back at the earliest, in ns, if nothing is sent before ``sent_ns``.

    Copies begin when backward has ended, and from then on something is being sent until all is. What is
    copied meanwhile takes longer, and holds up what is sent; the rest comes behind it. The bucket that ends
    last is copied behind it in any case.
    """
    machine, total = problem.machine, int(problem.copies.back.sum())
    last = int(problem.copies.back[-1]) if problem.has_one_run else 0
    rates = machine.copying_out
    passes = max(rates.alone, machine.channels * rates.shared) / problem.together
    held_up = min(1.0, (1 - min(1.0, passes)) * FULL_SPEED / rates.lane)  # ns for each ns of copies
    waits = 0 if machine.launch_blocks_compute else machine.launch_cost_ns  # for the last launch, and copies
    return floor(sent_ns + last + (total - last) * held_up) - waits - 1


def lower_bound_ns(problem: Problem) -> int:
    """No contiguous partition synchronises before this, in ns from the start of backward; needs no search.

    Nothing ends before the compute lane and all copies back. For every gradient: what is ready from it on
    cannot start before it is, and must all be sent, at most at the rate of all channels together; the last of
    it must be copied back. Where backward and collectives slow each other down, in ``beside`` ns of the
    lane's time with a collective under way ``beside * slow`` of the work is done, and of the lane's
    ``beside * own``: the best share counts, and between its corners the end is linear. Other slow-downs only
    add, and are left out; so do ends that are rounded up.
    """
    machine, count, runs = problem.machine, len(problem), len(set(problem.run[problem.sends].tolist()))
    copy_out = int(problem.copies.back.sum())
    lane_end = problem.lane_end + (machine.launch_cost_ns * runs if machine.launch_blocks_compute else 0)
    # What is sent from each place on takes alpha + beta * bytes in all, however it is cut, by any line of
    # alpha, beta >= 0 that no message is below: those as steep as the lower hull of the curve, but no steeper
    # than its cheapest byte. A service time is rounded to the nearest ns, by half a ns for each message.
    sizes, times = problem.curve_bytes.astype(np.float64), problem.curve_ns.astype(np.float64)
    run, rise = sizes - sizes[:, None], times - times[:, None]
    to_right = np.divide(rise, run, out=np.full_like(run, np.inf), where=run > 0).min(axis=1)
    cheapest = min((times[sizes > 0] / sizes[sizes > 0]).tolist(), default=0.0)
    slopes = np.clip(np.append(to_right, cheapest), 0.0, cheapest)[:, None]
    each = np.maximum(0.0, (times - slopes * sizes).min(axis=1, keepdims=True))
    lines = each + slopes * np.cumsum((problem.wire * problem.sends)[::-1])[::-1]
    lines -= np.where(each >= 0.5, 0.5, 0.5 * np.arange(count, 0, -1))
    work = np.maximum(0.0, lines.max(axis=0)) * (1 - 1e-12)
    if not (work.any() and runs):
        return lane_end + copy_out
    # Copies are in bucket order: with a single run, the last follows every collective.
    last = np.full(count, float(problem.copies.back[-1]) * problem.has_one_run)
    last[-1] = float(problem.copies.back[-1])
    start, free = problem.ready + machine.launch_cost_ns, problem.together / FULL_SPEED
    slow = max(machine.computing.alone, machine.channels * machine.computing.shared) / FULL_SPEED
    own, lane = machine.computing.lane / FULL_SPEED, np.maximum(0.0, lane_end - start)
    most = np.minimum(lane / own, work / slow)
    # Where the two ends below cross, as far as that is within reach.
    cross = np.clip((start + lane + work / free + last - lane_end - copy_out) * free / slow, 0.0, most)
    beside = np.stack([np.zeros(count), most, cross])
    longer, left = beside * (1 - own), work - beside * slow
    sent = np.where(left > 1e-9 * work, start + lane + longer + left / free, start + beside)
    ends = np.maximum(sent + last, lane_end + longer + copy_out).min(axis=0)
    return max(lane_end + copy_out, ceil(float(ends.max()) - 1e-3))


def _as_one_channel(problem: Problem) -> tuple[Ints, int]:
    """The curve of one channel that is as fast as all channels together, its times in ns; and ``slack_ns``,
    by how much a whole partition may be quicker than this curve says.

    Every time on the curve is lowered by 2 ns, so that rounding cannot make it too long: half a ns of an
    all-reduce's time, and half of a line between two points. Times below 0 become 0, which is what
    ``slack_ns`` allows for.
    """
    if problem.together <= FULL_SPEED:
        return problem.curve_ns, 0
    curve = problem.curve_ns * FULL_SPEED // problem.together - 2
    return np.maximum(0, curve), 2 * len(problem) if (curve < 0).any() else 0


# ---- Climbing.


@compiled
def climb(tables: Tables, closes: Flags, budget: int, seed: int) -> tuple[int, int]:
    """Improve ``closes`` in place, then change ends at random and improve again, for ``budget`` evaluations.

    Moves: leave an end out (also where nothing is lost by it: fewer buckets), put one in, move one by 1, 2,
    3, 5 or 8 places to either side.

    Returns:
        The score reached, and the evaluations made.
    """

    def score() -> int:
        return int(play_layouts(tables, number_buckets(tables.run, closes).reshape((1, -1)))[0])

    np.random.seed(seed)
    places = closes.size
    best = score()
    kept = closes.copy()
    spent, here, stuck = 1, best, 0
    while True:
        improved = True
        while improved and spent < budget:
            improved = False
            for place in range(places):
                if tables.run_ends[place] or spent >= budget:
                    continue
                closes[place] = not closes[place]
                end = score()
                spent += 1
                if end < here or (end == here and not closes[place]):
                    here, improved = end, True
                    continue
                closes[place] = not closes[place]
                if not closes[place]:
                    continue
                closes[place] = False
                moved = False
                for step in (1, -1, 2, -2, 3, -3, 5, -5, 8, -8):
                    there = place + step
                    if there < 0 or there >= places or closes[there]:
                        continue
                    closes[there] = True
                    end = score()
                    spent += 1
                    if end < here:
                        here, improved, moved = end, True, True
                        break
                    closes[there] = False
                closes[place] = not moved
        if here < best:
            best, stuck = here, 0
            kept = closes.copy()
        else:
            stuck += 1
        for place in range(places):
            closes[place] = kept[place]
        if spent >= budget or places <= 1:
            return best, spent
        for _ in range(2 + stuck % 3):
            place = np.random.randint(places)
            if not tables.run_ends[place]:
                closes[place] = not closes[place]
        here = score()
        spent += 1
