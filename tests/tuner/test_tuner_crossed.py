"""Tables of steps: intervals that hold the truth as often as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.tuner.spread.crossed import (
    Steps,
    estimate_mean,
    noise_between_steps,
    percentile_95,
    resampled_p95,
    student,
)

EXPERIMENTS = 2000
# Four standard deviations of a count of hits, were each of them 95 % likely.
SLACK = 4 * (0.95 * 0.05 / EXPERIMENTS) ** 0.5


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
    for _ in range(EXPERIMENTS):
        still = systematic * generator.standard_normal((machines, 1))
        still = still + between * generator.standard_normal((1, iterations))
        jitter = single * generator.standard_normal((machines, iterations))
        truth = systematic * generator.standard_normal()
        found = estimate_mean(Steps(still + jitter, still))
        hits += found.low <= truth <= found.high
    assert hits / EXPERIMENTS >= 0.95 - SLACK
    assert hits / EXPERIMENTS <= 0.95 + SLACK


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
