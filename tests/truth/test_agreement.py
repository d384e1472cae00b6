"""Measured against predicted, on records made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.metrics.intervals import difference_interval, median_interval
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import Box, MeasuredIteration, Measurement, Record
from sim.nouns.recommendation import Gain
from sim.nouns.report import Report
from sim.nouns.workload import Workload
from sim.truth import scoring
from sim.truth.recorded_job import held_to
from sim.truth.scoring import Limits, agree, compare
from sim.truth.turns import MIN_ROUNDS, AbTest, judge_turns
from tests.effort import tries
from tests.handmade import handmade, measurement, seen_bucket, wired

BACKWARD = 1000
WORKLOAD = handmade([900, 500], 100, forward_ns=500, backward_ns=BACKWARD, optimizer_ns=100)
HARDWARE = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=300),))
SPLIT = Assignment(bucket_indices=((1,), (0,)))
# 500-800, 900-1200. The step: 500 + 1200 + 100 = 1800.
PREDICTED = sim.summarize(sim.simulate(WORKLOAD, HARDWARE, SPLIT))


def predicted(step_ns: int) -> Report:
    """A prediction of which only the step matters."""
    return replace(PREDICTED, step_ns=step_ns)


def measured(
    name: str,
    steps: Sequence[int],
    *,
    sync_ends: Sequence[int] | None = None,
    traced: Sequence[MeasuredIteration] = (),
) -> Measurement:
    """A candidate with these steps."""
    ends = zip(steps, sync_ends or [1200] * len(steps), strict=True)
    seen = [MeasuredIteration(step_ns=step, backward_end_ns=1050, sync_end_ns=end) for step, end in ends]
    known = {"plain_backward_ns": BACKWARD, "plain_step_ns": 1600, "complete": bool(steps)}
    return measurement(name, SPLIT, seen, traced=tuple(traced), **known)


def record(*measurements: Measurement) -> Record:
    return Record(name="r", workload=WORKLOAD, hardware=HARDWARE, measurements=measurements)


def traced(step_ns: int, *ends: int | None) -> MeasuredIteration:
    buckets = tuple(seen_bucket(k, 10 * k, 10 * k + 1, end) for k, end in enumerate(ends))
    return MeasuredIteration(step_ns=step_ns, backward_end_ns=1050, sync_end_ns=1200, buckets=buckets)


def test_errors_are_signed_and_relative_to_what_was_measured() -> None:
    """Predicted 1800 against a median of 2000: 10 % short; exposed 200 against 400 measured: 50 % short."""
    row = compare(measured("a", [1990, 2000, 2500], sync_ends=[1390, 1400, 1900]), PREDICTED)
    assert (row.measured_step_ns, row.predicted_step_ns, row.iterations) == (2000, 1800, 3)
    assert (row.measured_exposed_ns, row.predicted_exposed_ns) == (400, 200)
    assert (row.step_error, row.exposed_error) == (pytest.approx(-0.1), pytest.approx(-0.5))
    assert (row.measured_sync_end_ns, row.measured_backward_end_ns) == (1400, 1050)
    assert (row.buckets, row.median_bucket_end_error, row.probe_effect) == ((), None, None)
    assert compare(measured("b", [1600]), PREDICTED).step_error == pytest.approx(0.125)
    with pytest.raises(InputError, match="'a': a median step of 0 ns"):
        compare(measured("a", [0, 0, 0]), PREDICTED)


def test_bucket_ends_against_medians_of_the_traced_iterations() -> None:
    """Predicted ends 800 and 1200; medians 1000 and 1250: 20 % and 4 % short."""
    probes = [traced(1900, 1000, 1300), traced(1950, 990, 1250), traced(1910, 1010, 1200)]
    row = compare(measured("a", [1800], traced=probes), PREDICTED)
    stamps = [(one.ready_ns, one.start_ns, one.end_ns) for one in row.buckets]
    assert stamps == [(0, None, 1000), (10, None, 1250)]
    assert row.median_bucket_end_error == pytest.approx(0.12)
    assert row.probe_effect == pytest.approx(1910 / 1800 - 1)


# The interval of a median, and of a difference.


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    """Nominally 95 %; the bootstrap of a median of 25 comes near enough."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        low, high = median_interval([int(value) for value in generator.normal(10_000, 500, 25)])
        hits += low <= 10_000 <= high
    assert 0.89 <= hits / 200 <= 0.99


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20),
    st.integers(-(10**6), 10**6),
)
def test_interval_of_a_difference_turns_over_with_it(pairs: list[tuple[int, int]], apart: int) -> None:
    """Paired: rounds that scatter by a second leave a constant difference as it is."""
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    within, (low, high) = median_interval(ones), difference_interval(ones, others)
    assert min(ones) <= within[0] <= median(ones) + 0.5
    assert median(ones) - 0.5 <= within[1] <= max(ones)
    assert min(ones) - max(others) <= low <= high <= max(ones) - min(others)
    turned = difference_interval(others, ones)
    assert (-turned[1], -turned[0]) == pytest.approx((low, high), abs=1)
    assert difference_interval([value + apart for value in ones], ones) == (apart, apart)


