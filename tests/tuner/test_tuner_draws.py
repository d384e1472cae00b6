"""Draws: what was recorded varies as it was recorded, what is not known lies in its range."""

from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clock import simpy_clock
from sim.costs.doubts import doubts_about, unknown
from sim.costs.service_time import service_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign, write
from sim.truth.fit import apply_factor
from sim.tuner.draws import NO_SCATTER, Draws, draw_machines, read_scatter
from sim.tuner.problem import Problem, lay_out
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.truth.test_own_step import WORKLOAD
from tests.tuner.cases import MS, Buckets, Case, anything, contiguous_partitions, one_run, simulated

Z = NormalDist()


def scattered(center_ns: int, share: float, count: int, quantile: str = "median") -> dict[str, Any]:
    """What a calibration keeps of lognormal samples; ``share`` is their relative standard deviation."""
    p10, p90 = (round(center_ns * np.exp(share * Z.inv_cdf(level))) for level in (0.1, 0.9))
    least = round(center_ns * np.exp(share * Z.inv_cdf(0.5 / count)))
    return {
        "count": count,
        "quantile": quantile,
        "min_ns": least,
        "p10_ns": p10,
        "p90_ns": p90,
        "median_ns": center_ns,
    }


def with_spread(
    hardware: Hardware, share: float = 0.05, count: int = 40, quantile: str = "median"
) -> Hardware:
    spread = {
        str(point.num_bytes): scattered(point.duration_ns, share, count, quantile)
        for point in hardware.all_reduce
    }
    return replace(hardware, spread={"all_reduce": spread})


WIRE = wired({0: MS, 10_000_000: 11 * MS, 100_000_000: 101 * MS})


def three(
    *ready_ms: float, tail_ms: float = 2, samples: tuple[tuple[float | None, ...], ...] = ()
) -> Workload:
    """Three gradients of 10 MB; ready times and samples in ready order, which is that of descending index."""

    def ns(time: float | None) -> int | None:
        return None if time is None else round(time * MS)

    return handmade(
        [ns(time) for time in reversed(ready_ms)],
        10_000_000,
        name="three",
        forward_ns=10 * MS,
        backward_ns=round((ready_ms[-1] + tail_ms) * MS),
        optimizer_ns=MS,
        samples=tuple(tuple(map(ns, reversed(row))) for row in samples),
    )


def ready_ms(draws: Draws) -> list[list[float]]:
    return (np.cumsum(draws.works, axis=1) / MS).tolist()


# Against the analytic engine, which is given each draw as a program of its own.


def played_slowly(draws: Draws, number: int, buckets: Buckets) -> int:
    """One draw by the analytic engine: its lane as a workload, its service times put into the program."""
    problem = draws.problem
    ready = np.cumsum(draws.works[number])
    times = dict(zip(problem.order, ready.tolist(), strict=True))
    workload = replace(
        problem.workload,
        gradients=tuple(replace(g, ready_ns=times.get(g.index)) for g in problem.workload.gradients),
        ready_order=problem.order,
        backward_ns=int(ready[-1] + draws.tails[number]),
        samples=(),
    )
    program = write(workload, problem.hardware, Assignment(bucket_indices=buckets))[-1]
    layout = lay_out(problem.tables, problem.bucket_of(buckets), problem.copies)
    services = draws.services(layout)[number].tolist()
    collectives = tuple(
        one if one.bucket is None else replace(one, service_ns=services[one.bucket])
        for one in program.collectives
    )
    return simpy_clock.play(replace(program, collectives=collectives)).in_backward().sync_end_ns


@settings(max_examples=tries(150))
@given(anything(max_gradients=6), st.data())
def test_steps_are_those_of_the_engine(case: Case, data: st.DataObject) -> None:
    workload, hardware = case
    times = [gradient.ready_ns or 0 for gradient in workload.gradients]
    factors = data.draw(st.lists(st.floats(0.5, 2), max_size=4))
    samples = tuple(tuple(round(time * factor) for time in times) for factor in factors)
    if data.draw(st.booleans()):
        hardware = with_spread(hardware, count=5)
    hardware = replace(hardware, shared_connection=data.draw(st.booleans()))
    problem = Problem(replace(workload, samples=samples), hardware)
    draws = Draws(problem, 8, seed=data.draw(st.integers(0, 9)))
    buckets = data.draw(st.sampled_from(list(contiguous_partitions(workload))[:20]))
    ends = draws.steps(buckets, 0).ravel().tolist()
    assert ends == [played_slowly(draws, number, buckets) for number in range(len(ends))]


