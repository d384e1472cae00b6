"""The best limits of buckets: caps, and pairs of first bucket and cap, by scoring their layouts."""

from dataclasses import dataclass

import numpy as np

from sim.systems.bucketing import DEFAULT_BUCKET_CAP_BYTES, DEFAULT_FIRST_BUCKET_BYTES
from sim.tuner.reach.cap_layouts import (
    FIRST_LIMIT,
    LATER_LIMIT,
    Array,
    Intervals,
    Walk,
    find_intervals,
)
from sim.tuner.reach.layout_scores import LayoutScores, score_layouts
from sim.tuner.search.score import Scorer

PAIR_WORK = 50_000_000  # tensors walked, in all pairs of first bucket and cap
DESCENT_WORK = 5_000_000  # tensors walked, in one line of a coordinate descent
FEWEST = 100  # layouts of such a line, however many tensors there are


@dataclass(frozen=True, slots=True, kw_only=True)
class CapLimits:
    """Limits [first, later] in bytes and what they reach."""

    sync_end_ns: int
    num_buckets: int
    first_bytes: int
    later_bytes: int

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: of equal ends, fewer buckets."""
        return (self.sync_end_ns, self.num_buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Where the best limits are looked for."""

    scorer: Scorer
    walk: Walk

    def best(self, firsts: Array, laters: Array) -> CapLimits:
        """The best of the layouts of [firsts[k], laters[k]] in bytes."""
        return self.best_scored(firsts, laters, score_layouts(self.scorer.problem, self.walk, firsts, laters))

    def best_scored(self, firsts: Array, laters: Array, scores: LayoutScores) -> CapLimits:
        """As ``best``, with ``scores`` known."""
        row = np.lexsort((scores.num_buckets, scores.sync_end_ns))[0]
        return CapLimits(
            sync_end_ns=int(scores.sync_end_ns[row]),
            num_buckets=int(scores.num_buckets[row]),
            first_bytes=int(firsts[row]),
            later_bytes=int(laters[row]),
        )


def best_pair(search: Search, intervals: Intervals, cap: CapLimits) -> tuple[CapLimits, bool, str]:
    """The best limits [first, later]: of all, or by coordinate descent where they are too many.

    Args:
        search: where to look.
        intervals: those of a single cap; ``cap``: the best single cap.

    Returns:
        The limits, whether all were scored, and how many in words.
    """
    firsts = find_intervals(search.walk, FIRST_LIMIT)
    count = len(firsts.low_bytes) * len(intervals.low_bytes)  # about as many
    if firsts.complete and intervals.complete and count * len(search.walk.sizes) <= PAIR_WORK:
        lines = [find_intervals(search.walk, LATER_LIMIT, first) for first in firsts.low_bytes.tolist()]
        counts = [len(line.low_bytes) for line in lines]
        laters = np.concatenate([line.low_bytes for line in lines])
        best = search.best(np.repeat(firsts.low_bytes, counts), laters)
        complete = all(line.complete for line in lines)
        how = f"{'all ' if complete else ''}{sum(counts)} pairs of first bucket and cap"
        return best, complete, how
    best, scored = _descend(search, cap)
    return best, False, f"coordinate descent, {scored} pairs of first bucket and cap"


def _descend(search: Search, cap: CapLimits) -> tuple[CapLimits, int]:
    """The best limits by turns, and how many were scored: from DDP's default or the best single cap, the best
    first bucket for the cap and the best cap for the first bucket are taken in turns, until neither gains."""
    most = max(FEWEST, DESCENT_WORK // len(search.walk.sizes))
    default = np.array([DEFAULT_FIRST_BUCKET_BYTES]), np.array([DEFAULT_BUCKET_CAP_BYTES])
    best = min(search.best(*default), cap, key=lambda pair: pair.rank)
    scored, improves = 0, True
    while improves:
        before = best
        for varied in (FIRST_LIMIT, LATER_LIMIT):
            fixed = best.later_bytes if varied == FIRST_LIMIT else best.first_bytes
            line = find_intervals(search.walk, varied, fixed, most).low_bytes
            beside = np.full(len(line), fixed)
            found = search.best(*((line, beside) if varied == FIRST_LIMIT else (beside, line)))
            best = min(best, found, key=lambda pair: pair.rank)
            scored += len(line)
        improves = best.rank < before.rank
    return best, scored
