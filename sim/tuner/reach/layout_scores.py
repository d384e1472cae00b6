"""``sync_end_ns`` of many cap layouts at once."""

from dataclasses import dataclass

import numpy as np

from sim.clock.arrays import Flags, Floats, Ints
from sim.clock.machine_code import compiled
from sim.tuner.progress import tell
from sim.tuner.reach.cap_layouts import Array, Walk, add_up, count_buckets
from sim.tuner.search import kernels
from sim.tuner.search.kernels import play_surely
from sim.tuner.search.problem import Machine, Problem

MOST_BUCKETS = 1_000_000  # held in memory at a time
_PLAYED_AT_ONCE = 256  # layouts: some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutScores:
    """One entry a layout: ``sync_end_ns``; ``sure``: whether that is to the ns, or only within a few ns, as
    may be where work stretches; ``num_buckets``."""

    sync_end_ns: Ints
    sure: Flags
    num_buckets: Ints


def score_layouts(problem: Problem, walk: Walk, firsts: Array, laters: Array) -> LayoutScores:
    """Score the layouts of the limits [firsts[k], laters[k]] in bytes.

    ``walk`` is over the gradients of ``problem``, all of which become ready.
    """
    counts = count_buckets(walk.sizes, walk.keys, walk.num_keys, firsts, laters)
    ends, sure = np.empty(len(counts), np.int64), np.empty(len(counts), np.bool_)
    parts = np.cumsum(counts) // MOST_BUCKETS
    for part in np.unique(parts).tolist():
        rows = np.flatnonzero(parts == part)
        starts = np.concatenate(([0], np.cumsum(counts[rows])))
        stops, wires, copied = add_up(
            walk.sizes,
            walk.keys,
            walk.num_keys,
            walk.places,
            walk.is_reversed,
            problem.wire,
            problem.copied,
            firsts[rows],
            laters[rows],
            starts,
        )
        services = kernels.services(problem.curve_bytes, problem.curve_ns, wires)
        small = problem.small(wires)
        sizes, which = np.unique(copied, return_inverse=True)  # one size is in many layouts
        back = problem.copies_back(sizes)[which]
        for first in range(0, len(rows), _PLAYED_AT_ONCE):
            tell("comparing caps")
            some = rows[first : first + _PLAYED_AT_ONCE]
            bounds = starts[first : first + len(some) + 1]
            ends[some], sure[some] = _play_each(
                problem.machine,
                problem.grains,
                problem.work,
                problem.copy_in,
                problem.tail,
                bounds,
                stops,
                services,
                small,
                back,
            )
    return LayoutScores(sync_end_ns=ends, sure=sure, num_buckets=counts)


@compiled
def _play_each(
    machine: Machine,
    grains: Floats,
    work: Ints,
    copy_in: Ints,
    tail: int,
    bounds: Ints,
    stops: Ints,
    services: Ints,
    small: Ints,
    back: Ints,
) -> tuple[Ints, Flags]:
    """``play_surely`` of several layouts: that of k has the buckets ``bounds[k]`` to ``bounds[k + 1]``."""
    count = bounds.shape[0] - 1
    ends, sure = np.empty(count, np.int64), np.empty(count, np.bool_)
    for k in range(count):
        low, high = bounds[k], bounds[k + 1]
        ends[k], sure[k] = play_surely(
            machine,
            grains,
            work,
            copy_in,
            tail,
            stops[low:high],
            services[low:high],
            small[low:high],
            back[low:high],
        )
    return ends, sure
