"""Clocks that differ, and the way back: arrivals recovered to the precision that is stated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.ranks.crew import make_crew
from sim.clusters.ranks.rank_clocks import Clocks, align, as_clocked, draw_clocks
from sim.clusters.ranks.step_chain import VariedStep, play_job
from sim.errors import InputError
from sim.nouns.ranks import Ranks
from tests.bench.machines import machine, model
from tests.effort import tries


def steps_of(name: str, ranks: int, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Arrivals and ends of a few steps of ranks that differ."""
    workload, hardware = model(30, name), replace(machine(name), world_size=ranks)
    crew = make_crew(workload, ranks, Ranks(name="r", pace_jitter=0.1), {})
    step = VariedStep(crew, hardware, sim.assign(workload, bucket_cap_mb=1))
    return list(play_job(step, np.random.SeedSequence(seed), 3, keep=3).kept)


@settings(max_examples=tries(50), deadline=None)
@given(st.integers(2, 6), st.integers(0, 99), st.integers(0, 10**9), st.floats(0, 1e-4))
def test_arrivals_come_back_to_where_they_were(ranks: int, seed: int, offset: int, drift: float) -> None:
    """Collectives end together: what is left is what two clocks drift within a step, and roundings."""
    kin = Ranks(name="r", clock_offset_ns=offset, clock_drift=drift)
    clocks = draw_clocks(kin, ranks, np.random.SeedSequence(seed))
    for came, ends in steps_of("affine", ranks, seed):
        assert (ends == ends[0]).all()
        made = align(as_clocked(came, clocks), as_clocked(ends, clocks))
        apart = made.came_ns - made.came_ns[0] - (came - came[0])
        span = max(came.max(), ends.max()) - min(came.min(), ends.min())
        drifts = np.abs(clocks.drifts).max() + abs(clocks.drifts[0])
        assert np.abs(apart).max() <= drifts * span + 4
        # The offset is that of the middle of the step; the scatter says how far the ends were off.
        assert (made.scatters_ns <= drifts * span + 4).all()


def test_a_clock_that_drifts_is_followed_step_by_step() -> None:
    """At 100 ppm it gains 0.1 ms in a second: each step has an offset of its own."""
    steps = steps_of("affine", 2, 3)
    clocks = Clocks(offsets_ns=np.array([0, 5000]), drifts=np.array([0.0, 1e-4]))
    offsets = [
        align(as_clocked(came, clocks), as_clocked(ends, clocks)).offsets_ns[1] for came, ends in steps
    ]
    middles = [float(np.median(ends[0])) for _, ends in steps]
    assert offsets == pytest.approx([5000 + 1e-4 * middle for middle in middles], abs=2)
    assert offsets[0] + 500 < offsets[1] < offsets[2] - 500


def test_clocks_that_agree_change_nothing() -> None:
    came, ends = steps_of("two channels", 4, 1)[0]
    clocks = Clocks(offsets_ns=np.zeros(4, np.int64), drifts=np.zeros(4))
    assert (as_clocked(came, clocks) == came).all()
    with pytest.raises(InputError, match="no collective"):
        align(came[:, :0], ends[:, :0])


def test_a_distribution_says_what_clocks_would_have_told() -> None:
    """A millisecond of skew hides who came last within 0.1 ms; ends that come together tell it."""
    workload, hardware = model(30, "affine"), replace(machine("affine"), world_size=8)
    skewed = Ranks(name="r", pace_jitter=0.01, clock_offset_ns=10**9, clock_drift=1e-7)
    told = sim.step_distribution(workload, hardware, sim.assign(workload), skewed, samples=200).clocks
    assert told is not None
    assert told.aligned_right > 0.99
    assert told.raw_right < 0.5  # one of eight by chance, always the same
    assert told.aligned_error_ns < 1000 < told.raw_error_ns
    drifting = replace(skewed, clock_drift=1e-3)
    far = sim.step_distribution(workload, hardware, sim.assign(workload), drifting, samples=200)
    assert far.clocks is not None
    # Two clocks that drift part by no more than 1e-3 * 4 deviations * 2 of a step.
    assert 0 < far.clocks.aligned_error_ns < 8e-3 * far.mean_step_ns
    true = replace(skewed, clock_offset_ns=0, clock_drift=0.0)
    alike = sim.step_distribution(workload, hardware, sim.assign(workload), true, samples=20)
    assert alike.clocks is None
