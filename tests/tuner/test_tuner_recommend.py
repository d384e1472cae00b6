"""The recommendation: families and regrets, the gain and its interval, the plateau."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Gradient, Workload
from sim.tuner.grid import default_caps
from tests.tuner.cases import MIB, MS, Case, anything, link, one_run, resnet50, transformer

# ---------------------------------------------------------------------------------------------------
# Families.


@settings(max_examples=150)
@given(anything(max_gradients=7))
def test_no_family_is_better(case: Case) -> None:
    """Regret is a family's step minus the recommended step, and never below zero."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    assert {"default", "bucket_cap_mb", "per-parameter", "single", "bucket_indices"} <= set(
        recommendation.families
    )
    for name, family in recommendation.families.items():
        report = sim.summarize(sim.simulate(workload, hardware, family.assignment, "simpy"))
        assert family.report == report, name
        assert family.regret_ns == report.step_ns - recommendation.report.step_ns
        assert family.regret_ns >= 0
    families = recommendation.families
    assert families["default"].assignment == sim.assign(workload)
    assert families["default"].report == recommendation.baseline
    assert families["per-parameter"].assignment == sim.assign(workload, "per-parameter")
    assert families["single"].assignment == sim.assign(workload, "single")
    assert families["bucket_indices"].assignment == recommendation.assignment
    assert families["bucket_indices"].report == recommendation.report
    assert families["bucket_indices"].regret_ns == 0


@settings(max_examples=150)
@given(anything(max_gradients=7))
def test_no_cap_of_the_grid_is_better(case: Case) -> None:
    """``bucket_cap_mb`` is the best cap of the grid, and never better than what is recommended."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    best = min(row.sync_end_ns for row in sim.sweep(workload, hardware)[1:])
    family = recommendation.families["bucket_cap_mb"]
    assert family.report.sync_end_ns == best >= recommendation.report.sync_end_ns
    cap = family.assignment.ddp_kwargs["bucket_cap_mb"]
    assert sim.assign(workload, bucket_cap_mb=cap) == family.assignment


@settings(max_examples=200)
@given(one_run(max_gradients=9))
def test_the_cap_list_reaches_what_is_recommended(case: Case) -> None:
    """B(i): where a ``bucket_cap_mb_list`` is offered, DDP's own rules make of it the same buckets; and one
    is offered wherever no bucket ends in an empty gradient."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    best = recommendation.assignment
    ends = [workload.gradients[bucket[-1]].num_bytes for bucket in best.bucket_indices]
    caps = best.ddp_kwargs.get("bucket_cap_mb_list")
    assert ("bucket_cap_mb_list" in recommendation.families) == (caps is not None)
    if caps is None:
        assert 0 in ends
        return
    rebuilt = sim.assign(workload, bucket_cap_mb_list=caps)
    assert rebuilt.bucket_indices == best.bucket_indices
    assert best.requires == {"torch": ">=2.11"}


