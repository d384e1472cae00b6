"""Candidates over the draws: common random numbers, choices, intervals that hold the truth, verdicts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Gradient, Workload
from sim.tuner.search.problem import Problem
from sim.tuner.spread.assessment import Pool, assess, play_steps, widen
from sim.tuner.spread.crossed import (
    Steps,
    estimate_mean,
    noise_between_steps,
    percentile_95,
    resampled_p95,
    student,
)
from sim.tuner.spread.draws import NO_ITERATIONS, NO_SCATTER, draw
from sim.tuner.spread.gain import judge_gain
from tests.tuner.cases import MS, Buckets
from tests.tuner.test_tuner_draws import WIRE, scattered, three, with_spread

SPLIT: Buckets = ((2,), (1,), (0,))
JOINED: Buckets = ((2, 1), (0,))
WHOLE: Buckets = ((2, 1, 0),)


def pool(**buckets: Buckets) -> Pool:
    """Candidates by name; the first is DDP's default, the last the nominal optimum."""
    names = list(buckets)
    made = {name: Assignment(bucket_indices=value) for name, value in buckets.items()}
    return Pool(made, default=names[0], nominal=names[-1])


def tail_case(samples: tuple[tuple[float | None, ...], ...] = ()) -> tuple[Workload, Hardware]:
    """One collective at a time; 10 MB each."""
    return three(10, 20, 40, samples=samples), WIRE


# ---------------------------------------------------------------------------------------------------
# One step, many steps.


def test_without_records_figures_are_nominal_and_intervals_have_no_width() -> None:
    """Default: all in one bucket, 42 ms (tail_ms 2), 40 + 31 = 71. Split: 40 + 11 = 51."""
    workload, hardware = tail_case()
    robust = assess(
        pool(default=WHOLE, split=SPLIT), draw(Problem(workload, hardware), 400, seed=0), rest_ns=11 * MS
    )
    assert (robust.draws, robust.calibrations, robust.recorded_iterations) == (1, 1, 0)
    assert robust.noise_ns is None
    row = robust.row("split")
    assert {row.mean_step_ns, row.mean_low_ns, row.mean_high_ns} == {62 * MS}
    assert {row.p95_step_ns, row.p95_low_ns, row.p95_high_ns} == {62 * MS}
    assert {row.gain_ns, row.gain_low_ns, row.gain_high_ns} == {20 * MS}
    assert robust.not_known == (NO_ITERATIONS, NO_SCATTER)
    gain = judge_gain(robust, "split", step_ns=62 * MS, default_step_ns=82 * MS)
    assert (gain.gain_ns, gain.low_ns, gain.high_ns, gain.mean_ns, gain.noise_ns) == (20 * MS,) + (None,) * 4
    assert gain.significant is None
    assert gain.sentence == (
        "saves 20.00 ms a step against DDP's default (24.4%); not recorded, so not known: "
        "how iterations vary and how all-reduces vary"
    )


def test_rows_are_means_and_percentiles_of_the_draws() -> None:
    rows = tuple((10 + k / 7, 20 + k / 5, 40 + k / 3) for k in range(6))
    workload, hardware = tail_case(rows)
    draws = draw(Problem(workload, with_spread(hardware, 0.2)), 200, seed=1)
    robust = assess(pool(default=WHOLE, split=SPLIT), draws, rest_ns=7 * MS)
    one, other = (draws.sync_ends(buckets) + 7 * MS for buckets in (WHOLE, SPLIT))
    row = robust.row("split")
    assert row.mean_step_ns == round(other.mean())
    assert row.p95_step_ns == round(np.quantile(other, 0.95))
    assert row.gain_ns == round((one - other).mean())
    assert row.gain_low_ns < row.gain_ns < row.gain_high_ns
    assert row.p95_low_ns < row.p95_step_ns < row.p95_high_ns


# ---------------------------------------------------------------------------------------------------
# A nominal optimum on a cliff.


def cliff(late: int, of: int) -> tuple[Workload, Hardware]:
    """10 MB, 14 MB and 1 kB. Nominally the first two are ready 0.5 ms apart and best sent together: 15 + 25 =
    40 ms, just when the last is ready; apart they are through at 14.5 + 11 + 15 = 40.5. In ``late`` of
    ``of`` iterations the second comes 2 ms later: together through at 42, apart at 40.5 as before."""
    base = three(14.5, 15, 40, tail_ms=0)
    sizes = {2: 10_000_000, 1: 14_000_000, 0: 1000}
    gradients: tuple[Gradient, ...] = tuple(
        replace(gradient, num_bytes=sizes[gradient.index]) for gradient in base.gradients
    )
    rows = [(14.5, 17, 40)] * late + [(14.5, 15, 40)] * (of - late)
    samples = tuple(tuple(round(time * MS) for time in reversed(row)) for row in rows)
    return replace(base, gradients=gradients, samples=samples), WIRE


