"""``sync_end_ns`` of many cap layouts at once."""

from dataclasses import dataclass

import numpy as np

from sim.clock.arrays import Ints
from sim.clock.machine_code import compiled
from sim.clock.sheet import Machine
from sim.tuner.progress import tell
from sim.tuner.reach.cap_layouts import Array, Walk, add_up, count_buckets
from sim.tuner.search import kernels
from sim.tuner.search.kernels import play_step
from sim.tuner.search.problem import Problem

MOST_BUCKETS = 1_000_000  # held in memory at a time
_PLAYED_AT_ONCE = 256  # layouts: some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutScores:
    """One entry a layout: ``sync_end_ns`` and ``num_buckets``."""

    sync_end_ns: Ints
    num_buckets: Ints


def score_layouts(problem: Problem, walk: Walk, firsts: Array, laters: Array) -> LayoutScores:
    """Score the layouts of the limits [firsts[k], laters[k]] in bytes.

    ``walk`` is over the gradients of ``problem``, all of which become ready.
    """
    counts = count_buckets(walk.sizes, walk.keys, walk.num_keys, firsts, laters)
    ends = np.empty(len(counts), np.int64)
    parts = np.cumsum(counts) // MOST_BUCKETS
    for part in np.unique(parts).tolist():
        rows = np.flatnonzero(parts == part)
        starts = np.concatenate(([0], np.cumsum(counts[rows])))
        stops, wires, back = add_up(
            walk.sizes,
            walk.keys,
            walk.num_keys,
            walk.places,
            walk.is_reversed,
            problem.wire,
            problem.copy_back,
            firsts[rows],
            laters[rows],
            starts,
        )
        services = kernels.services(problem.curve_bytes, problem.curve_ns, wires)
        small = problem.small(wires)
        for first in range(0, len(rows), _PLAYED_AT_ONCE):
            tell("comparing caps")
            some = rows[first : first + _PLAYED_AT_ONCE]
            ends[some] = _play_each(
                problem.machine,
                problem.work,
                problem.copy_in,
                problem.tail,
                starts[first : first + len(some) + 1],
                stops,
                services,
                small,
                back,
            )
    return LayoutScores(sync_end_ns=ends, num_buckets=counts)


@compiled
def _play_each(
    machine: Machine,
    work: Ints,
    copy_in: Ints,
    tail: int,
    bounds: Ints,
    stops: Ints,
    services: Ints,
    small: Ints,
    back: Ints,
) -> Ints:
    """``play_step`` of several layouts: that of k has the buckets ``bounds[k]`` to ``bounds[k + 1]``."""
    ends = np.empty(bounds.shape[0] - 1, np.int64)
    for k in range(ends.size):
        some = slice(bounds[k], bounds[k + 1])
        ends[k] = play_step(
            machine, work, copy_in, tail, stops[some], services[some], small[some], back[some]
        )
    return ends
