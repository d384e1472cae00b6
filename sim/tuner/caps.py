"""The curve of caps: every layout that one ``bucket_cap_mb`` can make, by intervals that cut alike (A1, A2).

A walk closes a bucket as soon as it holds the limit or more (A1.4). Whatever it decided under one cap it
decides under every cap above all sums that it left open and up to the least sum that it closed: an interval
of bytes. The next layout begins one byte above it. The first row is that of one bucket a gradient, the last
that of one bucket for each dtype and device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import NamedTuple

import numpy as np

from sim.clock.arrays import Flags, Ints
from sim.clock.machine_code import compiled
from sim.errors import NotModelledError
from sim.nouns.ddp_switches import DEFAULT_BUCKET_CAP_BYTES
from sim.systems.cut import NO_LIMIT, PER_KEY, cut, number_keys
from sim.systems.ddp_assignment import rebuild_order
from sim.tuner.problem import PLAYED_AT_ONCE, Problem, play_layouts
from sim.units import MIB, cap_bytes

WORK = 20_000_000  # tensors walked, in all layouts of one enumeration
FEWEST = 400  # layouts, however many tensors there are


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CapCurve:
    """Caps that cut alike: ``low_bytes[k]`` to ``high_bytes[k]``, both included, ascending; the
    ``num_buckets`` of their layout, and the step with it on one machine, ``steps_ns``; int64 each.

    ``complete``: they leave nothing out from 0 to ``NO_LIMIT``, and neighbours make different layouts.
    Otherwise they are single caps: those that were asked for, or round ones where there were too many.
    """

    low_bytes: Ints
    high_bytes: Ints
    complete: bool
    num_buckets: Ints
    steps_ns: Ints

    @property
    def best(self) -> int:
        """The row of the shortest step; of equal ones that of fewer buckets."""
        return int(np.lexsort((self.num_buckets, self.steps_ns))[0])

    @property
    def best_mb(self) -> float:
        """A round cap (MiB) of the best row."""
        return self.cap_mb(self.best)

    @property
    def best_ns(self) -> int:
        """The step of the best row."""
        return int(self.steps_ns.min())

    def regret_ns(self, cap_mb: float) -> int:
        """What a cap (MiB) loses against the best one."""
        at = int(np.searchsorted(self.low_bytes, cap_bytes(cap_mb), side="right")) - 1
        return int(self.steps_ns[at]) - self.best_ns

    @property
    def how(self) -> str:
        """What was tried, in words."""
        count = len(self.low_bytes)
        return f"all {count} layouts" if self.complete else f"{count} caps on a logarithmic grid"

    def cap_mb(self, at: int) -> float:
        """A round cap (MiB) of row ``at``."""
        return round_cap_mb(int(self.low_bytes[at]), int(self.high_bytes[at]))

    def stretches(self, good: Flags) -> list[tuple[int, int]]:
        """Unbroken stretches of good rows: the first and the last row of each."""
        edges = np.flatnonzero(np.diff(good.astype(np.int8), prepend=0, append=0)).tolist()
        return [(first, stop - 1) for first, stop in zip(edges[::2], edges[1::2], strict=True)]


def cap_curve(problem: Problem, caps_bytes: Sequence[int] | None = None) -> CapCurve:
    """The curve of caps on one machine: all of them, or a row for each of the ascending ``caps_bytes``.

    Of all there are at most ``WORK`` over the number of tensors, or ``FEWEST``; of more a grid of these.
    """
    walk, complete = _walk(problem), False
    if caps_bytes is None:
        lows, highs = np.empty((2, max(FEWEST, WORK // len(walk.sizes))), np.int64)
        rows = enumerate_intervals(walk, lows, highs)
        lows, highs, complete = lows[:rows], highs[:rows], rows >= 0
    if not complete:
        if caps_bytes is None:  # none, without end, and between them a logarithmic grid of two digits in MiB
            between = np.geomspace(1, int(walk.sizes.sum()) + 1, FEWEST - 2) / MIB
            caps_bytes = sorted({0, *(cap_bytes(float(f"{cap:.1e}")) for cap in between), NO_LIMIT})
        lows = highs = np.array(caps_bytes, dtype=np.int64)
    counts, ends = np.empty((2, len(lows)), np.int64)
    for first in range(0, len(counts), PLAYED_AT_ONCE):
        problem.tell("comparing caps")
        some = slice(first, first + PLAYED_AT_ONCE)
        ends[some] = play_layouts(problem.tables, cut_at(walk, lows[some], counts[some]))
    steps = problem.times * ends + problem.rest_ns
    return CapCurve(low_bytes=lows, high_bytes=highs, complete=complete, num_buckets=counts, steps_ns=steps)


class Walk(NamedTuple):
    """The tensors as DDP's rebuild walks them, one entry a position (A2.4, A8.1).

    ``places``: theirs in the ready order; ``sizes``: bytes; ``keys``: as ``cut`` takes them. ``is_reversed``:
    buckets are reversed afterwards, as where the constructor's buckets stay.
    """

    places: Ints
    sizes: Ints
    keys: Ints
    num_keys: int
    is_reversed: bool


def _walk(problem: Problem) -> Walk:
    """The walk of DDP's rebuild. Where a search for unused parameters rules a rebuild out, that of its
    constructor, in parameter order (A2.2, A2.3)."""
    if problem.switches.optimize_ddp == "ddp_optimizer" and problem.switches.compile_cap_mb is None:
        raise NotModelledError(
            "optimize_ddp=ddp_optimizer: each bucket_cap_mb makes other cuts, and so other ready times; give "
            "compile_cap_mb, or sweep caps"
        )
    workload, is_static = problem.workload, problem.switches.rebuilt_from is None
    order = list(range(len(workload.gradients)) if is_static else rebuild_order(workload))
    gradients = [workload.gradients[index] for index in order]
    keys, num_keys = number_keys((gradient.key, gradient.sparse) for gradient in gradients)
    sizes = np.array([gradient.num_bytes for gradient in gradients], dtype=np.int64)
    return Walk(problem.place[order], sizes, np.array(keys, dtype=np.int64), num_keys, is_static)


_cut = compiled(cut)


@compiled
def enumerate_intervals(walk: Walk, lows: Ints, highs: Ints) -> int:
    """Fill ``lows`` and ``highs`` with the intervals of a cap, ascending; how many there are, or -1 when they
    do not fit. Neighbours that make the same layout are one (a last bucket may be closed or left over)."""
    count = walk.sizes.size
    limits, bounds = np.zeros(1, np.int64), np.empty(2, np.int64)
    opened, emitted = np.empty(PER_KEY * walk.num_keys, np.int64), np.empty(count, np.int64)
    layout, before = np.empty(count, np.int64), np.empty(count, np.int64)
    rows = 0
    while limits[0] <= NO_LIMIT:
        _cut(walk.sizes, walk.keys, limits, layout, bounds, emitted, opened)
        if rows and np.array_equal(layout, before):
            highs[rows - 1] = bounds[1]
        elif rows == lows.shape[0]:
            return -1
        else:
            lows[rows], highs[rows] = bounds[0], bounds[1]
            rows += 1
            layout, before = before, layout
        limits[0] = bounds[1] + 1
    return rows


@compiled
def cut_at(walk: Walk, caps: Ints, counts: Ints) -> Ints:
    """The bucket of each place under each of ``caps`` (bytes), [caps, places]; fills ``counts`` (buckets)."""
    count = walk.sizes.size
    limits, bounds = np.empty(1, np.int64), np.empty(2, np.int64)
    opened, emitted = np.empty(PER_KEY * walk.num_keys, np.int64), np.empty(count, np.int64)
    walked, bucket_of = np.empty(count, np.int64), np.empty((caps.size, count), np.int64)
    for row in range(caps.size):
        limits[0] = caps[row]
        made = counts[row] = _cut(walk.sizes, walk.keys, limits, walked, bounds, emitted, opened)
        for position in range(count):
            bucket = walked[position]
            bucket_of[row, walk.places[position]] = made - 1 - bucket if walk.is_reversed else bucket
    return bucket_of


def round_cap_mb(low_bytes: int, high_bytes: int) -> float:
    """The roundest cap in MiB from ``low_bytes`` to ``high_bytes``: DDP's 25 if it lies between them.

    Else the least multiple of the largest of 1, 5, 10, 50 ... (times a power of ten) that does; no end counts
    as twice ``low_bytes``. Not 0 if anything else does, which torch before 2.12 refuses. Multiples of
    1 / 2**20 are exact, so that there is one.
    """
    if low_bytes <= DEFAULT_BUCKET_CAP_BYTES <= high_bytes:
        return DEFAULT_BUCKET_CAP_BYTES / MIB
    low = max(low_bytes, min(1, high_bytes))
    high = min(high_bytes, 2 * low) if high_bytes >= NO_LIMIT else high_bytes
    if high == 0:
        return 0.0
    magnitude = floor(log10(high / MIB))
    for exponent in range(magnitude, magnitude - 12, -1):
        for factor in (5, 1):
            times = max(1, ceil(low / MIB / float(f"{factor}e{exponent}")))
            found = float(f"{times * factor}e{exponent}")
            if low <= int(found * MIB) <= high:
                return found
    return low / MIB
