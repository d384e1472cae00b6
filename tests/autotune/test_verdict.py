"""The rule of a trial, on simulated steps: rarely wrong without a gain, and it finds one that is there."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from sim.autotuner.verdict import Verdict, is_candidate_turn, judge, looks
from tests.effort import IS_WHOLE

Floats = NDArray[np.float64]
STEP = 100e6  # ns
TRIALS = 250 if IS_WHOLE else 12


def normal(count: int, chance: Generator) -> Floats:
    return 1 + 0.03 * chance.standard_normal(count)


def heavy(count: int, chance: Generator) -> Floats:
    return np.exp(0.03 * chance.standard_normal(count)) + (chance.random(count) < 0.1) * chance.exponential(
        0.6, count
    )


def drifting(count: int, chance: Generator) -> Floats:
    walk = np.zeros(count)
    for place in range(1, count):
        walk[place] = 0.9 * walk[place - 1] + chance.standard_normal()
    return 1 + 0.03 * walk + 0.002 * np.arange(count)


def two_modes(count: int, chance: Generator) -> Floats:
    return 1 + 0.2 * (chance.random(count) < 0.5) + 0.01 * chance.standard_normal(count)


def every(period: int) -> "Noise":
    """One step of so many takes half as long again, as where so many workers load the batches."""

    def times(count: int, chance: Generator) -> Floats:
        made = normal(count, chance)
        made[chance.integers(period) :: period] += 0.5
        return made

    return times


Noise = Callable[[int, Generator], Floats]
NOISES = (normal, heavy, drifting, two_modes, every(3), every(4), every(8))


def trial(noise: Noise, chance: Generator, more: float = 0.0) -> Verdict:
    """The verdict on such steps, of which the candidate's take ``more``, looked at as a job does."""
    planned = looks(20, 200)
    draw = int(chance.integers(1 << 32))
    theirs = np.array([is_candidate_turn(step, draw) for step in range(200)])
    times = noise(200, chance) + more * theirs
    for look in planned:
        verdict = judge(
            [round(STEP * float(time)) for time in times[:look]],
            draw,
            len(planned),
            name="simulated",
            world_size=2,
            plain_ns=1,
            is_last=look == planned[-1],
        )
        if verdict.keeps is not None:
            return verdict
    raise AssertionError("the last look decides")


def test_without_a_gain_at_most_one_in_twenty_is_kept() -> None:
    """In a fixed order A B B A more than half of the trials with a period of four would be."""
    chance = np.random.default_rng(0)
    kept = [bool(trial(noise, chance).keeps) for noise in NOISES for _ in range(TRIALS)]
    assert sum(kept) <= 0.05 * len(kept)


@pytest.mark.parametrize("noise", [normal, heavy, drifting])
def test_a_gain_is_found_and_its_interval_holds_it(noise: Noise) -> None:
    chance = np.random.default_rng(1)
    found = [trial(noise, chance, -0.05) for _ in range(10)]
    assert all(verdict.keeps for verdict in found)
    held = [verdict.ab.gain_low_ns <= 0.05 * STEP <= verdict.ab.gain_high_ns for verdict in found]
    assert sum(held) >= 8


def test_a_slower_candidate_is_never_kept() -> None:
    chance = np.random.default_rng(4)
    kept = [trial(noise, chance, 0.1).keeps for noise in NOISES for _ in range(TRIALS // 4)]
    assert not any(kept)


def test_a_slower_candidate_is_given_up_at_the_first_look() -> None:
    verdict = trial(normal, np.random.default_rng(2), 0.2)
    assert verdict.keeps is False
    assert verdict.ab.rounds == 10
    assert "no gain worth having" in verdict.why


def test_a_trial_that_leaves_it_open_says_what_to_do() -> None:
    verdict = trial(two_modes, np.random.default_rng(5))
    assert verdict.keeps is False
    assert verdict.ab.rounds == 100
    assert "which leave open whether there is one; DDP's own buckets are back" in verdict.why
    assert verdict.why.endswith("max_verify_steps above 200 gives a longer trial")


def test_each_pair_has_a_step_of_both_in_an_order_of_its_own() -> None:
    for draw in (0, 1, 1 << 31):
        order = [is_candidate_turn(step, draw) for step in range(2000)]
        pairs = list(zip(order[::2], order[1::2], strict=True))
        assert set(pairs) == {(False, True), (True, False)}
        assert 450 < sum(ours for ours, _ in pairs) < 550
    assert order != [is_candidate_turn(step, 0) for step in range(2000)]


@pytest.mark.parametrize(
    ("first", "most", "expected"),
    [
        (20, 200, (20, 40, 80, 160, 200)),
        (20, 20, (20,)),
        (13, 31, (14, 28, 30)),
        (12, 10**9, (*(12 * 2**k for k in range(9)), 10**9)),
    ],
)
def test_looks_double(first: int, most: int, expected: tuple[int, ...]) -> None:
    assert looks(first, most) == expected
