"""Programmes over prefixes of gradients, as machine code: the earliest time by which each can be sent."""

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.machine_code import compiled
from sim.tuner.search.kernels import DOUBT_NS, NEVER, rise_beyond, service


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
    rise, run = rise_beyond(curve_bytes, curve_ns)
    slope[sizes] = rise / run
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
        if abs(best - np.floor(best) - 0.5) < DOUBT_NS:  # a half is rounded to either side
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
    rise, run = rise_beyond(curve_bytes, curve_ns)
    slope[sizes] = rise / run
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
