"""Searches among partitions that better one step by step, as machine code: by their scores alone."""

import numpy as np

from sim.clock.arrays import Flags
from sim.clock.machine_code import compiled
from sim.clock.program import Machine
from sim.tuner.search.kernels import score
from sim.tuner.search.problem import Tables


@compiled
def climb(
    machine: Machine, tables: Tables, run_ends: Flags, closes: Flags, budget: int, seed: int
) -> tuple[int, int]:
    """Improve ``closes`` in place, then change ends at random and improve again, for ``budget`` evaluations.

    Moves: leave an end out (also where nothing is lost by it: fewer buckets), put one in, move one by 1, 2,
    3, 5 or 8 places to either side.

    Returns:
        The score reached, and the evaluations made.
    """
    np.random.seed(seed)
    places = closes.size
    best = score(machine, tables, closes)
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
                end = score(machine, tables, closes)
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
                    end = score(machine, tables, closes)
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
        here = score(machine, tables, closes)
        spent += 1


@compiled
def merge(machine: Machine, tables: Tables, run_ends: Flags, closes: Flags, budget: int) -> int:
    """Leave ends out of ``closes``, in place, while nothing is lost; at most ``budget`` are tried.

    Returns:
        The score, which is no more than it was.
    """
    here = score(machine, tables, closes)
    merging = True
    while merging and budget > 0:  # what could not be merged may be once others are
        merging = False
        for place in range(closes.size):
            if run_ends[place] or not closes[place] or budget == 0:
                continue
            closes[place] = False
            end = score(machine, tables, closes)
            budget -= 1
            if end <= here:
                here, merging = end, True
            else:
                closes[place] = True
    return here
