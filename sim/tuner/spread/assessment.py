"""Candidates over a distribution of steps: all play the same draws, so that they differ by what they are."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.robust import Robust, RobustRow
from sim.nouns.workload import Workload
from sim.tuner.progress import tell
from sim.tuner.search.partitions import Buckets
from sim.tuner.spread.crossed import (
    Estimate,
    Steps,
    estimate_mean,
    noise_between_steps,
    percentile_95,
    resampled_p95,
)
from sim.tuner.spread.draws import Draws
from sim.tuner.spread.gain import NOTHING

LEVELS = (0.025, 0.975)

Optimise = Callable[[Workload, Hardware], Assignment]


class Pool(NamedTuple):
    """Candidates by name, of which ``default`` is DDP's and ``nominal`` the optimum of the nominal step."""

    candidates: Mapping[str, Assignment]
    default: str
    nominal: str


def widen(pool: Pool, draws: Draws, optimise: Optimise, count: int) -> Pool:
    """The pool and the optimum of each of ``count`` single draws, from the one with the shortest step to that
    with the longest: what is best for one machine and one iteration may be good for all of them. ``optimise``
    makes assignments for the nominal workload."""
    by_length = draws.sync_ends(pool.candidates[pool.default].bucket_indices, jitters=False).ravel().argsort()
    places = np.linspace(0, len(draws) - 1, count).round().astype(int)
    numbers = np.unique(by_length[places]).tolist()
    found = {f"best for drawn step {number}": optimise(*draws.one(number)) for number in numbers}
    known = {assignment.bucket_indices for assignment in pool.candidates.values()}
    new: dict[str, Assignment] = {}
    for name, assignment in found.items():
        if assignment.bucket_indices not in known:
            known.add(assignment.bucket_indices)
            new[name] = assignment
    return pool._replace(candidates={**pool.candidates, **new})


def assess(pool: Pool, draws: Draws, *, rest_ns: int) -> Robust:
    """How each candidate does over the draws, and the best by mean and by the 95th percentile.

    ``rest_ns`` is the nominal step without ``sync_end``. The nominal optimum is chosen unless another's step
    is shorter, mean or percentile, by more than 0.1 % and with 95 % confidence over the paired draws; then
    the shortest of those.
    """
    played: dict[Buckets, Steps] = {}
    for assignment in pool.candidates.values():
        if assignment.bucket_indices not in played:
            played[assignment.bucket_indices] = play_steps(draws, assignment, rest_ns)
    tables = {name: played[assignment.bucket_indices] for name, assignment in pool.candidates.items()}
    names, stacked = list(tables), np.stack([steps.played for steps in tables.values()])
    generator = np.random.default_rng(np.random.SeedSequence(draws.seed, spawn_key=(3,)))
    highest = percentile_95(stacked)
    resampled = resampled_p95(stacked, generator)
    default, nominal = tables[pool.default], names.index(pool.nominal)

    rows, mean_better, p95_better = [], {}, {}
    for at, (name, steps) in enumerate(tables.items()):
        mean, gain = estimate_mean(steps), estimate_mean(default.minus(steps))
        low, high = np.quantile(resampled[:, at], LEVELS)
        p95 = Estimate(highest[at], min(low, highest[at]), max(high, highest[at]))
        rows.append(_row(name, mean, p95, gain))
        ahead = estimate_mean(tables[pool.nominal].minus(steps))
        if ahead.low > 0 and ahead.value > NOTHING * mean.value:
            mean_better[name] = mean.value
        surely = np.quantile(resampled[:, nominal] - resampled[:, at], LEVELS[0]) > 0
        if surely and highest[nominal] - highest[at] > NOTHING * highest[at]:
            p95_better[name] = p95.value
    mean_choice = min(mean_better, key=mean_better.__getitem__, default=pool.nominal)
    p95_choice = min(p95_better, key=p95_better.__getitem__, default=pool.nominal)
    noise = noise_between_steps(default)
    return Robust(
        draws=len(draws),
        seed=draws.seed,
        calibrations=draws.machines,
        recorded_iterations=draws.recorded,
        noise_ns=None if noise is None else round(noise),
        rows=tuple(rows),
        mean_choice=mean_choice,
        by_mean=pool.candidates[mean_choice],
        p95_choice=p95_choice,
        by_p95=pool.candidates[p95_choice],
        not_known=draws.not_known,
        notes=draws.notes,
        rests_on=draws.rests_on,
    )


def play_steps(draws: Draws, assignment: Assignment, rest_ns: int) -> Steps:
    """The step in ns under every draw; ``rest_ns`` is the nominal step without ``sync_end``."""
    tell("playing steps as they vary")
    rest = (draws.paces * rest_ns).reshape(draws.machines, draws.iterations)
    played = draws.sync_ends(assignment.bucket_indices) + rest
    still = played if draws.luck is None else draws.sync_ends(assignment.bucket_indices, jitters=False) + rest
    return Steps(played, still, draws.is_ranged)


def _row(name: str, mean: Estimate, p95: Estimate, gain: Estimate) -> RobustRow:
    return RobustRow(
        name=name,
        mean_step_ns=round(mean.value),
        mean_low_ns=round(mean.low),
        mean_high_ns=round(mean.high),
        p95_step_ns=round(p95.value),
        p95_low_ns=round(p95.low),
        p95_high_ns=round(p95.high),
        gain_ns=round(gain.value),
        gain_low_ns=round(gain.low),
        gain_high_ns=round(gain.high),
    )
