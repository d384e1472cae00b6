"""What each knob reaches: the best assignment of every family that a user or another system chooses from."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from sim.errors import InputError, NotModelledError
from sim.nouns.ddp_switches import Switches
from sim.systems.bucketing import DEFAULT_BUCKET_CAP_BYTES, DEFAULT_FIRST_BUCKET_BYTES
from sim.systems.cut import NO_LIMIT
from sim.systems.ddp_assignment import check_used
from sim.systems.registry import assign
from sim.systems.zero import STAGES
from sim.tuner.progress import tell
from sim.tuner.reach.cap_layouts import (
    Intervals,
    find_bounds,
    find_intervals,
    make_layout,
    make_walk,
    round_cap_mb,
    walk_of,
)
from sim.tuner.reach.cap_search import CapLimits, Search, best_pair
from sim.tuner.reach.layout_scores import LayoutScores, score_layouts
from sim.tuner.reach.megatron_family import BUCKET_SIZE, find_megatron
from sim.tuner.reach.size_reach import Reach, SizeReach
from sim.tuner.reach.unit_family import find_units
from sim.tuner.reach.zero_family import find_zero
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.problem import Problem
from sim.tuner.search.score import Scorer

DEFAULT = "default"
CAP = "bucket_cap_mb"
FIRST_AND_CAP = "first_bucket_mb+bucket_cap_mb"
LAST_CAP = "DDP_SET_LAST_BUCKET_CAP"
PER_PARAMETER = "per-parameter"
SINGLE = "single"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapRow:
    """One layout of ``bucket_cap_mb``: all caps from ``low_bytes`` to ``high_bytes`` make it.

    ``high_bytes`` is None if there is no end; ``cap_mb`` (MiB) is a round one of these caps. ``sync_end_ns``
    is exact, or off by a few ns if computing and communication slow each other down.
    """

    low_bytes: int
    high_bytes: int | None
    cap_mb: float
    num_buckets: int
    sync_end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """By name, what each family ``reached``, and why others are ``absent``; ``cap_rows`` by ascending cap."""

    reached: dict[str, Reach]
    absent: dict[str, str]
    cap_rows: tuple[CapRow, ...]


def default_buckets(problem: Problem) -> Buckets:
    """The buckets of ``assign`` without arguments; raises what ``assign`` raises."""
    if not problem.asked.switches:
        check_used(problem.asked, Switches())
    return make_layout(walk_of(problem), DEFAULT_FIRST_BUCKET_BYTES, DEFAULT_BUCKET_CAP_BYTES)


def find_families(scorer: Scorer) -> Families:
    """The best assignment of every family but free lists of buckets, for the scorer's workload and hardware.

    DDP's own knobs are compared by ``sync_end_ns``; of equal ones, fewer buckets are better. Those of other
    systems are compared by the whole step.

    Raises:
        InputError, NotModelledError: DDP does not train this workload as it is.
    """
    workload, hardware = scorer.problem.workload, scorer.problem.hardware
    found = find_ddp_families(scorer)
    others: dict[str, Callable[[], SizeReach]] = {
        **{
            f"{policy} reduce_bucket_size": partial(find_zero, workload, hardware, policy)
            for policy in STAGES
        },
        "fully_shard units": partial(find_units, workload, hardware),
        BUCKET_SIZE: partial(find_megatron, workload, hardware),
    }
    for name, find in others.items():
        try:
            found.reached[name] = find()
        except (InputError, NotModelledError) as error:
            found.absent[name] = str(error)
    return found


def find_ddp_families(scorer: Scorer) -> Families:
    """``find_families`` of DDP's own knobs alone; the search for the best assignment sets out from these."""
    tell("comparing caps")
    asked = scorer.problem.asked
    default = assign(asked)
    walk = make_walk(asked)
    intervals = find_intervals(walk)
    scores = score_layouts(scorer.problem, walk, intervals.low_bytes, intervals.low_bytes)
    search = Search(scorer=scorer, walk=walk)
    cap = search.best_scored(intervals.low_bytes, intervals.low_bytes, scores)
    reached = {
        DEFAULT: Reach(assignment=default, complete=True, how="DDP's own caps"),
        CAP: Reach(
            assignment=assign(asked, bucket_cap_mb=_show(intervals, cap.later_bytes)),
            complete=intervals.complete,
            how=_tell(intervals),
        ),
        FIRST_AND_CAP: _first_and_cap(search, intervals, cap),
        LAST_CAP: _last_cap(scorer),
        PER_PARAMETER: Reach(
            assignment=assign(asked, PER_PARAMETER), complete=True, how="one bucket per gradient"
        ),
        SINGLE: Reach(assignment=assign(asked, SINGLE), complete=True, how="one bucket per dtype and device"),
    }
    return Families(reached=reached, absent={}, cap_rows=_rows(intervals, scores))


def _first_and_cap(search: Search, intervals: Intervals, cap: CapLimits) -> Reach:
    """The best pair of first bucket and cap, or the one that coordinate descent finds."""
    best, complete, how = best_pair(search, intervals, cap)
    first_low, first_high, later_low, later_high = find_bounds(
        search.walk, best.first_bytes, best.later_bytes
    )
    caps = [round_cap_mb(first_low, first_high), round_cap_mb(later_low, later_high)]
    assignment = assign(search.scorer.problem.asked, bucket_cap_mb_list=caps)
    return Reach(assignment=assignment, complete=complete, how=how)


def _last_cap(scorer: Scorer) -> Reach:
    """The best cap, or DDP's default ones, if DDP cuts buckets from the last gradient on (A2.5)."""
    workload = scorer.problem.asked
    walk = make_walk(workload, set_last_bucket_cap=True)
    intervals = find_intervals(walk)
    firsts = np.append(intervals.low_bytes, DEFAULT_FIRST_BUCKET_BYTES)
    laters = np.append(intervals.low_bytes, DEFAULT_BUCKET_CAP_BYTES)
    best = Search(scorer=scorer, walk=walk).best(firsts, laters)
    is_default = best.first_bytes != best.later_bytes
    cap_mb = None if is_default else _show(intervals, best.later_bytes)
    return Reach(
        assignment=assign(workload, bucket_cap_mb=cap_mb, set_last_bucket_cap=True),
        complete=intervals.complete,
        how=f"{_tell(intervals)}, and DDP's own caps",
    )


def _show(intervals: Intervals, cap_bytes: int) -> float:
    """A round cap in MiB of the interval that begins at ``cap_bytes``."""
    at = int(np.searchsorted(intervals.low_bytes, cap_bytes))
    return round_cap_mb(cap_bytes, int(intervals.high_bytes[at]))


def _tell(intervals: Intervals) -> str:
    count = len(intervals.low_bytes)
    return f"all {count} layouts" if intervals.complete else f"{count} layouts on a logarithmic grid of caps"


def _rows(intervals: Intervals, scores: LayoutScores) -> tuple[CapRow, ...]:
    return tuple(
        CapRow(
            low_bytes=low,
            high_bytes=None if high == NO_LIMIT else high,
            cap_mb=round_cap_mb(low, high),
            num_buckets=count,
            sync_end_ns=end,
        )
        for low, high, count, end in zip(
            intervals.low_bytes.tolist(),
            intervals.high_bytes.tolist(),
            scores.num_buckets.tolist(),
            scores.sync_end_ns.tolist(),
            strict=True,
        )
    )