def test_exposed_communication_has_an_interval_paired_with_the_plain_run() -> None:
    """Rounds that are 300 slower in both runs: the difference does not scatter, the sync end does."""
    candidate = measured("a", [1800] * 3, sync_ends=[1400, 1500, 1700])
    alone = compare(candidate, PREDICTED)
    assert (alone.exposed_low_ns, alone.exposed_high_ns) == (400, 700)
    paired = compare(candidate, PREDICTED, plain_sync_ends_ns=[900, 1000, 1200])
    assert (paired.exposed_low_ns, paired.exposed_high_ns) == (500, 500)


# A record.


def spread(middle: int, width: int) -> list[int]:
    """Steps whose median is known and whose interval is at most ``width`` to either side."""
    return [middle - width, middle, middle, middle, middle, middle, middle, middle, middle + width]


@pytest.mark.parametrize(
    ("errors", "passed"),
    [
        ((0.0, 0.0, 0.0), True),
        ((0.019, 0.019, 0.049), True),
        ((0.021, 0.021, 0.0), False),  # the median
        ((0.0, 0.0, -0.051), False),  # the worst
    ],
)
def test_the_rule(errors: tuple[float, ...], passed: bool) -> None:
    steps = {"a": 100_000, "b": 200_000, "c": 300_000}
    rows = record(*(measured(name, spread(step, 2)) for name, step in steps.items()))
    told = zip(steps.items(), errors, strict=True)
    reports = {name: predicted(round(step * (1 + error))) for (name, step), error in told}
    found = agree(rows, reports)
    assert found.passed == passed
    assert (found.order_pairs, found.order_right, found.order_within_noise) == (3, 3, 0)
    assert (found.best_measured, found.best_predicted, found.best_within_noise) == ("a", "a", True)
    assert "median step error <= 2.0%, worst <= 5.0%" in found.rule
    assert found.worst_step_error == pytest.approx(max(map(abs, errors)))
    assert found.median_step_error == pytest.approx(median(map(abs, errors)))
    assert agree(rows, reports, limits=Limits(median_step=1, worst_step=1)).passed


def test_bucket_and_exposed_errors_are_pooled() -> None:
    probes = [traced(1800, 1000, 1200)]  # ends short by 20 % and 0 %
    rows = record(
        measured("a", [1800], sync_ends=[1400], traced=probes),  # exposed 400, predicted 200: -50 %
        measured("b", [1800], sync_ends=[1160]),  # exposed 160, predicted 200: +25 %
        measured("c", [1800], sync_ends=[900]),  # none
    )
    found = agree(rows, dict.fromkeys("abc", PREDICTED))
    assert found.median_exposed_error == pytest.approx(0.375)
    assert found.median_bucket_end_error == pytest.approx(0.1)
    assert (found.median_bucket_end_error_ns, found.worst_bucket_end_error_ns) == (100, 200)
    bare = agree(record(measured("a", [1800], sync_ends=[900])), {"a": PREDICTED})
    assert (bare.median_exposed_error, bare.median_bucket_end_error) == (None, None)
    assert (bare.median_bucket_end_error_ns, bare.worst_bucket_end_error_ns) == (None, None)


def test_a_step_of_a_trace_neither_passes_nor_fails() -> None:
    """Its step is predicted from itself: what is tested are ends of buckets and what is exposed. Fewer than
    three steps have no interval."""
    for steps in (1, 2, 3):
        probes = [traced(3000, 1000, 1200)] * steps  # a bucket ends 20 % earlier than predicted
        one = measured("as run", [3000] * steps, sync_ends=[1400] * steps, traced=probes)
        found = agree(record(replace(one, mode="trace")), {"as run": PREDICTED})
        assert (found.passed, found.rows[0].has_interval) == (None, steps >= 3)
        assert found.median_bucket_end_error == pytest.approx(0.1)
        assert found.median_exposed_error == pytest.approx(0.5)
        assert "tested are the ends of buckets and exposed communication" in found.rule


# The regret of the recommendation.


