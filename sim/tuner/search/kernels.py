"""What the tuner does millions of times: service times, one DDP step, and searches among partitions.

Times are int64 ns and sizes int64 bytes; ``machine`` is a ``problem.Machine``. A step is played by
the compiled clock.
"""

import numpy as np

from sim.clock.arrays import Flags, Floats, Ints
from sim.clock.compiled import (
    BACKWARD,
    COPY_BACK,
    COPY_IN,
    LAUNCH,
    MOST_NS,
    STALLED,
    WAIT,
    play_alone,
)
from sim.clock.machine_code import compiled
from sim.tuner.search.problem import Machine, Tables

NEVER = 1 << 62
# A float this near to half a ns may round to the wrong side: so many ns, and so many for each ns of it.
_DOUBT, _RELATIVE_DOUBT = 1e-3, 1e-14


@compiled
def add_share(base: int, a: int, b: int, c: int) -> int:
    """``base + a * b / c`` rounded half to even, for a, b >= 0 and 0 < c < 2**61, without overflow."""
    whole_a, part_a = a // c, a % c
    whole_b, part_b = b // c, b % c
    quotient = base + whole_a * b + whole_b * part_a
    if part_a < 1 << 31 and part_b < 1 << 31:
        quotient += part_a * part_b // c
        rest = part_a * part_b % c
    else:
        low, rest = 0, 0
        for bit in range(61, -1, -1):
            low, rest = 2 * low, 2 * rest + (part_a if part_b >> bit & 1 else 0)
            while rest >= c:
                low, rest = low + 1, rest - c
        quotient += low
    if 2 * rest > c or (2 * rest == c and quotient & 1):
        quotient += 1
    return quotient


@compiled
def service(curve_bytes: Ints, curve_ns: Ints, num_bytes: int) -> int:
    """Service time of one all-reduce: ``costs.service_time.service_ns``, compiled."""
    count = curve_bytes.size
    after = int(np.searchsorted(curve_bytes, num_bytes, side="right"))
    if after == 0 or count == 1:
        return int(curve_ns[0])
    at = min(after, count - 1)
    run = curve_bytes[at] - curve_bytes[at - 1]
    rise = curve_ns[at] - curve_ns[at - 1]
    if rise >= 0:
        return add_share(curve_ns[at - 1], rise, num_bytes - curve_bytes[at - 1], run)
    if after == count:
        return int(curve_ns[at])
    return add_share(curve_ns[at], -rise, curve_bytes[at] - num_bytes, run)


@compiled
def services(curve_bytes: Ints, curve_ns: Ints, wires: Ints) -> Ints:
    """Service time in ns of each of ``wires`` bytes."""
    made = np.empty(wires.size, np.int64)
    for k in range(wires.size):
        made[k] = service(curve_bytes, curve_ns, wires[k])
    return made


@compiled
def _rounds_surely(exactly: float) -> bool:
    """Whether ``exactly`` ns are so far from half a ns that a float64 rounds as an exact fraction would."""
    from_half = abs(exactly - np.floor(exactly) - 0.5)
    return bool(from_half > _DOUBT + exactly * _RELATIVE_DOUBT)


@compiled
def play_surely(
    machine: Machine,
    grains: Floats,
    work: Ints,
    copy_in: Ints,
    tail: int,
    stops: Ints,
    services: Ints,
    small: Ints,
    copies_back: Ints,
) -> tuple[int, bool]:
    """``sync_end_ns`` of one DDP step by the compiled clock, and whether it is sure to the nanosecond.

    Args:
        machine: see ``problem.Machine``; ``grains``: see ``Problem``.
        work: ns of backward before each place; ``copy_in``: ns of its copy.
        tail: ns of backward after the last place.
        stops: per bucket in launch order, the place it waits for; the last is the last place.
        services: ns of each bucket's all-reduce alone; ``small``: whether it is a small message, 1 or 0;
            ``copies_back``: ns to copy it back.
    """
    count, places = stops.size, work.size
    # The lane, item by item where collectives stretch it, else as one item for each bucket.
    factors = machine.factors
    fine = factors.compute != 1.0 or factors.copy_in != 1.0
    most = 3 * count + 1 + 2 * places
    kinds, durations, numbers = np.empty(most, np.int64), np.zeros(most, np.int64), np.zeros(most, np.int64)
    item = place = computing = total = 0
    for bucket in range(count):
        while place <= stops[bucket]:
            if fine:
                kinds[item], durations[item] = BACKWARD, work[place]
                kinds[item + 1], durations[item + 1] = COPY_IN, copy_in[place]
                item += 2
            computing += work[place] + copy_in[place]
            place += 1
        if not fine:
            kinds[item], durations[item] = BACKWARD, computing
            total, computing = total + computing, 0
            item += 1
        kinds[item], numbers[item] = LAUNCH, bucket
        item += 1
    kinds[item], durations[item] = BACKWARD, tail
    item += 1
    total += computing + tail + count * factors.launch_cost_ns
    for bucket in range(count):
        kinds[item], numbers[item] = WAIT, bucket
        kinds[item + 1], durations[item + 1] = COPY_BACK, copies_back[bucket]
        item += 2
        total += services[bucket] + copies_back[bucket]
    end, sure = play_alone(factors, grains, kinds[:item], durations[:item], numbers[:item], services, small)
    return end, sure and total <= MOST_NS


