"""The A/B verdict: what a gain is, when it counts, and what it is worth."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.errors import InputError
from sim.nouns.ab import AbTest
from sim.nouns.recommendation import Gain
from sim.truth.turns import MIN_ROUNDS, Turns, judge_turns

STEPS = st.lists(st.integers(10**6, 10**9), min_size=MIN_ROUNDS, max_size=30)


def judge(default: list[int], recommended: list[int], world_size: int = 2, **more: object) -> AbTest:
    turns = Turns(default=default, recommended=recommended, plain=[1])
    return judge_turns(turns, name="m", world_size=world_size, **more)  # type: ignore[arg-type]


@given(STEPS, st.integers(1, 10**8), st.integers(1, 512))
def test_a_gain_that_is_the_same_in_every_round_is_known_exactly(
    steps: list[int], gain: int, world_size: int
) -> None:
    """Pairing: whatever disturbs a whole round cancels, however noisy the rounds are."""
    result = judge([step + gain for step in steps], steps, world_size)
    assert abs(result.gain_ns - gain) <= 1  # of two rounded medians
    assert abs(result.gain_low_ns - gain) <= 1
    assert abs(result.gain_high_ns - gain) <= 1
    assert result.significant == (gain > 1 or result.gain_low_ns > 0)
    assert result.gpu_hours_saved_per_day == pytest.approx(world_size * 24 * result.gain_fraction)


@given(STEPS)
def test_an_assignment_is_never_better_than_itself(steps: list[int]) -> None:
    result = judge(steps, steps)
    assert (result.gain_ns, result.gain_low_ns, result.gain_high_ns) == (0, 0, 0)
    assert not result.significant
    assert "no significant difference" in result.sentence


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(10**6, 10**9), st.integers(10**6, 10**9)), min_size=6, max_size=20))
def test_changing_sides_turns_the_gain_round(pairs: list[tuple[int, int]]) -> None:
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    there, back = judge(ones, others), judge(others, ones)
    assert there.gain_ns == -back.gain_ns
    assert there.gain_low_ns == pytest.approx(-back.gain_high_ns, abs=1)
    assert there.gain_high_ns == pytest.approx(-back.gain_low_ns, abs=1)
    assert there.significant == back.significant or min(abs(there.gain_low_ns), abs(there.gain_high_ns)) <= 1


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(10**6, 10**9), st.integers(10**6, 10**9)), min_size=6, max_size=20))
def test_the_sentence_and_the_interval_say_the_same(pairs: list[tuple[int, int]]) -> None:
    result = judge([one for one, _ in pairs], [other for _, other in pairs])
    assert result.gain_low_ns <= result.gain_high_ns
    holds_zero = result.gain_low_ns <= 0 <= result.gain_high_ns
    assert result.significant == (not holds_zero)
    assert ("no significant difference" in result.sentence) == holds_zero
    if result.significant:
        assert ("slower" in result.sentence) == (result.gain_high_ns < 0)


def test_few_rounds_never_prove_anything() -> None:
    result = judge([200] * (MIN_ROUNDS - 1), [100] * (MIN_ROUNDS - 1))
    assert result.gain_ns == 100
    assert not result.significant
    assert f"give at least {MIN_ROUNDS}" in result.sentence


def test_two_equal_assignments_rarely_differ_and_a_real_gain_is_found() -> None:
    """Of 300 A/A runs with 5 % noise few may be called different; a gain of 5 % nearly always is."""
    generator = np.random.default_rng(7)
    wrong = found = 0
    for _ in range(300):
        disturbed = generator.normal(10**8, 10**7, 20)
        one, two = (disturbed + generator.normal(0, 10**6, 20) for _ in range(2))
        wrong += judge(one.astype(int).tolist(), two.astype(int).tolist()).significant
        found += judge((one + 5 * 10**6).astype(int).tolist(), two.astype(int).tolist()).significant
    assert wrong <= 0.12 * 300
    assert found >= 0.8 * 300


def test_samples_and_hours() -> None:
    """A step from 200 to 100 ms on 8 ranks of 4 samples: 160 to 320 samples/s, half of 192 GPU-hours."""
    ms = 10**6
    predicted = Gain(
        gain_ns=99 * ms, fraction=0.5, low_ns=90 * ms, high_ns=110 * ms, significant=True, sentence="saves"
    )
    result = judge([200 * ms] * 6, [100 * ms] * 6, 8, samples_per_rank=4, predicted=predicted)
    assert result.samples_per_step == 32
    assert (result.default_samples_per_s, result.recommended_samples_per_s) == (160.0, 320.0)
    assert result.gpu_hours_saved_per_day == 96.0
    assert (result.predicted_gain_ns, result.prediction_met) == (99 * ms, True)
    far = judge_turns(
        Turns(default=[200 * ms] * 6, recommended=[100 * ms] * 6, plain=[1]),
        name="m",
        world_size=8,
        predicted=replace(predicted, low_ns=30 * ms, high_ns=98 * ms),
    )
    assert far.prediction_met is False
    drawn = judge([200 * ms] * 6, [100 * ms] * 6, 8, predicted=replace(predicted, mean_ns=95 * ms))
    assert drawn.predicted_gain_ns == 95 * ms  # the gain that its interval is of
    assert result.sentence == (
        "the recommendation saves 100.00 ms a step (50.0%), 95 % interval 100.00 ms to 100.00 ms a step: "
        "96 GPU-hours a day"
    )
    assert judge([200] * 6, [100] * 6).default_samples_per_s is None


def test_rounds_that_only_one_side_finished_do_not_count() -> None:
    result = judge([200] * 7 + [10**9], [100] * 7)
    assert (result.rounds, result.default_step_ns) == (7, 200)


@pytest.mark.parametrize(("default", "recommended"), [([], []), ([1], []), ([], [1]), ([0], [5])])
def test_nothing_to_compare_is_an_error(default: list[int], recommended: list[int]) -> None:
    with pytest.raises(InputError, match="A/B 'm'"):
        judge(default, recommended)