def test_regret_pairs_rounds() -> None:
    """20 behind in every round: certain, although the rounds scatter by 500; none where it ties."""
    best = [2000, 2500, 2100, 2300, 2200]
    for behind in (20, 0):
        rows = record(measured("b", best), measured("recommended", [step + behind for step in best]))
        found = agree(rows, {"recommended": PREDICTED, "b": PREDICTED}).regret
        assert (found.best, found.paired_rounds) == ("b" if behind else "recommended", 5)
        assert (found.regret_ns, found.low_ns, found.high_ns) == (behind,) * 3
        assert (found.relative, found.within_noise) == (pytest.approx(behind / 2200), not behind)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(InputError, match="record 'r': no candidate has a complete iteration"):
        agree(record(measured("a", [])), {"a": PREDICTED})
    for default, recommended in (([], []), ([1], []), ([], [1]), ([0], [5])):
        with pytest.raises(InputError, match="A/B 'm'"):
            judge(default, recommended)


@settings(max_examples=tries(60))
@given(
    st.lists(
        st.tuples(st.lists(st.integers(900, 1100), min_size=1, max_size=5), st.integers(900, 1100)),
        min_size=1,
        max_size=5,
    )
)
def test_order_is_counted_pair_by_pair(candidates: list[tuple[list[int], int]]) -> None:
    names = ["recommended", *(f"c{number}" for number in range(1, len(candidates)))]
    rows = record(*(measured(name, steps) for name, (steps, _) in zip(names, candidates, strict=True)))
    reports = {name: predicted(step) for name, (_, step) in zip(names, candidates, strict=True)}
    found = agree(rows, reports)
    right = wrong = noise = 0
    for (one, step_one), (two, step_two) in combinations(candidates, 2):
        (low_one, high_one), (low_two, high_two) = median_interval(one), median_interval(two)
        if high_one < low_two or high_two < low_one:
            as_measured = step_one < step_two if high_one < low_two else step_two < step_one
            right, wrong = right + as_measured, wrong + (not as_measured)
        else:
            noise += 1
    assert (found.order_right, found.order_pairs, found.order_within_noise) == (right, right + wrong, noise)
    if wrong:
        assert not found.passed
    assert found.regret.regret_ns >= 0
    assert found.regret.low_ns <= found.regret.high_ns
    assert (found.regret.regret_ns == 0) == (found.regret.best == "recommended")
    assert found.regret.within_noise == (found.regret.low_ns <= 0)
    best = {row.name: row.measured_step_ns for row in found.rows}
    assert best[found.best_measured] == min(best.values())
    assert reports[found.best_predicted].step_ns == min(report.step_ns for report in reports.values())


# Records of a box: other rates than the hardware's, slow ranks; each predicted as measured.

MS, MIB = 1_000_000, 1 << 20
GBIT = 10**9
LINE = 1448 / 1514  # data of a full frame (RFC 791, 9293, 7323; IEEE 802.3)


def workload_of() -> Workload:
    return handmade([(6 - index) * 5 * MS for index in range(6)], MIB, forward_ns=7 * MS, optimizer_ns=MS)


def hardware_of(rate_bits: int) -> Hardware:
    """A ring of four over wires of this rate and nothing else: what the box's graph says, plus a latency."""

    def lasts(num_bytes: int) -> int:
        return MS + round(num_bytes * 2 * 3 / 4 * 8 * GBIT / (rate_bits * LINE))

    return wired({size: lasts(size) for size in (1 << 12, MIB, 1 << 26)}, world_size=4)


def record_of(hardware: Hardware, box: Box | None, **more: Any) -> Record:
    job, assignment = workload_of(), sim.assign(workload_of())
    seen = MeasuredIteration(step_ns=100 * MS, backward_end_ns=50 * MS, sync_end_ns=92 * MS)
    one = measurement("DDP default", assignment, [seen] * 3, world_size=hardware.world_size)
    return Record(name="made", workload=job, hardware=hardware, measurements=(one,), box=box, **more)