@compiled
def play_many(
    machine: Machine,
    works: Ints,
    copy_in: Ints,
    tails: Ints,
    stops: Ints,
    services: Ints,
    small: Ints,
    copies_back: Ints,
) -> Ints:
    """``sync_end_ns`` of each draw, which may be off by a ns where work stretches; see ``play_surely``.

    ``works`` [draws, places], ``tails`` [draws], ``services`` [draws, buckets].
    """
    ends, grains = np.empty(tails.size, np.int64), np.zeros(STALLED + 1)
    for k in range(tails.size):
        ends[k], _ = play_surely(
            machine, grains, works[k], copy_in, tails[k], stops, services[k], small, copies_back
        )
    return ends


@compiled
def score(machine: Machine, tables: Tables, closes: Flags, max_bytes: int) -> tuple[int, bool]:
    """``play_surely`` of the partition whose buckets end at ``closes``: one accumulator a run, as in torch.

    ``NEVER`` where a bucket of several gradients holds more than ``max_bytes``.
    """
    places = tables.run.size
    members, dense = np.zeros(places, np.int64), np.zeros(places, np.int64)  # what is open, by run
    filled, held = np.zeros(places, np.int64), np.zeros(places, np.int64)
    count = 0
    for place in range(places):
        count += closes[place]
    stops, sent, back = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    small = np.empty(count, np.int64)
    count, sure = 0, True
    for place in range(places):
        key = tables.run[place]
        members[key] += 1
        dense[key] += tables.dense[place]
        filled[key] += tables.wire[place]
        held[key] += tables.copied[place]
        if closes[place]:
            if dense[key] > max_bytes and members[key] > 1:
                return NEVER, True
            stops[count] = place
            sent[count] = service(tables.curve_bytes, tables.curve_ns, filled[key])
            small[count] = filled[key] < machine.small_bytes
            exactly = held[key] * machine.copy_out_ns_per_byte
            sure &= _rounds_surely(exactly)
            back[count] = int(np.rint(exactly))
            members[key] = dense[key] = filled[key] = held[key] = 0
            count += 1
    end, stepped = play_surely(
        machine, tables.grains, tables.work, tables.copy_in, tables.tail, stops, sent, small, back
    )
    return end, sure and stepped


@compiled
def score_all(
    machine: Machine, tables: Tables, run_ends: Flags, places: Ints, max_bytes: int
) -> tuple[Ints, Flags]:
    """``score`` of every partition: bit b of its number says that a bucket ends at ``places[b]``."""
    ends = np.empty(1 << places.size, np.int64)
    sure = np.empty(1 << places.size, np.bool_)
    closes = run_ends.copy()
    for number in range(1 << places.size):
        for bit in range(places.size):
            closes[places[bit]] = number >> bit & 1
        ends[number], sure[number] = score(machine, tables, closes, max_bytes)
    return ends, sure


@compiled
def climb(
    machine: Machine, tables: Tables, run_ends: Flags, closes: Flags, max_bytes: int, budget: int, seed: int
) -> tuple[int, int]:
    """Improve ``closes`` in place, then change ends at random and improve again, for ``budget`` evaluations.

    Moves: leave an end out (also where nothing is lost by it: fewer buckets), put one in, move one by 1, 2,
    3, 5 or 8 places to either side.

    Returns:
        The score reached, and the evaluations made.
    """
    np.random.seed(seed)
    places = closes.size
    best, _ = score(machine, tables, closes, max_bytes)
    kept = closes.copy()
    spent, here, stuck = 1, best, 0
    while True:
        improved = True
        while improved and spent < budget:
            improved = False
            for place in range(places):
                if run_ends[place] or spent >= budget:
                    continue
                closes[place] = not closes[place]
                end, _ = score(machine, tables, closes, max_bytes)
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
                    end, _ = score(machine, tables, closes, max_bytes)
                    spent += 1
                    if end < here:
                        here, improved, moved = end, True, True
                        break
                    closes[there] = False
                closes[place] = not moved
        if here < best:
            best, stuck = here, 0
            kept[:] = closes
        else:
            stuck += 1
        closes[:] = kept
        if spent >= budget or places <= 1:
            return best, spent
        for _ in range(2 + stuck % 3):
            place = np.random.randint(places)
            if not run_ends[place]:
                closes[place] = not closes[place]
        here, _ = score(machine, tables, closes, max_bytes)
        spent += 1


