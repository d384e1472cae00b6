"""How sure a distribution is of itself: intervals that hold what they say, and none where they could not."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest

import sim
from sim.nouns.ranks import Ranks
from tests.clusters.test_ranks_theory import MS, ONE, compute, distribution, largest_of, wire
from tests.handmade import handmade


@pytest.mark.parametrize(
    ("ranks", "samples", "jobs"),
    [
        (Ranks(name="r", pace_jitter=0.1), 20, 2),
        pytest.param(Ranks(name="r", pace_spread=0.1), 100, 50, marks=pytest.mark.slow),
    ],
)
def test_intervals_hold_the_mean_as_often_as_they_say(ranks: Ranks, samples: int, jobs: int) -> None:
    """95 % of the seeds, less 4 binomial deviations; with two jobs Student's factor is 12.7, not 2."""
    mean, _ = largest_of(8, 0.1)
    told = [distribution(compute(), wire(8), ranks, samples, seed=seed) for seed in range(60)]
    assert {one.jobs for one in told} == {jobs}
    held = sum(
        one.mean_low_ns <= mean * 100 * MS <= one.mean_high_ns
        for one in told
        if one.mean_low_ns is not None and one.mean_high_ns is not None
    )
    assert held >= 57 - 4 * (60 * 0.95 * 0.05) ** 0.5


@pytest.mark.parametrize("probability", [1e-4, pytest.param(1e-3, marks=pytest.mark.slow), 0.05])
def test_few_stalls_make_no_interval(probability: float) -> None:
    """A step of eight ranks has one with chance 1 - (1 - p)**8: 0.8, 8 and 337 are expected in 1,000."""
    ranks = Ranks(name="r", stall_probability=probability, stall_ns=1000 * MS)
    told = distribution(compute(), wire(8), ranks, 1000)
    stalled = round((told.mean_step_ns - 100 * MS) / MS)
    notes = [line for line in told.notes if "too few for an interval" in line]
    assert (told.mean_low_ns is None) == (told.mean_high_ns is None) == (stalled < 20) == bool(notes)
    assert stalled == pytest.approx(
        1000 * (1 - (1 - probability) ** 8), abs=4 * (8000 * probability) ** 0.5 + 1
    )
    assert all(line.startswith(f"{stalled} steps with a stall in all") for line in notes)
    both = {"one": ONE, "other": ONE}
    row = sim.compare_assignments(compute(), wire(8), both, ranks, samples=1000).rows[1]
    assert (row.gain_low_ns is None) == bool(notes)


def test_recorded_iterations_are_not_what_intervals_are_about() -> None:
    workload = compute(samples=((100 * MS,), (160 * MS,)))
    notes = distribution(workload, wire(2), Ranks(name="r"), 30).notes
    assert any("no more than 2 iterations were recorded" in line for line in notes)


def test_quantiles_of_the_lottery_rest_on_many_lotteries() -> None:
    """The largest of 8 is below q with probability F(q)**8; binomial error of as many draws as jobs."""
    told = distribution(compute(), wire(8), Ranks(name="r", pace_spread=0.1), 2000, seed=3)
    assert told.jobs == 1000
    for share in (0.5, 0.95, 0.99):
        found = told.quantiles_ns[round(100 * share)] / (100 * MS)
        below = NormalDist().cdf(float(np.log(found) + 0.005) / 0.1) ** 8
        assert below == pytest.approx(share, abs=4 * (share * (1 - share) / told.jobs) ** 0.5 + 1 / told.jobs)


def deviation(quantiles_ns: tuple[int, ...]) -> float:
    """The standard deviation of a distribution of which these quantiles are known."""
    middles = (np.array(quantiles_ns[1:]) + np.array(quantiles_ns[:-1])) / 2
    return float(middles.std())


UNIFORM = {"count": 50, "p10_ns": 8 * MS, "median_ns": 10 * MS, "p90_ns": 12 * MS, "quantile": "median"}


def test_micro_batches_have_luck_of_their_own() -> None:
    """The sum of eight all-reduces scatters by the root of eight of what one does, not by eight."""
    hardware = wire(2, 10 * MS, spread={"all_reduce": {"0": UNIFORM}})
    one, eight = (
        sim.step_distribution(
            compute(), hardware, sim.assign(compute(), **options), Ranks(name="r"), samples=1000
        )
        for options in ({}, {"accumulation_steps": 8, "no_sync": False})
    )
    assert deviation(eight.quantiles_ns) / deviation(one.quantiles_ns) == pytest.approx(8**0.5, rel=0.1)


def test_buckets_have_luck_of_their_own() -> None:
    """Two all-reduces, one behind the other, scatter by the root of two of what one does."""
    workload = handmade([2 * MS, MS])
    hardware = wire(2, 10 * MS, spread={"all_reduce": {"0": UNIFORM}})
    one, two = (
        sim.step_distribution(
            workload, hardware, replace(ONE, bucket_indices=buckets), Ranks(name="r"), samples=2000
        )
        for buckets in (((1, 0),), ((1,), (0,)))
    )
    assert deviation(two.quantiles_ns) / deviation(one.quantiles_ns) == pytest.approx(2**0.5, rel=0.1)


def test_each_micro_batch_draws_a_recorded_iteration() -> None:
    """Of four backwards k take 60 ms more: binomial, so that all five sums come up in 401 steps."""
    workload = compute(samples=((100 * MS,), (160 * MS,)))
    assignment = sim.assign(workload, accumulation_steps=4)
    told = sim.step_distribution(workload, wire(1), assignment, Ranks(name="r"), samples=401)
    assert set(told.quantiles_ns) == {(400 + 60 * k) * MS for k in range(5)}
    assert told.mean_step_ns == pytest.approx(520 * MS, abs=4 * 60 * MS / 401**0.5)
