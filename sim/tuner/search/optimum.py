"""The best contiguous partition for any machine, and what is proved about it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.systems.cut import NO_LIMIT
from sim.tuner.progress import tell
from sim.tuner.search import climbing, kernels
from sim.tuner.search.bound import lower_bound_ns
from sim.tuner.search.exact import Found, covers, exact_optimum
from sim.tuner.search.partitions import Buckets
from sim.tuner.search.score import Scorer

EXHAUSTIVE_PLACES = 15  # 32,768 partitions
CLIMBS = 3
_PLACES_PLAYED = 1_000_000  # by a climb: evaluations x gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimum:
    """The best partition that was found, in launch order.

    No partition is synchronised before ``at_least_ns``, of which ``free_at_least_ns`` is known without a
    search; ``proof`` says in words how.
    """

    buckets: Buckets
    sync_end_ns: int
    at_least_ns: int
    free_at_least_ns: int
    is_proved: bool
    proof: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """The best partition of a search, and how it is known.

    ``is_merged``: no two neighbours among its buckets can be merged without loss.
    """

    buckets: Buckets
    proof: str
    is_proved: bool
    is_merged: bool = False


def find_optimum(
    scorer: Scorer,
    known: Iterable[Buckets],
    effort: float = 1.0,
    further: Callable[[], Iterable[Buckets]] | None = None,
) -> Optimum:
    """The best partition that is contiguous in ready order within each dtype and device.

    Args:
        scorer: of the workload on the machine.
        known: such partitions, one at least; the answer is never worse than any.
        effort: how much is played where nothing can be proved; 1 is some 0.1 s.
        further: what else is known and takes long to find. It is asked for where the search does not prove
            its answer without it, and where gradients have several dtypes or devices, whose buckets it may
            launch in another order than the search does. The answer is then no worse than any of it either.
    """
    tell("searching for the best buckets")
    problem = scorer.problem
    pool = list(known)
    upper = min(map(scorer.sync_end_ns, pool)) if problem.copies_out else NO_LIMIT  # without copies not used
    exact = exact_optimum(problem, upper)
    free = lower_bound_ns(problem) if exact is None else exact.free_at_least_ns
    at_least = free if exact is None else exact.at_least_ns
    answer = _prove(scorer, pool, exact) if further is None or problem.has_one_run else None
    if further is not None and (answer is None or not answer.is_proved):
        pool = [*further(), *pool]
        answer = _prove(scorer, pool, exact)
    if answer is None:
        tried = pool if exact is None else [*pool, exact.buckets]
        climbed = _best(scorer, [_best(scorer, tried), *_climb(scorer, tried, effort)])
        answer = _Answer(
            buckets=climbed, proof="refined by simulation; not proved by search", is_proved=False
        )
    best, is_proved, proof = answer.buckets, answer.is_proved, answer.proof
    if not answer.is_merged:
        best = _fewest(scorer, best)
    end = scorer.sync_end_ns(best)
    if is_proved:
        at_least = end
    elif end <= at_least:
        is_proved, proof = True, "meets the lower bound"
    at_least = min(at_least, end)
    return Optimum(
        buckets=best,
        sync_end_ns=end,
        at_least_ns=at_least,
        free_at_least_ns=min(free, at_least),
        is_proved=is_proved,
        proof=proof,
    )


def _prove(scorer: Scorer, known: list[Buckets], exact: Found | None) -> _Answer | None:
    """The best of ``known`` and of a search that can be exact; None where no such search fits."""
    problem = scorer.problem
    if exact is not None and covers(problem):
        if problem.has_one_run:  # none is sooner then, and one with more buckets is no better
            known = [buckets for buckets in known if len(buckets) <= len(exact.buckets)]
        best = _best(scorer, [*known, exact.buckets])
        return _Answer(
            buckets=best,
            proof="exact search over all contiguous partitions",
            is_proved=True,
            is_merged=best is exact.buckets,  # each as long as what follows lets it be
        )
    if int((~problem.run_ends()).sum()) <= EXHAUSTIVE_PLACES:
        best = _best(scorer, known if exact is None else [*known, exact.buckets])
        best, count = _try_all(scorer, best)
        return _Answer(buckets=best, proof=f"all {count} contiguous partitions simulated", is_proved=True)
    return None


def _best(scorer: Scorer, pool: Iterable[Buckets]) -> Buckets:
    return min(pool, key=lambda buckets: (scorer.sync_end_ns(buckets), len(buckets)))


def _try_all(scorer: Scorer, best: Buckets) -> tuple[Buckets, int]:
    """The best of ``best`` and all partitions, and how many there are."""
    problem = scorer.problem
    closes, places = problem.run_ends(), np.flatnonzero(~problem.run_ends())
    ends = kernels.score_all(problem.machine, problem.tables, problem.run_ends(), places)
    number = int(np.argmin(ends))
    closes[places] = [bool(number >> bit & 1) for bit in range(len(places))]
    return _best(scorer, [best, problem.buckets(closes)]), len(ends)


def _climb(scorer: Scorer, pool: Iterable[Buckets], effort: float) -> list[Buckets]:
    """Partitions climbed to from the best of ``pool`` that are contiguous, launched in ready order."""
    problem = scorer.problem
    starts = sorted(set(pool), key=lambda buckets: (scorer.sync_end_ns(buckets), len(buckets)))
    found: list[Buckets] = []
    for seed, start in enumerate(starts):
        closes = problem.closes(start)
        if closes is None or len(found) == CLIMBS:
            continue
        tell("improving buckets by simulation")
        budget = max(100, int(_PLACES_PLAYED * effort) // len(problem))
        climbing.climb(problem.machine, problem.tables, problem.run_ends(), closes, budget, seed)
        found.append(problem.buckets(closes))
    return found


def _fewest(scorer: Scorer, best: Buckets) -> Buckets:
    """As few buckets as give the same ``sync_end_ns``: neighbours merged while nothing is lost."""
    problem = scorer.problem
    closes: NDArray[np.bool_] | None = problem.closes(best)
    if closes is None:
        return best
    budget = max(100, _PLACES_PLAYED // len(problem))
    climbing.merge(problem.machine, problem.tables, problem.run_ends(), closes, budget)
    return _best(scorer, [problem.buckets(closes), best])
