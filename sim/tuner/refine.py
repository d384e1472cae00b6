"""Hill climbing over contiguous partitions, for machines that the exact search does not cover."""

from collections.abc import Iterable

from sim.nouns.workload import Workload
from sim.tuner.partitions import Buckets, cut, cut_places
from sim.tuner.score import Scorer

Cuts = frozenset[tuple[int, int]]
MAX_EVALUATIONS = 3000
_SURELY_NS = 1e-3


def _neighbours(cuts: Cuts, places: list[tuple[int, int]]) -> Iterable[Cuts]:
    """Merge two neighbours, move a boundary by one or two gradients, or split a bucket."""
    legal = set(places)
    for run, place in sorted(cuts):
        yield cuts - {(run, place)}
        for step in (-1, 1, -2, 2):
            moved = (run, place + step)
            if moved in legal and moved not in cuts:
                yield cuts - {(run, place)} | {moved}
    for split in places:
        if split not in cuts:
            yield cuts | {split}


def refine(
    workload: Workload, scorer: Scorer, starts: Iterable[Cuts], max_evaluations: int = MAX_EVALUATIONS
) -> Buckets:
    """The best partition found by climbing from each start, best first; never worse than any start.

    The climb compares rough scores; what it finds and the starts are compared to the ns.
    """
    places = cut_places(workload)
    budget = scorer.evaluations + max_evaluations

    def rough(cuts: Cuts) -> float:
        return scorer.rough_ns(cut(workload, cuts))

    def score(cuts: Cuts) -> int:
        return scorer.sync_end_ns(cut(workload, cuts))

    ranked = sorted(set(starts), key=lambda cuts: (score(cuts), len(cuts)))
    best = ranked[0]
    for start in ranked[:3]:
        here, improved = start, True
        while improved and scorer.evaluations < budget:
            improved = False
            for candidate in _neighbours(here, places):
                if rough(candidate) < rough(here) - _SURELY_NS:
                    here, improved = candidate, True
                    break
                if scorer.evaluations >= budget:
                    break
        if score(here) < score(best):
            best = here
    return cut(workload, best)