# Recorded iterations.


@pytest.mark.parametrize(
    ("samples", "played"),
    [
        (((10, 20, 30), (11, 22, 29), (9, 21, 33)), [[10, 20, 30], [11, 22, 29], [9, 21, 33]]),
        # One that missed a gradient is left out; another order is taken in the nominal one.
        (((10, 20, 31), (10, None, 30), (10, 20, 32)), [[10, 20, 31], [10, 20, 32]]),
        (((10, 33, 31), (10, 20, 30)), [[10, 33, 33], [10, 20, 30]]),
    ],
)
def test_each_recorded_iteration_is_played_and_the_tail_kept(
    samples: tuple[tuple[float | None, ...], ...], played: list[list[float]]
) -> None:
    draws = Draws(Problem(three(10, 20, 30, samples=samples), WIRE), 400, seed=0)
    assert (draws.machines, draws.iterations) == (400 // len(played), len(played))
    assert ready_ms(draws) == played * draws.machines
    assert set(draws.tails.tolist()) == {2 * MS}
    assert draws.not_known == (NO_SCATTER,)


@settings(max_examples=tries(150))
@given(one_run(max_gradients=6), st.data())
def test_an_order_that_changes_moves_no_launch(case: Case, data: st.DataObject) -> None:
    """Without copies, DDP plays an iteration in another order as the draw does in the nominal one (A3.5)."""
    workload, hardware = case
    hardware = replace(hardware, copy_in_bytes_per_s=None)
    moments = st.lists(st.integers(0, 40), min_size=len(workload.gradients), max_size=len(workload.gradients))
    samples = tuple(map(tuple, data.draw(st.lists(moments, min_size=2, max_size=3))))
    problem = Problem(replace(workload, samples=samples), hardware)
    buckets = data.draw(st.sampled_from(list(contiguous_partitions(workload))))
    draws = Draws(problem, 400, seed=0)
    hardware = draws.hardwares[0]
    ends = draws.steps(buckets, 0)[0].tolist()
    for sample, end in zip(samples, ends, strict=True):
        as_recorded = replace(
            workload,
            gradients=tuple(replace(g, ready_ns=sample[g.index]) for g in workload.gradients),
            ready_order=None,
            backward_ns=max(sample) + problem.tail,
        )
        assert simulated(as_recorded, hardware, buckets) == end


# The link.


def test_jitter_has_the_recorded_quantiles() -> None:
    """Between points interpolated in bytes, beyond them kept."""
    factors = read_scatter(with_spread(WIRE, share=0.2)).jitter(
        np.array([0, 10_000_000]), np.random.default_rng(0).standard_normal((100_000, 2))
    )
    for level in (0.1, 0.9):
        expected = np.median(factors, axis=0) * np.exp(0.2 * Z.inv_cdf(level))
        assert np.quantile(factors, level, axis=0) == pytest.approx(expected, rel=0.005)
    spread = {str(p.num_bytes): scattered(p.duration_ns, 0.05 * k, 40) for k, p in enumerate(WIRE.all_reduce)}
    scatter = read_scatter(replace(WIRE, spread={"all_reduce": spread}))
    found = scatter.jitter(np.array([0, 2_500_000, 10_000_000, 10**9]), np.full((1, 4), 1.0))[0]
    first, second, last = scatter.jitter(scatter.num_bytes, np.full((1, 3), 1.0))[0]
    assert (first, second, last) == pytest.approx(tuple(np.exp([0.0, 0.05, 0.1])), rel=0.02)
    assert found == pytest.approx([first, (3 * first + second) / 4, second, last])


@pytest.mark.parametrize(("quantile", "wider"), [("median", (np.pi / 2) ** 0.5), ("mean", 1.0)])
@pytest.mark.parametrize("count", [25, 400])
def test_a_repeated_calibration_is_off_by_its_standard_error(quantile: str, wider: float, count: int) -> None:
    scatter = read_scatter(with_spread(WIRE, share=0.05, count=count, quantile=quantile))
    factors = scatter.repeat_calibrations(4000, np.random.default_rng(0))
    assert factors.mean(axis=0) == pytest.approx(1)
    assert factors.std(axis=0) == pytest.approx(wider * 0.05 / count**0.5, rel=0.1)
    assert np.abs(np.corrcoef(factors.T) - np.eye(3)).max() < 0.1


# Estimates, seeds, limits.


def test_a_band_scales_all_times_of_a_machine() -> None:
    estimated = replace(three(10, 20, 30), estimated=True, band=(0.5, 2.0))
    draws = Draws(Problem(estimated, WIRE), 400, seed=0)
    assert (draws.machines, draws.iterations) == (400, 1)
    assert np.array(ready_ms(draws))[:, -1] == pytest.approx(30 * draws.paces, abs=1e-5)
    assert (draws.tails / MS) == pytest.approx(2 * draws.paces, abs=1e-5)
    assert (draws.paces.min(), draws.paces.max()) == (0.5, 2.0)
    assert np.median(draws.paces) == pytest.approx(1, abs=0.05)
    alone = Draws(Problem(estimated, replace(WIRE, world_size=1)), 30, 0)
    lanes = alone.works.sum(axis=1) + alone.tails  # of one rank the step is its lane, each with its own end
    assert alone.steps(((2, 1, 0),), 0).ravel().tolist() == lanes.tolist()


MB = 10**6
SENT = (MB, 40 * MB)


def link(**spread: Any) -> Hardware:
    """1 ms and 1 ms a MB, up to 40 MB; every size of the tests is close to one of its own."""
    return replace(wired({MB: 2 * MS, 4 * MB: 5 * MS, 16 * MB: 17 * MS, 40 * MB: 41 * MS}), spread=spread)


def job(sizes: list[int], gap_ms: float = 2.0, **changes: Any) -> Workload:
    times = [round(MS * gap_ms * (len(sizes) - place)) for place in range(len(sizes))]
    return handmade(times, [size * MB for size in sizes], backward_ns=max(times) + MS, **changes)


def test_a_range_is_drawn_from_end_to_end_with_the_field_in_the_middle() -> None:
    ends = {
        "all_reduce": (0.9, 1.0, 2.2),
        "launch_cost_ns": (1000, 2000, 9000),
        "copy_in_bytes_per_s": (10**9, 2 * 10**9, 4 * 10**9),
        "comm_slowdown": (1.0, 1.0, 1.5),
    }
    known = link(ranges={name: {"low": low, "high": high} for name, (low, _, high) in ends.items()})
    known = replace(known, launch_cost_ns=2000, copy_in_bytes_per_s=2e9)
    drawn, _ = draw_machines(known, 41, np.random.default_rng(0), unknown(known, SENT))
    for name, expected in ends.items():
        if name == "all_reduce":
            values = sorted(one.all_reduce[-1].duration_ns / (41 * MS) for one in drawn)
        else:
            values = sorted(getattr(one, name) for one in drawn)
        assert (values[0], values[20], values[-1]) == pytest.approx(expected)


def test_beyond_the_curve_and_between_far_sizes_machines_differ() -> None:
    known = wired({MB: 2 * MS, 64 * MB: 65 * MS})
    drawn, _ = draw_machines(known, 41, np.random.default_rng(0), unknown(known, (MB, 1000 * MB)))
    for size, least in ((8 * MB, 1.2), (1000 * MB, 1.2), (2 * MB, 1.02)):
        times = [sim.simulate(job([size // MB]), one, assign(job([size // MB]))).sync_end_ns for one in drawn]
        assert max(times) > least * min(times)


@pytest.mark.parametrize("times", [{128 * MB: 130 * MS}, {128 * MB: 130 * MS, 256 * MB: 230 * MS}])
def test_far_below_the_curve_machines_are_from_in_proportion_to_constant(times: dict[int, int]) -> None:
    """At every size, not at the smallest alone."""
    known, most = wired(times), times[128 * MB]
    drawn, _ = draw_machines(known, 41, np.random.default_rng(0), unknown(known, (1, 128 * MB)))
    for size in (4096, MB, 64 * MB, 127 * MB):
        taken = sorted(service_ns(one.all_reduce, size) for one in drawn)
        proportional = most * size // (128 * MB)
        assert proportional == pytest.approx(taken[0], rel=0.01, abs=1)
        assert taken[-1] == pytest.approx(most, rel=0.01)
        assert taken[20] == pytest.approx(service_ns(known.all_reduce, size), rel=0.01, abs=1)


def test_a_known_length_stays_and_ready_times_move_inside_it() -> None:
    work = job([4] * 8, estimated=True, band=(0.7, 2.1), band_on="ready")
    draws = Draws(Problem(work, link()), 400, seed=0)
    assert set((draws.works.sum(axis=1) + draws.tails).tolist()) == {work.backward_ns}
    assert (draws.works >= 0).all()
    first = draws.works[:, 0] / work.gradients[-1].ready_ns
    assert first.min() < 0.8 < 1.7 < first.max()
    assert set(draws.paces.tolist()) == {1.0}


def slow_or_disturbed() -> tuple[Workload, Hardware]:
    """A step that interference or a link of twice the time explains; one bucket helps in the former only."""
    slow = {"set": {"compute_slowdown": 1.0, "comm_slowdown": 1.0}, "curve": 3.0}
    readings = [{"what": "interference", "weight": 0.5}, {"what": "slow link", "weight": 0.5, **slow}]
    known = replace(link(readings=readings), compute_slowdown=3.0, comm_slowdown=3.0)
    return job([4] * 12, gap_ms=20.0), known


def gains(work: Workload, hardware: Hardware, buckets: Any) -> float:
    ends = [sim.simulate(work, hardware, one, "analytic").sync_end_ns for one in (assign(work), buckets)]
    return float(ends[0] - ends[1])


def test_what_only_one_reading_makes_good_is_not_recommended() -> None:
    work, known = slow_or_disturbed()
    alone = sim.tune(work, replace(known, spread={}), draws=40)
    slow = replace(apply_factor(known, "curve", 3.0), compute_slowdown=1.0, comm_slowdown=1.0, spread={})
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
            apply_factor(bare, "curve", value)
            if name == "all_reduce"
            else replace(bare, **{name: round(value) if name.endswith("_ns") else value})
        )
        gain = gains(work, other, answer.assignment)
        inside += low - 1000 <= gain <= high + 1000
        assert gain >= -noise or low < -noise
    assert inside >= 18


# A link that is not the one that trains: named in an answer that is not sure.

CPU = replace(WORKLOAD, gradients=tuple(replace(one, device="cpu") for one in WORKLOAD.gradients))
CUDA = replace(WORKLOAD, gradients=tuple(replace(one, device="cuda:3") for one in WORKLOAD.gradients))
RECORDED = replace(CUDA, provenance={"backend": "cpu:gloo,cuda:nccl", "world_size": 2})
ESTIMATED = replace(WORKLOAD, provenance={"roofline": {"device": "a100-40gb-sxm"}})


@pytest.mark.parametrize(
    ("workload", "told", "is_other"),
    [
        (CPU, {"backend": "gloo"}, False),
        (CUDA, {"backend": "gloo"}, True),
        (ESTIMATED, {"backend": "gloo", "device": "cpu"}, True),
        (CUDA, {"backend": "gloo", "device": "cuda"}, False),  # gloo takes their tensors too
        (CPU, {"backend": "nccl"}, True),
        (CPU, {"fabric": {}}, True),  # computed
        (WORKLOAD, {"backend": "gloo"}, False),  # nothing says where it trains
        (RECORDED, {"backend": "rccl", "device": "cuda"}, False),  # torch calls it nccl
        (RECORDED, {"backend": "mpi", "device": "cuda"}, True),
        (RECORDED, {"fabric": {}}, False),  # computed by NCCL's model
        (replace(RECORDED, provenance={"world_size": 3}), {"backend": "nccl"}, True),
        (ESTIMATED, {"backend": "nccl", "devices": ["Tesla V100-SXM2-16GB"]}, True),
        (ESTIMATED, {"backend": "nccl", "devices": ["NVIDIA A100-SXM4-40GB", "NVIDIA A40"]}, False),
        (ESTIMATED, {"backend": "nccl", "devices": ["A GPU", 3]}, False),
        (RECORDED, {"backend": "nccl", "devices": ["NVIDIA A100-SXM4-40GB"]}, False),
    ],
)
def test_a_link_that_is_not_the_one_that_trains_is_named_wherever_it_is_asked(
    workload: Workload, told: dict[str, object], is_other: bool
) -> None:
    spread = {str(point.num_bytes): scattered(point.duration_ns, 0.02, 40) for point in link().all_reduce}
    hardware = replace(link(all_reduce=spread), provenance=told)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload)))
    answer = sim.tune(workload, hardware)
    for notes in (report.notes, answer.notes, doubts_about(workload, hardware)):
        assert any("doubtful link" in line for line in notes) == is_other
    assert answer.gain.significant is not is_other
