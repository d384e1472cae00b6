"""Distributions against what probability and algebra say of them, with tolerances from theory."""

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import sim
from sim.clusters import distribution as job
from sim.clusters.distribution import StepDistribution
from sim.clusters.ranks import Ranks, SlowRanks
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired
from tests.machines import machine, model

MS = 1_000_000
ONE = Assignment(bucket_indices=((0,),))
_OF_A_SIZE = {"count": 50, "p10_ns": 8 * MS, "median_ns": 10 * MS, "p90_ns": 12 * MS, "quantile": "median"}
UNIFORM = {"all_reduce": {"0": _OF_A_SIZE}}


def compute(backward_ns: int = 100 * MS, **more: Any) -> Workload:
    """One gradient, ready when backward ends: nothing of its all-reduce is hidden."""
    return handmade([backward_ns], **more)


def wire(world_size: int, service_ns: int = 0, **more: Any) -> Hardware:
    return wired({0: service_ns}, world_size=world_size, **more)


def distribution(
    workload: Workload, hardware: Hardware, ranks: Ranks, samples: int, **more: Any
) -> StepDistribution:
    return sim.step_distribution(workload, hardware, ONE, ranks, samples=samples, **more)


def largest_of(count: int, sigma: float) -> tuple[float, float]:
    """Mean and standard deviation of the largest of ``count`` lognormal factors of mean 1, by quadrature."""
    z = np.linspace(-9, 9, 200_001)
    below = np.cumsum(np.exp(-z * z / 2))
    weights = np.diff((below / below[-1]) ** count)
    paces = np.exp(sigma * (z[1:] + z[:-1]) / 2 - sigma**2 / 2)
    mean = float((weights * paces).sum())
    return mean, float((weights * (paces - mean) ** 2).sum()) ** 0.5


@pytest.mark.parametrize(("count", "sigma"), [(1, 0.1), (2, 0.3), (8, 0.05), (64, 0.1), (256, 0.02)])
def test_a_step_lasts_as_long_as_the_slowest_of_its_ranks(count: int, sigma: float) -> None:
    """Its mean is that of the largest order statistic; 4 standard errors by theory."""
    samples = 2000
    mean, deviation = largest_of(count, sigma)
    told = distribution(compute(), wire(count), Ranks(name="r", pace_jitter=sigma), samples)
    error = 4 * deviation / samples**0.5
    assert told.mean_step_ns / (100 * MS) == pytest.approx(mean, abs=error)
    assert told.slowest_cost_ns / (100 * MS) == pytest.approx(mean - 1, abs=error)


def test_one_slow_rank_lengthens_all_that_is_computed_and_nothing_else() -> None:
    """Forward 30, loss 1, backward 100, wire 7, optimizer 10: at pace 1.2 all but the wire is 1.2 times."""
    workload = compute(forward_ns=30 * MS, loss_ns=MS, optimizer_ns=10 * MS)
    ranks = Ranks(name="r", slow=(SlowRanks(first=2, pace=1.2),))
    told = distribution(workload, wire(4, 7 * MS), ranks, 40)
    assert told.nominal_step_ns == 148 * MS
    assert set(told.quantiles_ns) == {round(141 * 1.2 * MS) + 7 * MS}
    assert told.slowest_cost_ns == round(141 * 0.2 * MS)
    slow, others = told.parts
    assert (slow.first, slow.count, slow.last_share, slow.waited_ns) == (2, 1, 1.0, 0)
    assert slow.pace == pytest.approx(1.2)
    assert (others.count, others.last_share) == (3, 0.0)
    # The others begin each step 2 ms of optimizer earlier, and take 26.2 ms less until they come.
    assert others.waited_ns == pytest.approx(28.2 * MS, abs=2)
    assert told.waited_ns == pytest.approx(0.75 * 28.2 * MS, abs=2)


def test_a_stall_of_any_rank_is_a_stall_of_all() -> None:
    """With 64 ranks of which each stands still in 1 step of 100: in 1 - 0.99**64 of the steps."""
    ranks = Ranks(name="r", stall_probability=0.01, stall_ns=40 * MS)
    samples, share = 3000, 1 - 0.99**64
    told = distribution(compute(), wire(64), ranks, samples)
    assert set(told.quantiles_ns) == {100 * MS, 140 * MS}
    error = 4 * (share * (1 - share) / samples) ** 0.5
    assert told.slowest_cost_ns / (40 * MS) == pytest.approx(share, abs=error)
    certain = replace(ranks, stall_probability=1.0)
    assert set(distribution(compute(), wire(3), certain, 20).quantiles_ns) == {140 * MS}