@settings(max_examples=150)
@given(one_run(max_gradients=8))
def test_no_two_neighbours_can_be_merged_for_nothing(case: Case) -> None:
    """As few buckets as give the same end: the recommendation is the simplest of its kind."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    buckets = recommendation.assignment.bucket_indices
    for place in range(len(buckets) - 1):
        merged = (*buckets[:place], buckets[place] + buckets[place + 1], *buckets[place + 2 :])
        assignment = replace(recommendation.assignment, bucket_indices=merged, bucket_bytes=None)
        end = sim.simulate(workload, hardware, assignment, "analytic").sync_end_ns
        assert end > recommendation.report.sync_end_ns


def test_names_and_sources() -> None:
    recommendation = sim.tune(resnet50(), link(4))
    assert recommendation.provenance == {
        "source": "sim.tune",
        "workload": "resnet50",
        "hardware": "4 Gbit/s",
    }
    assert recommendation.proof.startswith("exact search over all contiguous partitions; 0.0")
    assert recommendation.report.engine == recommendation.baseline.engine == "simpy"


# ---------------------------------------------------------------------------------------------------
# The gain.


def two_halves(
    first_ms: float, second_ms: float, *, size_mb: float = 10, backward_ms: float = 40
) -> Workload:
    """Two gradients that DDP's default puts into one bucket only if the first is below 1 MiB; here it is
    not, so its default cuts them apart, and a third, small one comes last."""
    size = round(size_mb * 1e6)
    times = {2: first_ms, 1: second_ms, 0: backward_ms}
    sizes = {2: size, 1: size, 0: 1000}
    return Workload(
        name="two halves",
        gradients=tuple(
            Gradient(
                index=index,
                name=f"g{index}",
                shape=(sizes[index] // 4,),
                dtype="float32",
                num_bytes=sizes[index],
                ready_ns=round(times[index] * MS),
            )
            for index in range(3)
        ),
        forward_ns=10 * MS,
        backward_ns=round(backward_ms * MS),
        optimizer_ns=0,
    )


# 1 ms for a collective and 1 ms a MB: (10 MB) 11 ms, (20 MB) 21 ms.
WIRE = Hardware(
    name="1 ms + 1 ms a MB",
    world_size=2,
    all_reduce=(
        CurvePoint(num_bytes=0, duration_ns=MS),
        CurvePoint(num_bytes=100_000_000, duration_ns=101 * MS),
    ),
)


def sample(workload: Workload, *times_ms: tuple[float, float]) -> Workload:
    """Iterations in which the first two gradients were ready at these times, in ms."""
    last = workload.gradients[0].ready_ns
    rows = tuple((last, round(second * MS), round(first * MS)) for first, second in times_ms)
    return replace(workload, samples=rows)


def gains_by_hand(recommendation: Recommendation, workload: Workload) -> list[int]:
    """The gain in each recorded iteration, each simulated as a workload of its own."""
    gains = []
    for row in workload.samples:
        gradients = tuple(
            replace(gradient, ready_ns=time) for gradient, time in zip(workload.gradients, row, strict=True)
        )
        once = replace(workload, gradients=gradients, samples=())
        default, best = (
            sim.simulate(once, WIRE, assignment, "analytic").sync_end_ns
            for assignment in (sim.assign(workload), recommendation.assignment)
        )
        gains.append(default - best)
    return gains


def test_gain_by_hand() -> None:
    """Default: [2], [1, 0]: 40 + 11.001 = 51.001. Best: [2], [1], [0]: 40 + 1.001 = 41.001."""
    recommendation = sim.tune(two_halves(10, 25), WIRE)
    assert recommendation.baseline.bucket_indices == ((2,), (1, 0))
    assert recommendation.baseline.sync_end_ns == 51_001_000
    assert recommendation.report.sync_end_ns == 41_001_000
    gain = recommendation.gain
    assert gain.gain_ns == 10 * MS == recommendation.families["default"].regret_ns
    assert gain.fraction == pytest.approx(10 / 61.001)
    assert (gain.low_ns, gain.high_ns, gain.significant) == (None, None, None)
    assert gain.sentence == "saves 10.00 ms a step against DDP's default (16.4%)"


def test_a_gain_in_every_iteration_is_significant() -> None:
    workload = sample(two_halves(10, 25), (10, 25), (10.5, 26), (9.5, 24), (10, 27))
    recommendation = sim.tune(workload, WIRE)
    gains = gains_by_hand(recommendation, workload)
    assert min(gains) > 0
    gain = recommendation.gain
    assert gain.significant is True
    assert (gain.low_ns, gain.high_ns) == tuple(np.quantile(gains, [0.025, 0.975]).round().astype(int))
    assert gain.sentence == (
        f"saves 10.00 ms a step against DDP's default (16.4%), {gain.low_ns / 1e6:.2f} ms to "
        f"{gain.high_ns / 1e6:.2f} ms over the recorded iterations"
    )


def test_a_gain_that_comes_and_goes_is_not_significant() -> None:
    """Where the second half is ready only at the very end, cutting it off costs a collective more."""
    workload = sample(two_halves(10, 25), *[(10, 25)] * 4, *[(10, 40)] * 4)
    recommendation = sim.tune(workload, WIRE)
    gains = gains_by_hand(recommendation, workload)
    assert max(gains) == 10 * MS
    assert min(gains) == -1 * MS
    gain = recommendation.gain
    assert gain.gain_ns == 10 * MS
    assert (gain.low_ns, gain.high_ns) == (-1 * MS, 10 * MS)
    assert gain.significant is False
    assert gain.sentence == (
        "no significant difference over the recorded iterations (-1.00 ms to 10.00 ms a step); "
        "keep the default"
    )


def test_one_bad_iteration_in_a_hundred_does_not_spoil_the_interval() -> None:
    workload = sample(two_halves(10, 25), (10, 40), *[(10, 25)] * 99)
    assert sim.tune(workload, WIRE).gain.significant is True


def test_iterations_that_missed_a_gradient_are_left_out() -> None:
    workload = sample(two_halves(10, 25), (10, 25), (10, 26), (10, 40))
    complete = sim.tune(replace(workload, samples=workload.samples[:2]), WIRE).gain
    broken = (*workload.samples[:2], (None, *workload.samples[2][1:]))
    assert sim.tune(replace(workload, samples=broken), WIRE).gain == complete
    assert sim.tune(replace(workload, samples=broken[1:]), WIRE).gain.significant is None


def test_one_iteration_has_no_interval() -> None:
    gain = sim.tune(sample(two_halves(10, 25), (10, 25)), WIRE).gain
    assert (gain.low_ns, gain.high_ns, gain.significant) == (None, None, None)


def test_an_iteration_longer_than_backward_is_legal() -> None:
    workload = sample(two_halves(10, 25), (10, 41), (10, 60))
    gain = sim.tune(workload, WIRE).gain
    assert gain.low_ns is not None


def test_a_default_that_is_best_is_kept() -> None:
    """One gradient leaves no choice; and the sentence says so, with and without samples."""
    gradient = Gradient(index=0, name="g", shape=(), dtype="float32", num_bytes=4 * MIB, ready_ns=5)
    workload = Workload(name="one", gradients=(gradient,), forward_ns=0, backward_ns=9, optimizer_ns=0)
    for case in (workload, replace(workload, samples=((4,), (5,), (6,)))):
        recommendation = sim.tune(case, WIRE)
        assert recommendation.assignment.bucket_indices == recommendation.baseline.bucket_indices
        assert recommendation.gain.gain_ns == 0
        assert recommendation.gain.fraction == 0
        assert recommendation.gain.significant is False
        assert recommendation.gain.sentence.endswith("better than DDP's default; keep it")


def test_a_gain_of_nanoseconds_is_no_advice() -> None:
    """Copies are rounded bucket by bucket: clever cuts gain 25 ns of 173 ms, and that is not worth a word
    of praise."""
    recommendation = sim.tune(resnet50(), link(10, copy_in_bytes_per_s=10e9, copy_out_bytes_per_s=10e9))
    gain = recommendation.gain
    assert 0 < gain.gain_ns < 1000
    assert gain.sentence.endswith("less than 0.1% of it; keep DDP's default")
    assert gain.sentence.startswith(f"saves {gain.gain_ns / 1000:.3g} us a step")


@settings(max_examples=100)
@given(anything(max_gradients=6), st.data())
def test_gain_is_the_difference_of_steps(case: Case, data: st.DataObject) -> None:
    workload, hardware = case
    times = [gradient.ready_ns or 0 for gradient in workload.gradients]
    jitter = st.lists(st.integers(-3, 3), min_size=len(times), max_size=len(times))
    rows = data.draw(st.lists(jitter, max_size=4))
    samples = tuple(tuple(max(0, t + j) for t, j in zip(times, row, strict=True)) for row in rows)
    recommendation = sim.tune(replace(workload, samples=samples), hardware)
    gain = recommendation.gain
    assert gain.gain_ns == recommendation.baseline.step_ns - recommendation.report.step_ns >= 0
    if recommendation.baseline.step_ns:
        assert gain.fraction == gain.gain_ns / recommendation.baseline.step_ns
    if len(samples) < 2:
        assert gain.low_ns is gain.high_ns is None
        assert gain.significant is (None if gain.gain_ns else False)
    else:
        assert gain.low_ns is not None
        assert gain.high_ns is not None
        assert gain.low_ns <= gain.high_ns
        assert gain.significant is (gain.gain_ns > 0 and gain.low_ns > 0)
    if not gain.gain_ns or gain.significant is False or gain.fraction < 0.001:
        assert "keep" in gain.sentence
    else:
        assert gain.sentence.startswith("saves ")
        assert "keep" not in gain.sentence


# ---------------------------------------------------------------------------------------------------
# The plateau.


def check_plateau(workload: Workload, hardware: Hardware, recommendation: Recommendation) -> None:
    """The plateau, recomputed from simulated steps."""
    plateau = recommendation.plateau
    caps = default_caps(workload)
    steps = []
    for cap in caps:
        assignment = sim.assign(workload, bucket_cap_mb=cap)
        steps.append(sim.summarize(sim.simulate(workload, hardware, assignment, "analytic")).step_ns)
    best = min(steps)
    # A hair's breadth of freedom where the limit itself is a product of floats.
    near = [step <= best * (1 + plateau.tolerance) + 1e-6 * best / 100 for step in steps]
    clearly = [step <= best * (1 + plateau.tolerance) - 1e-6 * best / 100 for step in steps]
    if near != clearly:
        return
    assert plateau.tolerance == 0.01
    assert plateau.caps_mb == tuple(cap for cap, is_near in zip(caps, near, strict=True) if is_near)
    assert plateau.is_flat == all(near)
    assert plateau.low_mb in plateau.caps_mb
    assert plateau.high_mb in plateau.caps_mb
    low, high = caps.index(plateau.low_mb), caps.index(plateau.high_mb)
    assert low <= steps.index(best) <= high
    assert all(near[low : high + 1])
    assert low == 0 or not near[low - 1]
    assert high == len(caps) - 1 or not near[high + 1]
    assert plateau.holds_default == (recommendation.baseline.step_ns <= best * (1 + plateau.tolerance))
    # Stretches: unbroken, apart from each other, and all caps between them.
    inside = [cap for first, last in plateau.stretches_mb for cap in caps if first <= cap <= last]
    assert tuple(inside) == plateau.caps_mb
    for (_, last), (first, _) in pairwise(plateau.stretches_mb):
        assert any(last < cap < first for cap in caps)
    assert (plateau.low_mb, plateau.high_mb) in plateau.stretches_mb


@settings(max_examples=100)
@given(anything(max_gradients=8), st.integers(1, 2000))
def test_plateau_of_any_case(case: Case, factor: int) -> None:
    """Gradients of up to some 100 MiB, so that caps from 0.25 MiB on cut in many ways."""
    workload, hardware = case
    grown = replace(
        workload,
        gradients=tuple(
            replace(
                gradient, num_bytes=gradient.num_bytes * (factor * 100 if gradient.num_bytes < 1000 else 1)
            )
            for gradient in workload.gradients
        ),
    )
    check_plateau(grown, hardware, sim.tune(grown, hardware))


@pytest.mark.parametrize("gbit", [1, 10, 100])
@pytest.mark.parametrize("workload", [resnet50(), transformer(4)], ids=["resnet50", "gpt4"])
def test_plateau_of_real_models(workload: Workload, gbit: float) -> None:
    hardware = link(gbit, latency_us=500)
    check_plateau(workload, hardware, sim.tune(workload, hardware))


def test_a_link_that_costs_nothing_is_flat() -> None:
    plateau = sim.tune(resnet50(), replace(link(1), world_size=1)).plateau
    assert plateau.is_flat
    assert plateau.holds_default
    assert plateau.caps_mb == tuple(default_caps(resnet50()))
    assert plateau.stretches_mb == ((plateau.low_mb, plateau.high_mb),)


def test_latency_makes_small_caps_bad() -> None:
    """161 collectives of 20 ms do not hide in 100 ms."""
    plateau = sim.tune(resnet50(), link(100, latency_us=20_000)).plateau
    assert not plateau.is_flat
    assert 0.25 not in plateau.caps_mb
