"""The recommendation: families and regrets, the gain and its interval."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.nouns.recommendation import Recommendation
from sim.nouns.workload import Workload
from tests.effort import tries
from tests.handmade import handmade, wired
from tests.tuner.cases import (
    MIB,
    MS,
    Case,
    anything,
    link,
    one_run,
    resnet50,
    transformer,
)

TRACES = Path(__file__).parents[2] / "traces"
GPT = TRACES / "workloads" / "gpt-13.8M-cpu.json"

# ---------------------------------------------------------------------------------------------------
# Families.


OTHERS = ("zero", "ddp-", "fully_shard", "replicate")  # families of other systems than DDP


@settings(max_examples=tries(60))
@given(anything(max_gradients=7))
def test_no_family_is_better(case: Case) -> None:
    """Regret is a family's step minus the recommended step; only other systems may be ahead."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    families = recommendation.families
    assert {"default", "bucket_cap_mb", "per-parameter", "single", "bucket_indices"} <= set(families)
    assert {"first_bucket_mb+bucket_cap_mb", "DDP_SET_LAST_BUCKET_CAP"} <= set(families)
    for policy in ("zero1", "zero2"):
        name = f"{policy} reduce_bucket_size"
        assert (name in families) != (name in recommendation.absent)
    for name in ("ddp-bucket-size", "ddp-num-buckets", "fully_shard units", "replicate units"):
        assert (name in families) != (name in recommendation.absent)
    for name, family in families.items():
        report = sim.summarize(sim.simulate(workload, hardware, family.assignment, "analytic"))
        assert replace(family.report, engine="") == replace(report, engine=""), name
        assert family.regret_ns == report.step_ns - recommendation.report.step_ns
        assert family.regret_ns >= 0 or name.startswith(OTHERS), name
    assert families["default"].assignment == sim.assign(workload)
    assert replace(families["default"].report, engine="simpy") == recommendation.baseline
    assert families["per-parameter"].assignment == sim.assign(workload, "per-parameter")
    assert families["single"].assignment == sim.assign(workload, "single")
    assert families["bucket_indices"].assignment == recommendation.assignment
    assert replace(families["bucket_indices"].report, engine="simpy") == recommendation.report
    assert families["bucket_indices"].regret_ns == 0
    assert recommendation.report.engine == recommendation.baseline.engine == "simpy"


@settings(max_examples=tries(60))
@given(anything(max_gradients=7), st.lists(st.floats(0, 64), max_size=20, unique=True))
def test_no_cap_is_better_than_the_best_cap(case: Case, caps: list[float]) -> None:
    """``bucket_cap_mb`` is the best of all caps, and never better than the best buckets of all."""
    workload, hardware = case
    recommendation = sim.tune(workload, hardware)
    family = recommendation.families["bucket_cap_mb"]
    rows = sim.sweep(workload, hardware, caps) if caps else sim.sweep(workload, hardware)
    for row in rows[1:]:
        assert family.report.sync_end_ns <= row.sync_end_ns
    assert family.report.sync_end_ns >= recommendation.families["bucket_indices"].report.sync_end_ns
    cap = family.assignment.ddp_kwargs["bucket_cap_mb"]
    assert sim.assign(workload, bucket_cap_mb=cap) == family.assignment