@compiled
def earliest_on_lattice(
    first: Ints,
    run_places: Ints,
    run_starts: Ints,
    wire: Ints,
    dense: Ints,
    copied: Floats,
    curve_bytes: Ints,
    curve_ns: Ints,
    target: float,
    max_bytes: int,
) -> Floats:
    """The earliest time at which one FIFO channel can have sent each prefix, if all is to end by ``target``.

    A prefix takes some first gradients of each run, and is a point of a lattice. The last bucket of a prefix
    belongs to the run whose last place is latest, as buckets are launched in that order. A bucket has to end
    early enough for its own copy back and those of all buckets that follow. The curve may fall. All-reduces
    are rounded to ns as by the clocks, after they were compared with their deadlines.

    Args:
        first: by place, the earliest start in ns of a bucket that waits for it.
        run_places: places of all runs, one run after the other; run r's begin at ``run_starts[r]``.
        wire, dense, copied: running sums along ``run_places`` from 0 (one entry more for each run) of bytes
            on the wire, bytes by DDP's caps, and ns of copying back.
        target: ns; infinite where copies back are free.

    Returns:
        For each lattice point the earliest end in ns; infinite if there is none.
    """
    runs = run_starts.size - 1
    strides, digits = np.empty(runs, np.int64), np.zeros(runs, np.int64)
    points, total = 1, 0.0
    for run in range(runs - 1, -1, -1):
        strides[run] = points
        points *= run_starts[run + 1] - run_starts[run] + 1
        total += copied[run_starts[run + 1] + run]
    # The curve as lines, one more than points: the first is constant. ``least_later``: the least ns from a
    # point on, which no larger message can beat.
    sizes = curve_bytes.size
    slope, height, least_later = np.zeros(sizes + 1), np.zeros(sizes + 1), np.full(sizes + 1, np.inf)
    for k in range(1, sizes):
        slope[k] = (curve_ns[k] - curve_ns[k - 1]) / (curve_bytes[k] - curve_bytes[k - 1])
    if sizes > 1:
        slope[sizes] = max(0.0, slope[sizes - 1])
    for k in range(sizes + 1):
        height[k] = curve_ns[max(k - 1, 0)] - slope[k] * curve_bytes[max(k - 1, 0)]
    for k in range(sizes - 1, -1, -1):
        least_later[k] = min(least_later[k + 1], curve_ns[k])

    ends = np.full(points, np.inf)
    ends[0] = 0
    for point in range(1, points):
        run = runs - 1
        while digits[run] == run_starts[run + 1] - run_starts[run]:
            digits[run] = 0
            run -= 1
        digits[run] += 1
        latest, owner, sent = -1, 0, 0.0
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
        # The best end before rounding is the best after it, except near half a ns, which is tried below.
        best, choice, segment = np.inf, -1, 0
        for at in range(last - 1, start - 1, -1):
            size = wire[last] - wire[at]
            if dense[last] - dense[at] > max_bytes and at < last - 1:
                break
            while segment < sizes and size >= curve_bytes[segment]:
                segment += 1
            about = height[segment] + slope[segment] * size
            limit = left + copied[at]
            soonest = ready + min(about, least_later[segment])
            if soonest > best or soonest > limit:
                break  # a longer bucket takes no less, and leaves no more time for copies
            end = max(ends[point - (last - at) * strides[owner]], ready) + about
            if end <= best and end <= limit:
                best, choice = end, at
        if choice < 0:
            continue
        sent_before = max(ends[point - (last - choice) * strides[owner]], ready)
        ends[point] = sent_before + service(curve_bytes, curve_ns, wire[last] - wire[choice])
        if abs(best - np.floor(best) - 0.5) < _DOUBT:  # a half is rounded to either side
            for at in range(last - 1, choice - 1, -1):
                if dense[last] - dense[at] > max_bytes and at < last - 1:
                    break
                end = max(ends[point - (last - at) * strides[owner]], ready)
                if end < ends[point] and end <= left + copied[at]:
                    end += service(curve_bytes, curve_ns, wire[last] - wire[at])
                    if end <= left + copied[at]:
                        ends[point] = min(ends[point], end)
    return ends