def test_recorded_iterations_are_drawn_by_each_rank() -> None:
    """Backward of 100 ms or 160 ms, one iteration each: with n ranks a step is short with chance 2**-n."""
    workload = compute(samples=((100 * MS,), (160 * MS,)))
    samples = 2000
    told = distribution(workload, wire(3), Ranks(name="r"), samples)
    assert set(told.quantiles_ns) == {100 * MS, 160 * MS}
    share = (told.mean_step_ns - 100 * MS) / (60 * MS)
    assert share == pytest.approx(7 / 8, abs=4 * (7 / 64 / samples) ** 0.5)
    assert told.nominal_step_ns == 100 * MS
    unrecorded = distribution(compute(), wire(3), Ranks(name="r"), 1)
    gone = {"how forward and optimizer vary", "whether ranks' iterations vary together"}
    gone.add("iterations rarer than 1 in 2, as many as were recorded")
    known, unknown = ({line.split(":")[0] for line in one.not_known} for one in (told, unrecorded))
    assert (known - unknown, unknown - known) == (gone, {"how a rank's iterations vary"})


def test_what_all_reduces_vary_by_is_drawn_from_the_calibration() -> None:
    """Uniform around 10 ms by its quantiles: the mean of 1,000 draws is the mean to 4 of its errors."""
    told = distribution(compute(), wire(2, 10 * MS, spread=UNIFORM), Ranks(name="r"), 1000)
    assert told.mean_step_ns == pytest.approx(110 * MS, abs=0.2 * MS)
    assert told.p95_step_ns > 111 * MS
    assert not any("all-reduces" in line for line in told.not_known)
    still = distribution(compute(), wire(2, 10 * MS), Ranks(name="r"), 1000)
    assert set(still.quantiles_ns) == {110 * MS}
    assert any("all-reduces" in line for line in still.not_known)


def test_parts_that_overlap_are_cut_and_add_up() -> None:
    slow = (SlowRanks(first=1, count=3, pace=1.5), SlowRanks(first=3, count=2, pace=1.2))
    told = distribution(compute(), wire(8, MS), Ranks(name="r", slow=slow), 20)
    assert [(part.name, part.first, part.count) for part in told.parts] == [
        ("slow, pace 1.5", 1, 2),
        ("slow, pace 1.8", 3, 1),
        ("slow, pace 1.2", 4, 1),
        ("all others", 0, 4),
    ]
    assert sum(part.last_share for part in told.parts) == pytest.approx(1)
    assert told.parts[1].last_share == 1


# How sure a distribution is of itself: intervals that hold what they say, and none where they could not.


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
    off = 4 * (8000 * probability) ** 0.5 + 1
    assert stalled == pytest.approx(1000 * (1 - (1 - probability) ** 8), abs=off)
    assert all(line.startswith(f"{stalled} steps with a stall in all") for line in notes)
    both = {"one": ONE, "other": ONE}
    row = sim.compare_assignments(compute(), wire(8), both, ranks, samples=1000).rows[1]
    assert (row.gain_low_ns is None) == bool(notes)


def test_micro_batches_have_luck_of_their_own() -> None:
    """The sum of eight all-reduces scatters by the root of eight of what one does, not by eight."""
    deviations = []
    for options in ({}, {"accumulation_steps": 8, "no_sync": False}):
        assignment, hardware = sim.assign(compute(), **options), wire(2, 10 * MS, spread=UNIFORM)
        told = sim.step_distribution(compute(), hardware, assignment, Ranks(name="r"), samples=1000)
        quantiles = np.array(told.quantiles_ns)
        deviations.append(float(((quantiles[1:] + quantiles[:-1]) / 2).std()))
    assert deviations[1] / deviations[0] == pytest.approx(8**0.5, rel=0.1)