def varied(workload: Workload, random: Random) -> Workload:
    """Six recorded iterations, some gradients a little earlier or later than nominal."""
    times = [gradient.ready_ns or 0 for gradient in workload.gradients]
    rows = tuple(tuple(max(0, time + random.randint(-3, 3)) for time in times) for _ in range(6))
    return replace(workload, samples=rows)


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"seed": "a"}, "seed: 'a' is not legal; give an integer >= 0"),
        ({"seed": True}, "seed: True is not legal"),
        ({"draws": 1.5}, "draws: 1.5 is not legal; give an integer >= 1"),
    ],
)
def test_arguments_that_are_not_legal(given_: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sim.tune(resnet50(), link(4), **given_)


GPT_4 = transformer(4, vocabulary=3000)
COPIED = link(4, copy_out_bytes_per_s=1e10)


@cache
def tuned_gpt() -> Recommendation:
    return sim.tune(GPT_4, COPIED)


def test_the_paths_are_those_of_both_timelines() -> None:
    answer = tuned_gpt()
    for path, report in ((answer.critical_path, answer.report), (answer.baseline_path, answer.baseline)):
        assert path[0].start_ns == 0
        assert path[-1].end_ns == report.sync_end_ns
        assert all(one.end_ns == other.start_ns for one, other in pairwise(path))


@settings(max_examples=tries(100))
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


@settings(max_examples=tries(150))
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
    size, ready = round(size_mb * 1e6), [round(ms * MS) for ms in (backward_ms, second_ms, first_ms)]
    return handmade(ready, [1000, size, size], name="two halves", forward_ns=10 * MS, backward_ns=ready[0])


# 1 ms for a collective and 1 ms a MB: (10 MB) 11 ms, (20 MB) 21 ms.
EXACTLY = {"ranges": {"all_reduce": {"low": 1.0, "high": 1.0}}}  # else a curve without scatter is not exact
WIRE = replace(wired({0: MS, 100_000_000: 101 * MS}), spread=EXACTLY)


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
    assert gain.sentence == (
        "saves 10.00 ms a step against DDP's default (16.4%); not recorded, so not known: "
        "how iterations vary and how all-reduces vary"
    )


def test_a_gain_in_every_iteration_is_significant() -> None:
    workload = sample(two_halves(10, 25), (10, 25), (10.5, 26), (9.5, 24), (10, 27))
    recommendation = sim.tune(workload, WIRE)
    gains = gains_by_hand(recommendation, workload)
    assert min(gains) > 0
    gain = recommendation.gain
    assert gain.significant is True
    half = 3.182 * np.std(gains, ddof=1) / 2  # Student's t, 3 degrees of freedom; 4 iterations
    assert (gain.low_ns, gain.high_ns) == pytest.approx(
        (np.mean(gains) - half, np.mean(gains) + half), rel=1e-3
    )
    assert gain.mean_ns == np.mean(gains)
    assert gain.sentence == (
        f"saves 10.00 ms a step against DDP's default (16.4%), {gain.low_ns / 1e6:.2f} ms to "
        f"{gain.high_ns / 1e6:.2f} ms with 95% confidence; not recorded, so not known: "
        "how all-reduces vary"
    )


def test_a_gain_that_comes_and_goes_is_not_significant() -> None:
    """Where the second half is ready only at the very end, cutting it off costs a collective more."""
    workload = sample(two_halves(10, 25), *[(10, 25)] * 4, *[(10, 40)] * 4)
    recommendation = sim.tune(workload, WIRE)
    cut_off = recommendation.families["bucket_indices"].assignment
    gains = gains_by_hand(replace(recommendation, assignment=cut_off), workload)
    assert max(gains) == 10 * MS
    assert min(gains) == -1 * MS
    assert recommendation.robust is not None
    row = recommendation.robust.row("bucket_indices")
    assert row.gain_ns == 4.5 * MS
    assert row.gain_low_ns < 0
    gain = recommendation.gain
    assert (gain.gain_ns, gain.significant) == (0, False)  # what is recommended is the default
    assert gain.sentence == (
        f"no significant difference: the gain of the buckets that are best by the times as given is "
        f"{row.gain_low_ns / 1e6:.2f} ms to {row.gain_high_ns / 1e6:.2f} ms with 95% confidence; "
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
    workload = handmade([5], 4 * MIB, backward_ns=9)
    for case in (workload, replace(workload, samples=((4,), (5,), (6,)))):
        recommendation = sim.tune(case, WIRE)
        assert recommendation.assignment.bucket_indices == recommendation.baseline.bucket_indices
        assert recommendation.gain.gain_ns == 0
        assert recommendation.gain.fraction == 0
        assert recommendation.gain.significant is False
        assert recommendation.gain.sentence.endswith("better than DDP's default; keep it")


def test_a_gain_of_nanoseconds_is_no_advice() -> None:
    """Copies are rounded bucket by bucket: clever cuts gain some ns of 173 ms, and that is not worth a word
    of praise."""
    recommendation = sim.tune(resnet50(), link(10, copy_in_bytes_per_s=10e9, copy_out_bytes_per_s=10e9))
    gain = recommendation.gain
    assert 0 < gain.gain_ns < 1000
    assert gain.significant is False
    assert gain.sentence == (
        f"no significant difference: {gain.gain_ns / 1000:.3g} us a step is less than 0.1% of it; "
        "keep the default"
    )


@settings(max_examples=tries(100))
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
    if len(samples) < 2 and gain.rests_on:  # the curve is a guess at these sizes
        assert gain.noise_ns is None
        assert gain.low_ns is not None
        assert gain.high_ns is not None
        assert gain.mean_ns is not None
        assert gain.low_ns <= gain.mean_ns <= gain.high_ns
        assert gain.significant is (None if gain.low_ns > 0 and gain.fraction >= 0.001 else False)
    elif len(samples) < 2:
        assert gain.low_ns is gain.high_ns is gain.noise_ns is None
        assert gain.significant is (None if gain.fraction >= 0.001 else False)
    else:
        assert gain.low_ns is not None
        assert gain.high_ns is not None
        assert gain.noise_ns is not None
        assert gain.low_ns <= gain.mean_ns <= gain.high_ns
        if gain.significant:
            assert gain.low_ns > 0
            is_large = max(gain.gain_ns, gain.mean_ns) >= 0.01 * recommendation.baseline.step_ns
            assert is_large or max(gain.gain_ns, gain.mean_ns) > gain.noise_ns
    if gain.significant is False:
        assert "keep" in gain.sentence
    else:
        assert gain.sentence.startswith("saves ")
        assert "keep" not in gain.sentence
