"""The slow-down beside collectives, from kernels that one step ran beside one and another step alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.importer.kineto.interference import FEWEST_KERNELS, Kernel, find_interference
from tests.effort import tries

STEP_NS = 100_000_000


def built(
    alone_ns: list[int], slowdown: float, steps: int, share: float, seed: int
) -> tuple[list[list[Kernel]], list[tuple[int, int]]]:
    """Steps of the same kernels; some stretches of each run beside a collective, another stretch in each."""
    chance = random.Random(seed)
    played, busy = [], []
    for number in range(steps):
        now, lane = number * STEP_NS, []
        beside = {place for place in range(len(alone_ns)) if chance.random() < share}
        for place, alone in enumerate(alone_ns):
            duration = round(alone * slowdown) if place in beside else alone
            lane.append(Kernel(f"kernel {place}", now, now + duration))
            if place in beside:
                busy.append((now, now + duration))
            now += duration + 100  # a gap, so that a neighbour's collective is clear of it
        played.append(lane)
    return played, busy


@settings(deadline=None, max_examples=tries(50))
@given(
    slowdown=st.floats(1.0, 3.0),
    steps=st.integers(4, 8),
    share=st.floats(0.3, 0.7),
    seed=st.integers(0, 2**32),
)
def test_the_slowdown_that_was_built_in_is_found(slowdown, steps, share, seed):
    alone = [random.Random(seed).randrange(10_000, 200_000) for _ in range(80)]
    found = find_interference(*built(alone, slowdown, steps, share, seed))
    assert found is not None
    assert found.slowdown == pytest.approx(slowdown, rel=1e-3)
    assert found.quartiles == pytest.approx((slowdown,) * 3, rel=1e-3)


def test_too_few_kernels_tell_nothing():
    steps, busy = built([50_000] * (FEWEST_KERNELS - 1), 1.5, 6, 0.5, 1)
    assert find_interference(steps, busy) is None


def test_kernels_that_only_a_clock_tick_long_tell_nothing():
    steps, busy = built([2_000] * 100, 1.5, 6, 0.5, 1)
    assert find_interference(steps, busy) is None


def test_kernels_that_are_not_the_same_are_not_compared():
    steps, busy = built([50_000] * 100, 1.5, 2, 0.5, 1)
    steps[1] = [Kernel(f"another {place}", one.start_ns, one.end_ns) for place, one in enumerate(steps[1])]
    assert find_interference(steps, busy) is None


def test_a_kernel_that_lies_half_in_a_collective_counts_on_neither_side():
    steps, busy = built([50_000] * 100, 1.5, 6, 0.5, 1)
    halves = [(start + 10_000, end) for start, end in busy]
    assert find_interference(steps, halves) is None


def test_a_faster_run_beside_a_collective_is_no_speed_up():
    steps, busy = built([50_000] * 100, 0.9, 6, 0.5, 1)
    found = find_interference(steps, busy)
    assert found is not None
    assert found.slowdown == 1.0