def test_a_slow_port_slows_the_whole_ring() -> None:
    """Four hosts of which one has half the rate: every byte waits for it."""
    even = Box(rates_bits=(GBIT,) * 4, uplink_bits=None, hosts=(0, 1, 2, 3))
    slow = Box(rates_bits=(GBIT, GBIT, GBIT, GBIT // 2), uplink_bits=None, hosts=(0, 1, 2, 3))
    calibrated = hardware_of(GBIT)
    record = record_of(calibrated, slow, calibrated_in=even)
    carried = scoring.as_measured(record).hardware
    wanted = hardware_of(GBIT // 2)
    for point, right in zip(carried.all_reduce, wanted.all_reduce, strict=True):
        assert point.duration_ns == pytest.approx(right.duration_ns, abs=2)
    assert scoring.limits_of(record).worst_step == 0.1
    there = record_of(calibrated, even, calibrated_in=even)
    assert scoring.as_measured(there).hardware is calibrated
    assert scoring.as_measured(record_of(calibrated, slow)).hardware is calibrated, "it does not say where"
    assert scoring.limits_of(there).worst_step == 0.05


def test_a_slow_rank_s_own_schedule_is_what_the_slowest_rank_is_held_against() -> None:
    workload, hardware = workload_of(), hardware_of(GBIT)
    record = record_of(hardware, None, slow=((3, 1.5), (1, 1.2)))
    slower, _ = sim.scale(workload, hardware, backward=1.5)
    (row,) = sim.agreement(record).rows
    assert row.predicted_step_ns == sim.simulate(slower, hardware, sim.assign(workload)).step_ns
    beside = sim.simulate(workload, hardware, sim.assign(workload), slowest=slower)
    assert row.predicted_step_ns >= beside.step_ns, "no rank is later than the slowest"


def test_a_record_is_predicted_from_the_machine_that_its_job_is_tuned_on() -> None:
    """What a job's search for unused parameters takes is in its recorded times, and is not added again."""
    job = workload_of().with_switches({"find_unused_parameters": True})
    record = record_of(replace(hardware_of(GBIT), search_unused_ns=10**6, mark_used_ns=10**6), None)
    record = replace(record, workload=job, own_step=record.measurements[0])
    assert record.own_step is not None
    held = held_to(job, record.hardware, record.own_step)
    there = scoring.as_measured(record)
    assert (there.workload, there.hardware) == (held.workload, held.hardware)
    assert (there.hardware.search_unused_ns, there.hardware.mark_used_ns) == (0, 0)

    few = replace(record.own_step, iterations=record.own_step.iterations[:2])
    with pytest.raises(InputError, match=r"made: own step: .* 3"):
        sim.agreement(replace(record, own_step=few))


# The A/B verdict: what a gain is, when it counts, and what it is worth.

STEPS = st.lists(st.integers(10**6, 10**9), min_size=MIN_ROUNDS, max_size=30)


def judge(default: list[int], recommended: list[int], world_size: int = 2, **more: object) -> AbTest:
    return judge_turns(default, recommended, [1], name="m", world_size=world_size, **more)  # type: ignore[arg-type]


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
    assert result.gpu_hours_saved_per_day == pytest.approx(
        world_size * 24 * result.gain_ns / result.default_step_ns
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(10**6, 10**9), st.integers(10**6, 10**9)), min_size=6, max_size=20))
def test_changing_sides_turns_the_gain_round(pairs: list[tuple[int, int]]) -> None:
    """And the sentence says what the interval does."""
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    there, back = judge(ones, others), judge(others, ones)
    assert there.gain_ns == -back.gain_ns
    assert there.gain_low_ns == pytest.approx(-back.gain_high_ns, abs=1)
    assert there.gain_high_ns == pytest.approx(-back.gain_low_ns, abs=1)
    for result in (there, back, judge(ones, ones)):
        assert result.gain_low_ns <= result.gain_high_ns
        holds_zero = result.gain_low_ns <= 0 <= result.gain_high_ns
        assert result.significant == (not holds_zero)
        assert ("no significant difference" in result.sentence) == holds_zero
        assert ("slower" in result.sentence) == (result.significant and result.gain_high_ns < 0)


def test_few_rounds_never_prove_anything() -> None:
    result = judge([200] * (MIN_ROUNDS - 1), [100] * (MIN_ROUNDS - 1))
    assert (result.gain_ns, result.significant) == (100, False)
    assert f"give at least {MIN_ROUNDS}" in result.sentence
    one_sided = judge([200] * 7 + [10**9], [100] * 7)
    assert (one_sided.rounds, one_sided.default_step_ns) == (7, 200)


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


def test_hours_and_the_prediction() -> None:
    """A step from 200 to 100 ms on 8 ranks: half of 192 GPU-hours."""
    ms, told = 10**6, {"fraction": 0.5, "significant": True, "sentence": "saves"}
    for low, high, mean_ms, gain_ms, met in (
        (90, 110, None, 99, True),
        (30, 98, None, 99, False),
        (90, 110, 95, 95, True),  # the gain that its interval is of
    ):
        mean_ns = None if mean_ms is None else mean_ms * ms
        predicted = Gain(gain_ns=99 * ms, low_ns=low * ms, high_ns=high * ms, mean_ns=mean_ns, **told)  # type: ignore[arg-type]
        result = judge([200 * ms] * 6, [100 * ms] * 6, 8, predicted=predicted)
        assert (result.predicted_gain_ns, result.prediction_met) == (gain_ms * ms, met)
        assert result.gpu_hours_saved_per_day == 96.0
    assert result.sentence == (
        "the recommendation saves 100.00 ms a step (50.0%), 95 % interval 100.00 ms to 100.00 ms a step: "
        "96 GPU-hours a day"
    )