@compiled
def earliest_by_windows(
    first: Ints,
    wire: Ints,
    dense: Ints,
    copied: Floats,
    curve_bytes: Ints,
    curve_ns: Ints,
    target: float,
    max_bytes: int,
) -> Floats:
    """``earliest_on_lattice`` for one run and a curve that never falls, in time linear in gradients x points.

    With such a curve a longer prefix never ends before a shorter one. The last bucket of a prefix may begin
    at several places. Those from which its size lies on one line of the curve are a window, which moves along
    the run as prefixes grow. Of the buckets of a window that must wait for the link, the one with the least
    ``end - slope * bytes`` is best, which a sliding minimum keeps; of the others, the shortest. A place from
    which a bucket misses its deadline is dropped: a longer bucket from there misses it, too. Comparisons are
    in float64, so that a choice may be a nanosecond from the best.
    """
    places, sizes = first.size, curve_bytes.size
    slope = np.zeros(sizes + 1)
    low, high = np.zeros(sizes + 1, np.int64), np.full(sizes + 1, NEVER, np.int64)
    for k in range(sizes):
        high[k] = low[k + 1] = curve_bytes[k]
        if k:
            slope[k] = (curve_ns[k] - curve_ns[k - 1]) / (curve_bytes[k] - curve_bytes[k - 1])
    if sizes > 1:
        slope[sizes] = slope[sizes - 1]
    total = copied[places]
    waiting = np.empty((sizes + 1, places), np.int64)  # starts of buckets, a queue for each line
    head, tail = np.zeros(sizes + 1, np.int64), np.zeros(sizes + 1, np.int64)
    entering, leaving = np.zeros(sizes + 1, np.int64), np.zeros(sizes + 1, np.int64)
    ends = np.full(places + 1, np.inf)
    ends[0] = 0
    free = 0  # the last prefix that has been sent by the time the next bucket is ready
    oldest = 0  # the first gradient of the largest bucket that is small enough
    for stop in range(1, places + 1):
        ready = first[stop - 1]
        while free + 1 < stop and ends[free + 1] <= ready:
            free += 1
        while oldest < stop - 1 and dense[stop] - dense[oldest] > max_bytes:
            oldest += 1
        best, choice = np.inf, -1
        for k in range(sizes + 1):
            known = max(k - 1, 0)
            while entering[k] < stop and wire[stop] - wire[entering[k]] >= low[k]:
                at = entering[k]
                key = ends[at] - slope[k] * wire[at]
                while tail[k] > head[k]:
                    kept = waiting[k, tail[k] - 1]
                    if ends[kept] - slope[k] * wire[kept] < key:
                        break
                    tail[k] -= 1
                waiting[k, tail[k]] = at
                tail[k] += 1
                entering[k] += 1
            while leaving[k] < stop and wire[stop] - wire[leaving[k]] >= high[k]:
                leaving[k] += 1
            leaving[k] = max(leaving[k], oldest)
            at = min(free, entering[k] - 1)
            if at >= leaving[k]:
                end = ready + curve_ns[known] + slope[k] * (wire[stop] - wire[at] - curve_bytes[known])
                if end < best and end <= target - (total - copied[at]):
                    best, choice = end, at
            while tail[k] > head[k]:
                at = waiting[k, head[k]]
                if at > free and at >= leaving[k]:
                    size = wire[stop] - wire[at]
                    end = ends[at] + curve_ns[known] + slope[k] * (size - curve_bytes[known])
                    if end <= target - (total - copied[at]):
                        if end < best:
                            best, choice = end, at
                        break
                head[k] += 1
        if choice < 0:
            break  # what cannot be sent in time cannot be in any longer prefix either
        size = wire[stop] - wire[choice]
        ends[stop] = max(ends[choice], ready) + service(curve_bytes, curve_ns, size)
    return ends


@compiled
def merge(
    machine: Machine, tables: Tables, run_ends: Flags, closes: Flags, max_bytes: int, budget: int
) -> int:
    """Leave ends out of ``closes``, in place, while nothing is lost; at most ``budget`` are tried.

    Returns:
        The score, which is no more than it was.
    """
    here, _ = score(machine, tables, closes, max_bytes)
    merging = True
    while merging and budget > 0:  # what could not be merged may be once others are
        merging = False
        for place in range(closes.size):
            if run_ends[place] or not closes[place] or budget == 0:
                continue
            closes[place] = False
            end, _ = score(machine, tables, closes, max_bytes)
            budget -= 1
            if end <= here:
                here, merging = end, True
            else:
                closes[place] = True
    return here