def test_each_micro_batch_draws_a_recorded_iteration() -> None:
    """Of four backwards k take 60 ms more: binomial, so that all five sums come up in 401 steps."""
    workload = compute(samples=((100 * MS,), (160 * MS,)))
    assignment = sim.assign(workload, accumulation_steps=4)
    told = sim.step_distribution(workload, wire(1), assignment, Ranks(name="r"), samples=401)
    assert set(told.quantiles_ns) == {(400 + 60 * k) * MS for k in range(5)}
    assert told.mean_step_ns == pytest.approx(520 * MS, abs=4 * 60 * MS / 401**0.5)


# Several assignments on the same draws, and what is refused.

WORKLOAD = model(60, "affine")
HARDWARE = replace(machine("affine"), world_size=16)
JITTER = Ranks(name="r", pace_jitter=0.1, pace_spread=0.05, stall_probability=0.1, stall_ns=5_000_000)
CAPS = {f"{cap} MiB": sim.assign(WORKLOAD, bucket_cap_mb=cap) for cap in (1, 4, 1000)}


def width(low: int | None, high: int | None) -> int:
    assert low is not None
    assert high is not None
    return high - low


def test_every_row_is_the_distribution_alone() -> None:
    """The same draws whatever else is compared; gains are differences of means, and paired draws tell apart
    what each mean alone does not: less than half the interval of two runs with draws of their own."""
    compared = sim.compare_assignments(WORKLOAD, HARDWARE, CAPS, JITTER, samples=400, seed=4)
    first = compared.rows[0].distribution
    for row, (name, assignment) in zip(compared.rows, CAPS.items(), strict=True):
        alone = sim.step_distribution(WORKLOAD, HARDWARE, assignment, JITTER, samples=400, seed=4)
        assert (row.name, row.distribution) == (name, alone)
        assert row.gain_ns == pytest.approx(first.mean_step_ns - alone.mean_step_ns, abs=1)
        assert row.nominal_gain_ns == first.nominal_step_ns - alone.nominal_step_ns
        unpaired = 2**0.5 * width(alone.mean_low_ns, alone.mean_high_ns)
        assert 0 <= width(row.gain_low_ns, row.gain_high_ns) < (0.5 if name == "4 MiB" else 1) * unpaired
        assert (row.gain_low_ns or 0) <= row.gain_ns <= (row.gain_high_ns or 0)
    means = {row.name: row.distribution.mean_step_ns for row in compared.rows}
    assert compared.best_by_mean == min(means, key=means.__getitem__)
    nominal = {row.name: row.distribution.nominal_step_ns for row in compared.rows}
    assert compared.best_by_nominal == min(nominal, key=nominal.__getitem__)
    assert len({*nominal.values()}) > 1


TWICE = (SlowRanks(first=0, count=9, pace=100.0), SlowRanks(first=5, count=9, pace=100.0))


@pytest.mark.parametrize(
    ("workload", "slow", "changes", "most_cells", "said"),
    [
        ({}, (), {"samples": 0}, None, "samples: 0 is not legal"),
        ({}, (), {"samples": 10**7}, None, "samples: 10000000 is not legal"),
        ({}, (), {"seed": -1}, None, "seed: -1 is not legal"),
        ({}, (SlowRanks(first=15, count=2, pace=2.0),), {}, None, "slow.0: ranks 15 to 16 are not"),
        ({}, TWICE, {}, None, r"slow: paces of one rank together: 10000\.0 is not legal; give .* 1000"),
        ({}, (), {}, 30, r"world_size: 16 ranks with \d+ collectives are more than 30 together"),
        ({"backward_ns": 1 << 51}, (), {}, None, r"affine: a step could take \d+ ns"),
        (
            {"forward_ns": 1 << 40},
            (SlowRanks(first=0, pace=1000.0),),
            {},
            None,
            r"ranks: a step could take \d+ ns",
        ),
    ],
)
def test_what_is_not_legal_is_said(
    workload: dict[str, int],
    slow: tuple[SlowRanks, ...],
    changes: dict[str, int],
    most_cells: int | None,
    said: str,
) -> None:
    """Also steps that are too long to be played, and worlds that memory cannot hold."""
    ranks, made = replace(JITTER, slow=slow), replace(WORKLOAD, **workload)
    with (
        mock.patch.object(job, "MOST_CELLS", most_cells or job.MOST_CELLS),
        pytest.raises(InputError, match=said),
    ):
        sim.step_distribution(made, HARDWARE, CAPS["1 MiB"], ranks, **{"samples": 1, **changes})
