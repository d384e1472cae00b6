"""What is not known is in the answer: ranges, readings, guesses and bands, none of which is bet on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.costs.in_step import scaled
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.tuner.search.problem import Problem
from sim.tuner.spread.draws import draw
from sim.tuner.spread.machines import draw_machines
from tests.effort import tries
from tests.handmade import handmade, wired

MS, MB = 10**6, 10**6
SENT = (MB, 40 * MB)


def link(**spread: Any) -> Hardware:
    """1 ms and 1 ms a MB, up to 40 MB; every size of the tests is close to one of its own."""
    return replace(wired({MB: 2 * MS, 4 * MB: 5 * MS, 16 * MB: 17 * MS, 40 * MB: 41 * MS}), spread=spread)


def job(sizes: list[int], gap_ms: float = 2.0, **changes: Any) -> Workload:
    times = [round(MS * gap_ms * (len(sizes) - place)) for place in range(len(sizes))]
    return handmade(times, [size * MB for size in sizes], backward_ns=max(times) + MS, **changes)


def test_a_range_is_drawn_from_end_to_end_with_the_field_in_the_middle() -> None:
    known = link(
        ranges={
            "all_reduce": {"low": 0.9, "high": 2.2},
            "launch_cost_ns": {"low": 1000, "high": 9000},
            "copy_in_bytes_per_s": {"low": 10**9, "high": 4 * 10**9},
            "comm_slowdown": {"low": 1.0, "high": 1.5},
        }
    )
    known = replace(known, launch_cost_ns=2000, copy_in_bytes_per_s=2e9)
    drawn = draw_machines(known, 41, np.random.default_rng(0), SENT).hardwares
    factors = np.array([one.all_reduce[-1].duration_ns / (41 * MS) for one in drawn])
    assert (factors.min(), np.median(factors), factors.max()) == pytest.approx((0.9, 1.0, 2.2))
    costs = sorted(one.launch_cost_ns for one in drawn)
    assert (costs[0], costs[20], costs[-1]) == (1000, 2000, 9000)
    rates = sorted(one.copy_in_bytes_per_s or 0.0 for one in drawn)
    assert (rates[0], rates[20], rates[-1]) == pytest.approx((1e9, 2e9, 4e9))
    slow = sorted(one.comm_slowdown for one in drawn)
    assert (slow[0], slow[20], slow[-1]) == (1.0, 1.0, 1.5)


def test_each_reading_is_a_machine_of_its_own() -> None:
    known = link(
        ranges={"comm_slowdown": {"low": 2.0, "high": 3.0}},
        readings=[
            {"what": "interference", "weight": 0.9},
            {"what": "slow link", "weight": 0.1, "set": {"comm_slowdown": 1.0}, "curve": 2.0},
        ],
    )
    drawn = draw_machines(replace(known, comm_slowdown=2.0), 40, np.random.default_rng(0), SENT)
    slow = [one for one in drawn.hardwares if one.comm_slowdown == 1.0]
    assert len(slow) == drawn.shares[1] >= 8
    assert {one.all_reduce for one in slow} == {scaled(known, 2.0).all_reduce}
    assert max(one.comm_slowdown for one in drawn.hardwares) == 3.0


def test_beyond_the_curve_and_between_far_sizes_machines_differ() -> None:
    known = wired({MB: 2 * MS, 64 * MB: 65 * MS})
    drawn = draw_machines(known, 41, np.random.default_rng(0), (MB, 1000 * MB), varies=False).hardwares
    for size, least in ((8 * MB, 1.2), (1000 * MB, 1.2), (2 * MB, 1.02)):
        times = [sim.simulate(job([size // MB]), one, assign(job([size // MB]))).sync_end_ns for one in drawn]
        assert max(times) > least * min(times)


def test_a_known_length_stays_and_ready_times_move_inside_it() -> None:
    work = job([4] * 8, estimated=True, band=(0.7, 2.1), band_on="ready")
    draws = draw(Problem(work, link()), 400, seed=0)
    ends = draws.works.sum(axis=1) + draws.tails
    assert set(ends.tolist()) == {work.backward_ns}
    assert (draws.works >= 0).all()
    first = draws.works[:, 0] / work.gradients[-1].ready_ns
    assert first.min() < 0.8
    assert first.max() > 1.7
    assert set(draws.paces.tolist()) == {1.0}
    whole = draw(Problem(replace(work, band_on="length"), link()), 400, seed=0)
    assert np.ptp(whole.works.sum(axis=1) + whole.tails) > 0


def slow_or_disturbed() -> tuple[Workload, Hardware]:
    """A step that interference or a link of twice the time explains; one bucket helps in the former only."""
    work = job([4] * 12, gap_ms=20.0)
    known = replace(link(), compute_slowdown=3.0, comm_slowdown=3.0)
    readings = [
        {"what": "interference", "weight": 0.5},
        {
            "what": "slow link",
            "weight": 0.5,
            "set": {"compute_slowdown": 1.0, "comm_slowdown": 1.0},
            "curve": 3.0,
        },
    ]
    return work, replace(known, spread={"readings": readings})


def gains(work: Workload, hardware: Hardware, buckets: Any) -> float:
    ends = [sim.simulate(work, hardware, one, "analytic").sync_end_ns for one in (assign(work), buckets)]
    return float(ends[0] - ends[1])


def test_what_only_one_reading_makes_good_is_not_recommended() -> None:
    work, known = slow_or_disturbed()
    alone = sim.tune(work, replace(known, spread={}), draws=40)
    slow = replace(scaled(known, 3.0), compute_slowdown=1.0, comm_slowdown=1.0, spread={})
    answer = sim.tune(work, known, draws=80)
    assert gains(work, slow, alone.assignment) < 0 < gains(work, replace(known, spread={}), alone.assignment)
    noise = 0.001 * answer.baseline.step_ns
    for machine in (replace(known, spread={}), slow):
        assert gains(work, machine, answer.assignment) >= -noise
    assert "with 95% confidence" not in answer.gain.sentence
    assert answer.gain.rests_on


RANGES = {
    "all_reduce": st.tuples(st.floats(0.5, 1.0), st.floats(1.0, 3.0)),
    "launch_cost_ns": st.tuples(st.integers(0, 10_000), st.integers(20_000, 400_000)),
    "copy_in_bytes_per_s": st.tuples(st.just(10**9), st.just(2 * 10**10)),
    "comm_slowdown": st.tuples(st.just(1.0), st.floats(1.0, 2.0)),
    "compute_slowdown": st.tuples(st.just(1.0), st.floats(1.0, 1.5)),
}


@st.composite
def open_jobs(draw_: Any) -> tuple[Workload, Hardware]:
    sizes = draw_(st.lists(st.integers(1, 12), min_size=3, max_size=8))
    work = job(sizes, draw_(st.floats(0.5, 12.0)))
    if draw_(st.booleans()):
        work = replace(work, estimated=True, band=(0.8, 1.3), band_on="ready")
    names = draw_(st.sets(st.sampled_from(sorted(RANGES)), min_size=1, max_size=3))
    ends = {name: draw_(RANGES[name]) for name in sorted(names)}
    ranges = {name: {"low": low, "high": high} for name, (low, high) in ends.items()}
    known = replace(
        link(ranges=ranges), launch_cost_ns=20_000, copy_in_bytes_per_s=4e9, launch_blocks_compute=True
    )
    return work, known


@settings(max_examples=tries(12), deadline=None, derandomize=True)
@given(open_jobs(), st.integers(0, 100))
def test_the_gain_is_inside_its_interval_wherever_the_truth_is_in_its_range(
    case: tuple[Workload, Hardware], seed: int
) -> None:
    work, known = case
    answer = sim.tune(work, known, draws=120)
    low, high = answer.gain.low_ns, answer.gain.high_ns
    assert low is not None
    assert high is not None
    generator = np.random.default_rng(seed)
    inside = 0
    noise = 0.001 * answer.baseline.step_ns
    for _ in range(20):
        ranges = known.spread["ranges"]
        name = sorted(ranges)[int(generator.integers(len(ranges)))]
        value = float(generator.uniform(ranges[name]["low"], ranges[name]["high"]))
        bare = replace(known, spread={})
        other = (
            scaled(bare, value)
            if name == "all_reduce"
            else replace(bare, **{name: round(value) if name.endswith("_ns") else value})
        )
        gain = gains(work, other, answer.assignment)
        inside += low - 1000 <= gain <= high + 1000
        assert gain >= -noise or low < -noise
    assert inside >= 18