@pytest.mark.parametrize(
    ("late", "by_mean", "by_p95"), [(0, "joined", "joined"), (10, "joined", "split"), (30, "split", "split")]
)
def test_off_the_cliff(late: int, by_mean: str, by_p95: str) -> None:
    """Joined is better by 0.5 ms, or worse by 1.5: with a quarter of iterations late, alike in the mean."""
    workload, hardware = cliff(late, 40)
    exact = replace(hardware, spread={"ranges": {"all_reduce": {"low": 1.0, "high": 1.0}}})
    draws = draw(Problem(workload, exact), 1600, seed=0)
    robust = assess(pool(default=WHOLE, split=SPLIT, joined=JOINED), draws, rest_ns=0)
    assert robust.mean_choice == by_mean
    assert robust.p95_choice == by_p95
    assert robust.by_mean.bucket_indices == {"joined": JOINED, "split": SPLIT}[by_mean]
    assert robust.by_p95.bucket_indices == {"joined": JOINED, "split": SPLIT}[by_p95]


def test_the_pool_is_widened_by_optima_of_single_draws() -> None:
    """The optimiser is given iterations as they were, once with the cliff and once without."""
    draws = draw(Problem(*cliff(1, 2)), 400, seed=0)
    seen = []

    def optimise(workload: Workload, hardware: Hardware) -> Assignment:
        assert len(hardware.all_reduce) == len(WIRE.all_reduce)
        seen.append(workload.gradients[1].ready_ns)
        return Assignment(bucket_indices=SPLIT if seen[-1] == 17 * MS else JOINED)

    wider = widen(pool(default=JOINED, whole=WHOLE), draws, optimise, count=2)
    assert sorted(seen) == [15 * MS, 17 * MS]
    *known, name = wider.candidates
    assert known == ["default", "whole"]
    assert wider.candidates[name].bucket_indices == SPLIT
    assert (wider.default, wider.nominal) == ("default", "whole")
    assert len(widen(pool(default=WHOLE, joined=JOINED), draws, optimise, count=50).candidates) == 3


# ---------------------------------------------------------------------------------------------------
# The interval holds the true gain as often as it says.

EXPERIMENTS = 300
SLACK = 4 * (0.95 * 0.05 / EXPERIMENTS) ** 0.5
RECORDED = 12


def measured(generator: np.random.Generator, share: float, count: int, is_mean: bool) -> dict[int, Any]:
    """A calibration of WIRE's curve, whose collectives are lognormal: duration and spread by size."""
    found = {}
    for point in WIRE.all_reduce:
        samples = point.duration_ns * np.exp(share * generator.standard_normal(count))
        known = {
            "count": count,
            "quantile": "mean without the slowest 2 %" if is_mean else "median",
            "min_ns": round(samples.min()),
            "p10_ns": round(np.quantile(samples, 0.1)),
            "median_ns": round(np.median(samples)),
            "p90_ns": round(np.quantile(samples, 0.9)),
        }
        found[point.num_bytes] = round(samples.mean() if is_mean else np.median(samples)), known
    return found


@pytest.mark.parametrize(
    ("gap_ms", "share", "is_mean"),
    [  # both varying; each alone, and the other kind of curve, are slow
        (0.6, 0.05, False),
        *(
            pytest.param(*rest, marks=pytest.mark.slow)
            for rest in (
                (0.0, 0.05, False),
                (0.0, 0.05, True),
                (0.6, 0.05, True),
                (0.6, 0.001, False),
                (0.6, 0.001, True),
            )
        ),
    ],
)
def test_the_interval_of_the_gain_holds_the_truth(gap_ms: float, share: float, is_mean: bool) -> None:
    """Two gradients of 10 MB, the second 6 ms behind the first: apart, the second ends at first + S + S; in
    one bucket at second + S(20 MB), with S linear between its points. The gain is the difference,
    ``gap + S(20) - 2 S(10)``, of which the gap varies between iterations and S was calibrated.
    """
    generator = np.random.default_rng(8)
    excess = np.exp(share**2 / 2)  # of a lognormal mean over its median
    s20 = WIRE.all_reduce[1].duration_ns * 8 / 9 + WIRE.all_reduce[2].duration_ns / 9
    truth = 6 * MS + excess * (s20 - 2 * WIRE.all_reduce[1].duration_ns)
    hits, widths = 0, []
    for experiment in range(EXPERIMENTS):
        gaps = 6 + gap_ms * generator.standard_normal(RECORDED)
        rows = tuple((10.0, 10 + max(0.0, gap), 10 + max(0.0, gap)) for gap in gaps.tolist())
        workload = three(10, 16, 16, tail_ms=0, samples=rows)
        gradients = (replace(workload.gradients[0], num_bytes=0), *workload.gradients[1:])
        found = measured(generator, share, 60, is_mean)
        hardware = replace(
            WIRE,
            all_reduce=tuple(
                CurvePoint(num_bytes=size, duration_ns=duration) for size, (duration, _) in found.items()
            ),
            spread={"all_reduce": {str(size): known for size, (_, known) in found.items()}},
        )
        problem = Problem(replace(workload, gradients=gradients), hardware)
        draws = draw(problem, 400, experiment)
        default, apart = (
            play_steps(draws, Assignment(bucket_indices=buckets), 0) for buckets in (WHOLE, ((2,), (1, 0)))
        )
        gain = estimate_mean(default.minus(apart))
        hits += gain.low <= truth <= gain.high
        widths.append(gain.high - gain.low)
    assert hits / EXPERIMENTS >= 0.95 - SLACK
    # No wider than need be: what 12 iterations and 60 samples leave open, and a quarter for not knowing it.
    one = share * (1.0 if is_mean else (np.pi / 2) ** 0.5) / 60**0.5
    parts = (
        gap_ms * MS / RECORDED**0.5,
        one * WIRE.all_reduce[1].duration_ns * (2 - 8 / 9),
        one * WIRE.all_reduce[2].duration_ns / 9,
    )
    assert np.median(widths) / 2 <= 1.25 * 2.2 * float(np.hypot.reduce(parts))


