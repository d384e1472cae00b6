"""The best contiguous partition for any machine, and what is proved: exact, all tried, or climbed to."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from sim.clock.arrays import Flags
from sim.clock.machine_code import compiled
from sim.systems.cut import NO_LIMIT
from sim.tuner.exact import covers, exact_optimum, lower_bound_ns
from sim.tuner.problem import Buckets, Problem, Tables, score, score_all, tell

EXHAUSTIVE_PLACES = 15  # 32,768 partitions
CLIMBS = 2
_PLACES_PLAYED = 1_000_000  # by a climb: evaluations x gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best partition that was found, in launch order.

    No partition is synchronised before ``at_least_ns``; ``proof`` says in words how it is known.
    """

    buckets: Buckets
    sync_end_ns: int
    at_least_ns: int
    is_proved: bool
    proof: str


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
    tell("searching for the best buckets")
    pool = list(known)
    upper = min(map(problem.sync_end_ns, pool)) if problem.copies_out else NO_LIMIT  # without copies not used
    exact = exact_optimum(problem, upper)
    at_least = lower_bound_ns(problem) if exact is None else exact.at_least_ns
    is_exact = exact is not None and covers(problem)
    places = np.flatnonzero(~problem.run_ends)
    is_small = len(places) <= EXHAUSTIVE_PLACES
    if further is not None and not (problem.has_one_run and (is_exact or is_small)):
        pool = [*further(), *pool]
    if exact is not None:
        if is_exact and problem.has_one_run:  # none is sooner then, and one with more buckets is no better
            pool = [buckets for buckets in pool if len(buckets) <= len(exact.buckets)]
        pool.append(exact.buckets)

    def quality(buckets: Buckets) -> tuple[int, int]:
        return problem.sync_end_ns(buckets), len(buckets)

    best = min(pool, key=quality)
    if is_exact:
        proof = "exact search over all contiguous partitions"
    elif is_small:
        ends = score_all(problem.tables, places)
        tried = problem.run_ends.copy()
        tried[places] = np.argmin(ends) >> np.arange(len(places)) & 1
        best = min(best, problem.buckets(tried), key=quality)
        proof = f"all {len(ends)} contiguous partitions simulated"
    else:
        best = min(best, *_climb(problem, sorted(set(pool), key=quality)), key=quality)
        proof = "refined by simulation; not proved by search"
    closes = problem.closes(best)
    if closes is not None and not (exact is not None and is_exact and best is exact.buckets):
        merge(problem.tables, closes, _budget(problem))  # the exact search's are as long as can be
        best = min(problem.buckets(closes), best, key=quality)
    end = problem.sync_end_ns(best)
    is_proved = is_exact or is_small
    if not is_proved and end <= at_least:
        is_proved, proof = True, "meets the lower bound"
    return Optimum(
        buckets=best,
        sync_end_ns=end,
        at_least_ns=end if is_proved else min(at_least, end),
        is_proved=is_proved,
        proof=proof,
    )


def _budget(problem: Problem) -> int:
    """How many evaluations a climb may make."""
    return max(100, _PLACES_PLAYED // len(problem))


def _climb(problem: Problem, starts: Iterable[Buckets]) -> list[Buckets]:
    """Partitions climbed to from the first of ``starts`` that are contiguous, launched in ready order."""
    found: list[Buckets] = []
    for seed, start in enumerate(starts):
        closes = problem.closes(start)
        if closes is None or len(found) == CLIMBS:
            continue
        tell("improving buckets by simulation")
        climb(problem.tables, closes, _budget(problem), seed)
        found.append(problem.buckets(closes))
    return found


@compiled
def climb(tables: Tables, closes: Flags, budget: int, seed: int) -> tuple[int, int]:
    """Improve ``closes`` in place, then change ends at random and improve again, for ``budget`` evaluations.

    Moves: leave an end out (also where nothing is lost by it: fewer buckets), put one in, move one by 1, 2,
    3, 5 or 8 places to either side.

    Returns:
        The score reached, and the evaluations made.
    """
    np.random.seed(seed)
    places = closes.size
    best = score(tables, closes)
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
                end = score(tables, closes)
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
                    end = score(tables, closes)
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
            if not tables.run_ends[place]:
                closes[place] = not closes[place]
        here = score(tables, closes)
        spent += 1


@compiled
def merge(tables: Tables, closes: Flags, budget: int) -> int:
    """Leave ends out of ``closes``, in place, while nothing is lost; at most ``budget`` are tried.

    Returns:
        The score, which is no more than it was.
    """
    here = score(tables, closes)
    merging = True
    while merging and budget > 0:  # what could not be merged may be once others are
        merging = False
        for place in range(closes.size):
            if tables.run_ends[place] or not closes[place] or budget == 0:
                continue
            closes[place] = False
            end = score(tables, closes)
            budget -= 1
            if end <= here:
                here, merging = end, True
            else:
                closes[place] = True
    return here
