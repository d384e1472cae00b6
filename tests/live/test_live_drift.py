"""Drift: how often steps that do not drift raise an alarm, and what is found of those that do."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.live.drift import ALPHA, BLOCK, find_change, pettitt, rank_sum

NOISE = 0.02


def steps(count: int, seed: int, *, shift: float = 0.0, since: int = 0, memory: float = 0.0) -> np.ndarray:
    """Errors of steps with a heavy-tailed noise of which neighbours may share a part, and a change."""
    random = np.random.default_rng(seed)
    noise = NOISE * random.standard_t(4, count)
    for place in range(1, count):
        noise[place] += memory * noise[place - 1]
    noise[since:] += shift
    return noise


def test_the_p_value_is_no_smaller_than_chance() -> None:
    """Under no change at most a share p of series has a p-value of p; 1,000 series, three standard errors."""
    found = np.array([pettitt(np.random.default_rng(seed).normal(size=60)) for seed in range(1000)])
    for level in (0.2, 0.05, 0.01):
        assert (found <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(found))
    assert (found <= 0.2).mean() > 0.05  # and not by never finding anything


@pytest.mark.slow  # of series that grow: test_many_looks
def test_series_without_drift_raise_hardly_an_alarm() -> None:
    made = [steps(600, seed) for seed in range(300)]
    alarms = sum(find_change(errors[20:], errors[:20]) is not None for errors in made)
    # expected at most 0.3 at ALPHA; more than 4 has a chance below 1 in 10,000
    assert ALPHA == 0.001
    assert alarms <= 4


def looked_at(errors: np.ndarray, every: int) -> bool:
    """Whether any look at a growing series, the first 20 steps of it known, raises an alarm."""
    return any(
        find_change(errors[20:count], errors[:20]) is not None for count in range(60, len(errors) + 1, every)
    )


@pytest.mark.parametrize(("memory", "most"), [(0.0, 2), pytest.param(0.8, 3, marks=pytest.mark.slow)])
def test_many_looks_at_a_growing_series_raise_hardly_an_alarm(memory: float, most: int) -> None:
    """20 series of 1,000 steps, 19 looks each: at ALPHA 0.4 alarms, were the looks independent."""
    assert sum(looked_at(steps(1000, seed, memory=memory), 50) for seed in range(20)) <= most


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 0.5, 0.8])
def test_looks_at_every_few_steps_of_many_series(memory: float) -> None:
    """300 series of 1,000 steps, 95 looks each: at most 3 % of series have ever an alarm."""
    assert sum(looked_at(steps(1000, seed, memory=memory), 10) for seed in range(300)) <= 9


@pytest.mark.parametrize(
    "before", [0, 38, *(pytest.param(before, marks=pytest.mark.slow) for before in (20, 58, 100))]
)
def test_a_change_near_the_beginning_is_found_and_never_forgotten(before: int) -> None:
    """However few unseen steps precede it, and however many follow."""
    for seed in range(3):
        errors = steps(20 + before + 5000, seed, shift=0.34, since=20 + before)
        for after in (40, 80, 150, 300, 1000, 5000):
            found = find_change(errors[20 : 20 + before + after], errors[:20])
            assert found is not None
            assert abs(found[0] - before) <= 2 * BLOCK


def test_what_was_found_is_found_at_every_later_look() -> None:
    errors = steps(4000, 11, shift=0.05, since=120)
    found = [find_change(errors[20:count], errors[:20]) for count in range(200, 4000, 190)]
    assert all(one is not None and abs(one[0] - 100) <= 5 * BLOCK for one in found)


def test_the_rank_sum_is_no_smaller_than_chance() -> None:
    """20 known steps and 40 others, alike: at most a share p of p-values below p, three standard errors."""
    for memory in (0.0, 0.8):
        made = [steps(60, seed, memory=memory) for seed in range(600)]
        found = np.array([rank_sum(errors[:20], errors[20:]) for errors in made])
        for level in (0.1, 0.01):
            assert (found <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / len(found))


def test_what_neighbours_share_is_no_drift() -> None:
    """With an AR(1) of 0.8 a test for independent steps would raise an alarm in most of these."""
    alarms = sum(find_change(steps(600, seed, memory=0.8)) is not None for seed in range(60))
    assert alarms <= 3


@pytest.mark.parametrize(
    "since", [150, pytest.param(300, marks=pytest.mark.slow), pytest.param(420, marks=pytest.mark.slow)]
)
def test_three_percent_are_found_where_they_begin(since: int) -> None:
    found = [find_change(steps(600, seed, shift=0.03, since=since)) for seed in range(40)]
    places = [one[0] for one in found if one is not None]
    assert len(places) >= 38
    assert np.quantile(np.abs(np.array(places) - since), 0.9) <= 5 * BLOCK


def test_a_slow_down_late_in_a_long_run_is_found() -> None:
    found = find_change(steps(100_000, 1, shift=0.03, since=99_800))
    assert found is not None
    assert abs(found[0] - 99_800) <= 5 * BLOCK


@given(st.integers(0, 10_000), st.floats(0.5, 100))
def test_checkpoints_and_evaluations_are_no_drift(seed: int, times: float) -> None:
    """Two long steps in each 40, from the middle on."""
    errors = steps(600, seed) / 10
    for place in range(300, 600, 40):
        errors[place : place + 2] += times
    assert find_change(errors) is None


def test_a_second_change_does_not_hide_the_first() -> None:
    errors = steps(900, 7) / 10
    errors[300:] -= 0.18
    errors[600:] += 0.05
    found = find_change(errors)
    assert found is not None
    assert min(abs(found[0] - 300), abs(found[0] - 600)) <= 5 * BLOCK


def test_what_has_gone_again_and_what_is_small_are_not_told() -> None:
    errors = steps(900, 5) / 10
    errors[300:500] += 0.05
    assert find_change(errors) is None
    assert find_change(steps(900, 5, shift=0.005, since=300)) is None


@given(st.integers(0, 1000), st.integers(0, 39))
def test_few_steps_say_nothing(seed: int, count: int) -> None:
    assert find_change(steps(count, seed, shift=10.0, since=count // 2)) is None