# ---------------------------------------------------------------------------------------------------
# The verdict on the gain.


def test_scatter_alone_can_deny_a_gain() -> None:
    """Where no iteration is recorded: steps vary by at least what their collectives do."""
    known = {"all_reduce": {str(p.num_bytes): scattered(p.duration_ns, 0.5, 40) for p in WIRE.all_reduce}}
    problem = Problem(three(10, 20, 40), replace(WIRE, spread=known))
    robust = assess(pool(default=((2,), (1, 0)), joined=JOINED), draw(problem, 400, seed=0), rest_ns=0)
    assert robust.noise_ns is not None
    assert robust.row("joined").gain_ns > 0
    gain = judge_gain(
        robust,
        "joined",
        step_ns=500 * MS - robust.row("joined").gain_ns // 8,
        default_step_ns=500 * MS,
    )
    assert gain.significant in (False, None)


# Tables of steps: intervals that hold the truth as often as they say.

TABLES = 2000


@pytest.mark.parametrize(
    ("freedom", "factor"), [(1, 12.706), (2, 4.303), (11, 2.201), (19, 2.093), (100, 1.984), (1e12, 1.96)]
)
def test_students_factor(freedom: float, factor: float) -> None:
    """Values of the published tables."""
    assert student(freedom) == pytest.approx(factor, rel=0.002)


@pytest.mark.parametrize("machines", [1, 20])
@pytest.mark.parametrize("iterations", [1, 2, 5, 20])
@pytest.mark.parametrize(("systematic", "between", "single"), [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)])
def test_the_interval_holds_the_truth(
    machines: int, iterations: int, systematic: float, between: float, single: float
) -> None:
    """The truth is a machine like those drawn, and the mean of all iterations.

    What is in rows needs machines to be seen, all else iterations. Where both mix, degrees of freedom are an
    approximation.
    """
    if (systematic and machines == 1) or ((between or single) and iterations == 1):
        return
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(TABLES):
        still = systematic * generator.standard_normal((machines, 1))
        still = still + between * generator.standard_normal((1, iterations))
        jitter = single * generator.standard_normal((machines, iterations))
        truth = systematic * generator.standard_normal()
        found = estimate_mean(Steps(still + jitter, still))
        hits += found.low <= truth <= found.high
    assert hits / TABLES >= 0.95 - SLACK
    assert hits / TABLES <= 0.95 + SLACK


def test_jitter_averages_out_and_an_error_of_the_calibration_does_not() -> None:
    generator = np.random.default_rng(0)
    none, jitter = np.zeros((100, 100)), generator.standard_normal((100, 100))
    machine = none + generator.standard_normal((100, 1))
    halves = []
    for steps in (Steps(jitter, none), Steps(machine, machine), Steps(machine.T, machine.T)):
        found = estimate_mean(steps)
        halves.append((found.high - found.low) / 2)
    assert halves == [pytest.approx(half, rel=0.2) for half in (0.0198, 1.98, 0.198)]


@given(st.integers(1, 4), st.integers(1, 4), st.floats(-1e12, 1e12))
def test_a_table_without_noise_has_no_width(machines: int, iterations: int, value: float) -> None:
    table = np.full((machines, iterations), value)
    found = estimate_mean(Steps(table, table))
    assert found.low == pytest.approx(value)
    assert found.high == pytest.approx(value)


def test_noise_is_that_of_steps_on_one_machine() -> None:
    generator = np.random.default_rng(0)
    table = 100 * generator.standard_normal((40, 1)) + 3 * generator.standard_normal((40, 50))
    table[0, 0] = 1e6
    assert noise_between_steps(Steps(table, table)) == pytest.approx(3, rel=0.1)
    assert noise_between_steps(Steps(table[:, :1], table[:, :1])) is None


def test_percentiles_are_resampled_alike_for_all_candidates() -> None:
    generator = np.random.default_rng(0)
    table = generator.standard_normal((20, 20))
    tables = np.stack([table, table, table + 1])
    made = resampled_p95(tables, np.random.default_rng(5))
    assert (made[:, 0] == made[:, 1]).all()
    assert made[:, 2] == pytest.approx(made[:, 0] + 1)
    assert made[:, 0].min() < percentile_95(tables)[0] < made[:, 0].max()
    assert (made == resampled_p95(tables, np.random.default_rng(5))).all()
