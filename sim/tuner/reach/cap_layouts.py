"""Every layout that a bucket cap can make: caps in bytes, by intervals that cut alike (A1, A2).

A walk closes a bucket as soon as it holds the limit or more (A1.4). Whatever it decided under one cap it
decides under every cap above all sums that it left open and up to the least sum that it closed: an interval
of bytes. The next layout begins one byte above it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import numpy as np
from numpy.typing import NDArray

from sim.clock.machine_code import compiled
from sim.nouns.workload import Workload
from sim.systems.bucketing import DEFAULT_BUCKET_CAP_BYTES, rebuild_order
from sim.systems.cut import NO_LIMIT, PER_KEY, cut, limits_for, number_keys
from sim.systems.ddp_assignment import is_never_rebuilt
from sim.tuner.search.partitions import Buckets, gather
from sim.tuner.search.problem import Problem
from sim.units import MIB

Array = NDArray[np.int64]

WORK = 20_000_000  # tensors walked, in all layouts of one enumeration
FEWEST = 400  # layouts, however many tensors there are
ONE_LIMIT, LATER_LIMIT, FIRST_LIMIT = 0, 1, 2  # what an enumeration varies


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """The tensors as DDP's rebuild walks them, one entry a position (A2.4, A2.5, A8.1).

    ``order``: gradient indices; ``places``: theirs in the ready order, of unused ones first;
    ``sizes``: bytes; ``keys``: as ``cut`` takes them. ``is_reversed``: buckets are reversed afterwards, as
    with ``DDP_SET_LAST_BUCKET_CAP=1``, which walks from the last, and where the constructor's buckets stay.
    """

    order: Array
    places: Array
    sizes: Array
    keys: Array
    num_keys: int
    is_reversed: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervals:
    """Caps that cut alike: ``low_bytes[k]`` to ``high_bytes[k]``, both included, ascending; int64 each.

    ``complete``: they leave nothing out from 0 to ``NO_LIMIT``, and neighbours make different layouts.
    Otherwise there were too many and the intervals around caps on a logarithmic grid stand for all.
    """

    low_bytes: Array
    high_bytes: Array
    complete: bool


def make_walk(workload: Workload, set_last_bucket_cap: bool = False) -> Walk:
    """The walk of DDP's rebuild over the gradients of ``workload``, unused ones last.

    Where a search for unused parameters rules a rebuild out, that of its constructor, in parameter order
    (A2.2, A2.3).
    """
    unused = [gradient.index for gradient in workload.gradients if gradient.ready_ns is None]
    ready = (*reversed(unused), *workload.order())  # as DDP marks them (A3.13)
    is_static = is_never_rebuilt(workload.switches)
    order = tuple(range(len(ready))) if is_static else rebuild_order(workload, set_last_bucket_cap)
    gradients = [workload.gradients[index] for index in order]
    keys, num_keys = number_keys((gradient.key, gradient.sparse) for gradient in gradients)
    places = np.empty(len(ready), np.int64)
    places[list(ready)] = np.arange(len(ready))
    return Walk(
        order=np.array(order, dtype=np.int64),
        places=places[list(order)],
        sizes=np.array([gradient.num_bytes for gradient in gradients], dtype=np.int64),
        keys=np.array(keys, dtype=np.int64),
        num_keys=num_keys,
        is_reversed=set_last_bucket_cap or is_static,
    )


def walk_of(problem: Problem) -> Walk:
    """``make_walk`` of a workload without unused gradients; of one run the arrays are there already."""
    if not problem.has_one_run or problem.asked is not problem.workload:
        return make_walk(problem.asked)
    keys, places = problem.run, np.arange(len(problem))
    return Walk(
        order=problem.indices, places=places, sizes=problem.dense, keys=keys, num_keys=1, is_reversed=False
    )


_cut = compiled(cut)


@compiled
def enumerate_intervals(
    sizes: Array, keys: Array, num_keys: int, varied: int, fixed: int, grid: Array, lows: Array, highs: Array
) -> int:
    """Fill ``lows`` and ``highs`` with the intervals of one limit, ascending.

    ``varied``: ``ONE_LIMIT``, the limits are [cap]; ``LATER_LIMIT``, they are [fixed, cap]; ``FIRST_LIMIT``,
    they are [cap, fixed]. ``grid``: ascending caps in bytes, of which each one's interval is wanted; empty:
    all intervals. Neighbours that make the same layout are one interval (a last bucket may be closed or
    left over), except those of a first limit.

    Returns:
        How many there are, or -1 when they do not fit.
    """
    count = sizes.shape[0]
    limits = np.full(1 if varied == ONE_LIMIT else 2, fixed, np.int64)
    place = 1 if varied == LATER_LIMIT else 0
    bounds, opened = np.empty(2 * limits.shape[0], np.int64), np.empty(PER_KEY * num_keys, np.int64)
    emitted, layout, before = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    rows = at = 0
    cap = 0 if grid.shape[0] == 0 else grid[0]
    while True:
        limits[place] = cap
        _cut(sizes, keys, limits, layout, bounds, emitted, opened)
        low, high = bounds[2 * place], bounds[2 * place + 1]
        if rows and varied != FIRST_LIMIT and low == highs[rows - 1] + 1 and np.array_equal(layout, before):
            highs[rows - 1] = high
        else:
            if rows == lows.shape[0]:
                return -1
            lows[rows], highs[rows] = low, high
            rows += 1
            layout, before = before, layout
        if grid.shape[0] == 0:
            cap = high + 1
        else:
            while at < grid.shape[0] and grid[at] <= high:
                at += 1
            if at == grid.shape[0]:
                return rows
            cap = grid[at]
        if cap > NO_LIMIT:
            return rows


@compiled
def count_buckets(sizes: Array, keys: Array, num_keys: int, firsts: Array, laters: Array) -> Array:
    """How many buckets the limits [firsts[k], laters[k]] in bytes make, for each k."""
    count = sizes.shape[0]
    emitted, bucket_of = np.empty(count, np.int64), np.empty(count, np.int64)
    limits, bounds, opened = (
        np.empty(2, np.int64),
        np.empty(4, np.int64),
        np.empty(PER_KEY * num_keys, np.int64),
    )
    counts = np.empty(firsts.shape[0], np.int64)
    for row in range(firsts.shape[0]):
        limits[0], limits[1] = firsts[row], laters[row]
        counts[row] = _cut(sizes, keys, limits, bucket_of, bounds, emitted, opened)
    return counts


@compiled
def add_up(
    sizes: Array,
    keys: Array,
    num_keys: int,
    places: Array,
    is_reversed: bool,
    wire: Array,
    copy_back: Array,
    firsts: Array,
    laters: Array,
    starts: Array,
) -> tuple[Array, Array, Array]:
    """What ``problem.Problem.stops`` says of many layouts, one after another.

    Layout k, of the limits [firsts[k], laters[k]] in bytes, has the entries from ``starts[k]`` to ``starts[k
    + 1]``. ``wire``, ``copy_back``: of each place in the ready order, bytes and ns.

    Returns:
        Per bucket the last place that it waits for, its bytes on the wire, and ns to copy it back.
    """
    count = sizes.shape[0]
    emitted, bucket_of = np.empty(count, np.int64), np.empty(count, np.int64)
    limits, bounds, opened = (
        np.empty(2, np.int64),
        np.empty(4, np.int64),
        np.empty(PER_KEY * num_keys, np.int64),
    )
    stops = np.zeros(starts[-1], np.int64)
    wires, back = np.zeros(starts[-1], np.int64), np.zeros(starts[-1], np.int64)
    for row in range(firsts.shape[0]):
        start = starts[row]
        limits[0], limits[1] = firsts[row], laters[row]
        made = _cut(sizes, keys, limits, bucket_of, bounds, emitted, opened)
        for position in range(count):
            place, entry = places[position], start + bucket_of[position]
            if is_reversed:
                entry = start + made - 1 - bucket_of[position]
            stops[entry] = max(stops[entry], place)
            wires[entry] += wire[place]
            back[entry] += copy_back[place]
        for entry in range(start + 1, start + made):
            stops[entry] = max(stops[entry], stops[entry - 1])
    return stops, wires, back


def find_intervals(
    walk: Walk, varied: int = ONE_LIMIT, fixed_bytes: int = 0, most: int | None = None
) -> Intervals:
    """The intervals of one limit: see ``enumerate_intervals``; thinned out where they are more than ``most``.

    ``most`` (at least 3) is by default ``WORK`` over the number of tensors, but never less than ``FEWEST``.
    """
    limit = max(FEWEST, WORK // len(walk.sizes)) if most is None else most
    lows, highs = np.empty(limit, np.int64), np.empty(limit, np.int64)
    every = np.empty(0, np.int64)
    rows = enumerate_intervals(walk.sizes, walk.keys, walk.num_keys, varied, fixed_bytes, every, lows, highs)
    complete = rows >= 0
    if not complete:
        grid = _grid(walk, limit)
        rows = enumerate_intervals(
            walk.sizes, walk.keys, walk.num_keys, varied, fixed_bytes, grid, lows, highs
        )
    return Intervals(low_bytes=lows[:rows].copy(), high_bytes=highs[:rows].copy(), complete=complete)


def _grid(walk: Walk, count: int) -> Array:
    """At most ``count`` caps in bytes: none, without end, and evenly spaced on a logarithmic axis between."""
    total = int(walk.sizes.sum()) + 1
    between = np.geomspace(1, total, count - 2)
    return np.unique(np.concatenate(([0], between.astype(np.int64), [NO_LIMIT])))


def find_bounds(walk: Walk, first_bytes: int, later_bytes: int) -> tuple[int, int, int, int]:
    """The box of limits around [first, later] that cuts alike, in bytes: lowest and highest first, lowest and
    highest later one, each included."""
    bounds = _cut_once(walk, [first_bytes, later_bytes])[1]
    first_low, first_high, later_low, later_high = bounds.tolist()
    return first_low, first_high, later_low, later_high


def make_layout(walk: Walk, *limits: int) -> Buckets:
    """The buckets under these limits in bytes, as ``bucketing.rebuilt_buckets`` makes them."""
    buckets = gather(walk.order, _cut_once(walk, limits)[0])
    return buckets[::-1] if walk.is_reversed else buckets


def find_cap_list(problem: Problem, buckets: Buckets, sizes: Sequence[int]) -> list[float] | None:
    """``bucket_cap_mb_list`` that makes stock DDP (torch >= 2.11) rebuild these buckets, of ``sizes`` bytes.

    None where no list can: several dtypes or devices, buckets that are not
    contiguous in ready order, a bucket that ends in an empty tensor (B(i)).
    """
    walk = walk_of(problem)
    limits = limits_for(sizes[::-1] if walk.is_reversed else sizes)
    rebuilt = make_layout(walk, *limits)
    same = rebuilt == buckets or list(map(sorted, rebuilt)) == list(map(sorted, buckets))
    has_one_key = problem.has_one_run or len({gradient.key for gradient in problem.workload.gradients}) == 1
    return [limit / MIB for limit in limits] if same and has_one_key else None


def _cut_once(walk: Walk, limits: Sequence[int]) -> tuple[Array, Array]:
    """``bucket_of`` and ``bounds`` of ``cut``."""
    count = len(walk.sizes)
    bucket_of, emitted = np.empty(count, np.int64), np.empty(count, np.int64)
    bounds, opened = np.empty(2 * len(limits), np.int64), np.empty(PER_KEY * walk.num_keys, np.int64)
    _cut(walk.sizes, walk.keys, np.array(limits, np.int64), bucket_of, bounds, emitted, opened)
    return bucket_of, bounds


def round_cap_mb(low_bytes: int, high_bytes: int) -> float:
    """The roundest cap in MiB from ``low_bytes`` to ``high_bytes``: DDP's 25 if it lies between them.

    Not 0 if anything else does, which torch before 2.12 refuses.
    """
    if low_bytes <= DEFAULT_BUCKET_CAP_BYTES <= high_bytes:
        return DEFAULT_BUCKET_CAP_BYTES / MIB
    return find_roundest(low_bytes, high_bytes, MIB)


def find_roundest(low: int, high: int, unit: int) -> float:
    """The roundest x for which ``int(x * unit)`` is from ``low`` to ``high``; above 0 if anything there is.

    The least multiple of the largest of 1, 5, 10, 50 ... (times a power of ten) that lies between them; no
    ``high`` counts as twice ``low``. Multiples of 1 / 2**20 are exact, so that there is one.
    """
    low = max(low, min(1, high))
    high = min(high, 2 * low) if high >= NO_LIMIT else high
    if high == 0:
        return 0.0
    magnitude = floor(log10(high / unit))
    for exponent in range(magnitude, magnitude - 12, -1):
        for factor in (5, 1):
            times = max(1, ceil(low / unit / float(f"{factor}e{exponent}")))
            found = float(f"{times * factor}e{exponent}")
            if low <= int(found * unit) <= high:
                return found
    return low / unit
