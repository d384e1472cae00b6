"""What is not known is in the answer: ranges, readings, guesses and bands, none of which is bet on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.costs.doubts import doubts_about
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.truth.in_step import scaled
from sim.tuner.draws import draw
from sim.tuner.machines import draw_machines
from sim.tuner.problem import Problem
from sim.units import MIB
from sim.validator.calibrate import CalibrationStory
from sim.validator.launch import Place
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.truth.test_own_step import WORKLOAD

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


# A calibration that met a burst, a recording that cannot be true: named in an answer that is not sure.

SIZES = [4096 << power for power in range(15)]


def calibrated(burst_rounds: Sequence[int]) -> Hardware:
    """What ranks would tell of a wire of 60 MB/s, the 16 MiB of some rounds beside something else."""
    told = CalibrationStory({"device": "cpu", "backend": "gloo", "computes": False})
    for number in range(9):
        for size in SIZES:
            clean = 400_000 + size * 17
            slow = size == 16 * MIB and number in burst_rounds
            samples = [round(clean * (1.5 + 0.2 * number if slow else 1.0))] * 4
            told.take({"event": "all_reduce", "num_bytes": size, "samples_ns": samples})
        for name in ("all_gather", "broadcast"):
            told.take({"event": name, "num_bytes": 4096, "samples_ns": [MS] * 4})
        told.take(
            {
                "event": "pair",
                "num_bytes": MIB,
                "alone_ns": [MS],
                "both_ns": [2 * MS],
            }
        )
        copies = {f"{name}_ns": [4 * MS] for name in ("copy_in", "hooked", "hooked_beside", "copy_out")}
        told.take({"event": "copies", "copy_bytes": 40 * MIB, **copies})
    told.take({"event": "started", "environment": {}})
    told.take({"event": "launches", "samples_ns": [50_000]})
    out = {f"{name}_ns": [4 * MS] for name in ("copy", "comm", "copy_beside", "comm_beside")}
    told.take({"event": "copies out", **out})
    told.take({"event": "additions", "num_bytes": MIB, "samples_ns": [MS]})
    told.take({"event": "gathers", "alone_ns": [MS], "queued_ns": [2 * MS]})
    told.take({"event": "products", "num_bytes": MIB, "samples_ns": [MS]})
    told.take({"event": "search", "search_ns": [1], "mark_ns": [1]})
    told.take({"event": "host", "shares": {str(16 * MIB): 0.2}, "slowdowns": {str(16 * MIB): 1.1}})
    return told.hardware(Place())


def test_a_burst_in_one_round_is_left_out_and_one_in_most_is_named() -> None:
    quiet, once, often = calibrated(()), calibrated((2,)), calibrated((0, 2, 3, 5))
    assert quiet.all_reduce == once.all_reduce
    assert quiet.provenance["doubtful"] == once.provenance["doubtful"] == []
    (doubt,) = often.provenance["doubtful"]
    assert doubt["num_bytes"] == 16 * MIB
    assert doubt["why"].startswith("scatters: ")
    assert "44% of its messages were held up" in doubt["why"]


CPU = replace(WORKLOAD, gradients=tuple(replace(one, device="cpu") for one in WORKLOAD.gradients))
CUDA = replace(WORKLOAD, gradients=tuple(replace(one, device="cuda:3") for one in WORKLOAD.gradients))
LAST = replace(CPU, gradients=(*CPU.gradients[:-1], replace(CPU.gradients[-1], device="cuda:0")))
LATER = replace(WORKLOAD, gradients=(*WORKLOAD.gradients[:1], *CUDA.gradients[1:]))
RECORDED = replace(CUDA, provenance={"backend": "cpu:gloo,cuda:nccl", "world_size": 2})
ESTIMATED = replace(WORKLOAD, provenance={"roofline": {"device": "a100-40gb-sxm"}})


@pytest.mark.parametrize(
    ("workload", "told", "is_other"),
    [
        (CPU, {"backend": "gloo"}, False),
        (CUDA, {"backend": "gloo"}, True),
        (ESTIMATED, {"backend": "gloo", "device": "cpu"}, True),
        (CUDA, {"backend": "gloo", "device": "cuda"}, False),  # gloo takes their tensors too
        (CUDA, {"backend": "nccl"}, False),
        (CPU, {"backend": "nccl"}, True),
        (CPU, {"fabric": {}}, True),  # computed
        (CUDA, {"source": "bucketsim import nccl-tests"}, False),
        (WORKLOAD, {"backend": "gloo"}, False),  # nothing says where it trains
        (LAST, {"backend": "gloo"}, True),  # one of them is elsewhere
        (LATER, {"backend": "gloo"}, True),  # the first does not say
        (RECORDED, {"backend": "nccl"}, False),
        (RECORDED, {"backend": "rccl", "device": "cuda"}, False),  # torch calls it nccl
        (RECORDED, {"backend": "mpi", "device": "cuda"}, True),
        (RECORDED, {"fabric": {}}, False),  # computed by NCCL's model
        (replace(RECORDED, provenance={"world_size": 3}), {"backend": "nccl"}, True),
    ],
)
def test_a_link_that_is_not_the_one_that_trains_is_named_wherever_it_is_asked(
    workload: Workload, told: dict[str, object], is_other: bool
) -> None:
    hardware = replace(calibrated(()), provenance=told)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload)))
    answer = sim.tune(workload, hardware)
    for notes in (report.notes, answer.notes, doubts_about(workload, hardware)):
        assert any("doubtful link" in line for line in notes) == is_other
    assert answer.gain.significant is not is_other


def test_a_calibration_says_between_whose_tensors_it_measured() -> None:
    assert calibrated(()).provenance["device"] == "cpu"
