"""Measured against predicted, on records made by hand."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.errors import InputError
from sim.metrics.noise import difference_interval, median_interval
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.records import Record
from sim.nouns.report import Report
from sim.truth.rule import TARGETS, Limits
from sim.truth.scoring import agree, compare
from tests.effort import tries
from tests.handmade import handmade, measurement

BACKWARD = 1000
WORKLOAD = handmade([900, 500], 100, forward_ns=500, backward_ns=BACKWARD, optimizer_ns=100)
HARDWARE = Hardware(name="h", world_size=2, all_reduce=(CurvePoint(num_bytes=0, duration_ns=300),))
SPLIT = Assignment(bucket_indices=((1,), (0,)))
WHOLE = Assignment(bucket_indices=((1, 0),))
# SPLIT: 500-800, 900-1200; WHOLE: 900-1200. Steps: 500 + 1200 + 100 = 1800.
PREDICTED = sim.summarize(sim.simulate(WORKLOAD, HARDWARE, SPLIT))


def predicted(step_ns: int, exposed_ns: int = 200) -> Report:
    """A prediction of which only the step (and what is exposed of it) matters."""
    return replace(PREDICTED, step_ns=step_ns, exposed_comm_ns=exposed_ns)


def measured(
    name: str,
    steps: Sequence[int],
    *,
    sync_ends: Sequence[int] | None = None,
    traced: Sequence[MeasuredIteration] = (),
    assignment: Assignment = SPLIT,
) -> Measurement:
    """A candidate with these steps."""
    ends = [1200] * len(steps) if sync_ends is None else sync_ends
    return measurement(
        name,
        assignment,
        [
            MeasuredIteration(step_ns=step, backward_end_ns=1050, sync_end_ns=end)
            for step, end in zip(steps, ends, strict=True)
        ],
        traced=tuple(traced),
        plain_backward_ns=BACKWARD,
        plain_step_ns=1600,
        complete=bool(steps),
    )


def record(*measurements: Measurement) -> Record:
    return Record(name="r", workload=WORKLOAD, hardware=HARDWARE, measurements=measurements)


def traced(step_ns: int, *ends: int | None) -> MeasuredIteration:
    return MeasuredIteration(
        step_ns=step_ns,
        backward_end_ns=1050,
        sync_end_ns=1200,
        buckets=tuple(
            MeasuredBucket(index=k, ready_ns=10 * k, launch_ns=10 * k + 1, start_ns=None, end_ns=end)
            for k, end in enumerate(ends)
        ),
    )


# ---------------------------------------------------------------------------------------------------
# One candidate.


def test_errors_are_signed_and_relative_to_what_was_measured() -> None:
    """Predicted 1800 against a median of 2000: 10 % short; exposed 200 against 400 measured: 50 % short."""
    row = compare(measured("a", [1990, 2000, 2500], sync_ends=[1390, 1400, 1900]), PREDICTED)
    assert (row.measured_step_ns, row.predicted_step_ns) == (2000, 1800)
    assert row.step_error == pytest.approx(-0.1)
    assert (row.measured_exposed_ns, row.predicted_exposed_ns) == (400, 200)
    assert row.exposed_error == pytest.approx(-0.5)
    assert (row.measured_sync_end_ns, row.measured_backward_end_ns) == (1400, 1050)
    assert row.iterations == 3
    assert row.bucket_indices == SPLIT.bucket_indices
    assert (row.buckets, row.bucket_ends) == ((), ())
    assert (row.median_bucket_end_error, row.median_bucket_end_error_ns) == (None, None)
    assert row.probe_effect is None
    assert row.predicted is PREDICTED
    above = compare(measured("b", [1600]), PREDICTED)
    assert above.step_error == pytest.approx(0.125)


def test_nothing_exposed_has_no_relative_error() -> None:
    assert compare(measured("a", [1800], sync_ends=[1000]), PREDICTED).exposed_error is None
    assert compare(measured("a", [1800], sync_ends=[990]), PREDICTED).exposed_error is None
    assert compare(measured("a", [1800], sync_ends=[990]), PREDICTED).measured_exposed_ns == -10


def test_bucket_ends_against_medians_of_the_traced_iterations() -> None:
    """Predicted ends 800 and 1200; medians 1000 and 1250: 20 % and 4 % short."""
    probes = [traced(1900, 1000, 1300), traced(1950, 990, 1250), traced(1910, 1010, 1200)]
    row = compare(measured("a", [1800], traced=probes), PREDICTED)
    assert [bucket.end_ns for bucket in row.buckets] == [1000, 1250]
    assert [bucket.ready_ns for bucket in row.buckets] == [0, 10]
    assert [bucket.start_ns for bucket in row.buckets] == [None, None]
    assert [end.error for end in row.bucket_ends] == pytest.approx([-0.2, -0.04])
    assert [end.error_ns for end in row.bucket_ends] == [-200, -50]
    assert [(end.measured_ns, end.predicted_ns) for end in row.bucket_ends] == [(1000, 800), (1250, 1200)]
    assert [(end.low_ns, end.high_ns) for end in row.bucket_ends] == [(990, 1010), (1200, 1300)]
    assert [(end.index, end.num_bytes) for end in row.bucket_ends] == [(0, 100), (1, 100)]
    assert row.median_bucket_end_error == pytest.approx(0.12)
    assert row.median_bucket_end_error_ns == 125
    assert row.probe_effect == pytest.approx(1910 / 1800 - 1)


def test_ends_that_cannot_be_told_are_left_out() -> None:
    row = compare(
        measured("a", [1800], traced=[traced(1800, None, 1250), traced(1800, None, 1150)]), PREDICTED
    )
    assert [bucket.end_ns for bucket in row.buckets] == [None, 1200]
    assert [(end.index, end.error) for end in row.bucket_ends] == [(1, 0.0)]


def test_an_end_at_0_has_an_absolute_error_only() -> None:
    row = compare(measured("a", [1800], traced=[traced(1800, 0, 1250)]), PREDICTED)
    assert [(end.error_ns, end.error) for end in row.bucket_ends] == [(800, None), (-50, -0.04)]
    assert row.median_bucket_end_error == pytest.approx(0.04)
    assert row.median_bucket_end_error_ns == 425


def test_traces_with_other_buckets_are_not_compared() -> None:
    """A traced iteration before DDP's rebuild has other buckets; it says nothing about these."""
    row = compare(measured("a", [1800], traced=[traced(1800, 1000), traced(1800, 800, 1200)]), PREDICTED)
    assert [end.error for end in row.bucket_ends] == [0.0, 0.0]
    row = compare(measured("a", [1800], traced=[traced(1800, 1000)]), PREDICTED)
    assert row.buckets == ()


def test_a_step_of_nothing_is_an_error_that_names_it() -> None:
    with pytest.raises(InputError, match="'a': a median step of 0 ns"):
        compare(measured("a", [0, 0, 0]), PREDICTED)


# ---------------------------------------------------------------------------------------------------
# The interval of a median.


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_interval_lies_within_the_values_and_around_the_median(values: list[int]) -> None:
    low, high = median_interval(values)
    assert min(values) <= low <= high <= max(values)
    assert low <= median(values) + 0.5
    assert high >= median(values) - 0.5
    assert median_interval(values) == (low, high)


@given(st.integers(0, 10**12), st.integers(1, 20))
def test_interval_of_what_never_varies(value: int, count: int) -> None:
    assert median_interval([value] * count) == (value, value)


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    """Nominally 95 %; the bootstrap of a median of 25 comes near enough."""
    generator = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        low, high = median_interval([int(value) for value in generator.normal(10_000, 500, 25)])
        hits += low <= 10_000 <= high
    assert 0.89 <= hits / 200 <= 0.99


def test_interval_narrows_with_more_iterations() -> None:
    generator = np.random.default_rng(2)
    values = [int(value) for value in generator.normal(10_000, 500, 400)]
    few, many = median_interval(values[:20]), median_interval(values)
    assert many[1] - many[0] < few[1] - few[0]


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=20))
def test_interval_of_a_difference_turns_over_with_it(pairs: list[tuple[int, int]]) -> None:
    ones, others = [one for one, _ in pairs], [other for _, other in pairs]
    low, high = difference_interval(ones, others)
    assert min(ones) - max(others) <= low <= high <= max(ones) - min(others)
    turned = difference_interval(others, ones)
    assert (-turned[1], -turned[0]) == pytest.approx((low, high), abs=1)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=20), st.integers(-(10**6), 10**6))
def test_what_disturbs_both_in_a_round_cancels(values: list[int], apart: int) -> None:
    """Paired: rounds that scatter by a second leave a constant difference as it is."""
    assert difference_interval([value + apart for value in values], values) == (apart, apart)


def test_only_rounds_that_both_have_are_drawn() -> None:
    assert difference_interval([5, 6, 10**9], [3, 4]) == (2, 2)


def test_exposed_communication_has_an_interval_paired_with_the_plain_run() -> None:
    """Rounds that are 300 slower in both runs: the difference does not scatter, the sync end does."""
    candidate = measured("a", [1800] * 3, sync_ends=[1400, 1500, 1700])
    alone = compare(candidate, PREDICTED)
    assert (alone.exposed_low_ns, alone.exposed_high_ns) == (400, 700)
    paired = compare(candidate, PREDICTED, plain_sync_ends_ns=[900, 1000, 1200])
    assert (paired.exposed_low_ns, paired.exposed_high_ns) == (500, 500)


# ---------------------------------------------------------------------------------------------------
# A record.


def spread(middle: int, width: int) -> list[int]:
    """Steps whose median is known and whose interval is at most ``width`` to either side."""
    return [middle - width, middle, middle, middle, middle, middle, middle, middle, middle + width]


def test_a_good_prediction_passes() -> None:
    rows = record(
        measured("a", spread(1800, 2)), measured("b", spread(2000, 2)), measured("c", spread(2200, 2))
    )
    found = agree(rows, {"a": predicted(1810), "b": predicted(1990), "c": predicted(2200)})
    assert found.passed
    assert (found.order_pairs, found.order_right, found.order_within_noise) == (3, 3, 0)
    assert found.median_step_error == pytest.approx(10 / 2000)
    assert found.worst_step_error == pytest.approx(10 / 1800)
    assert (found.best_measured, found.best_predicted, found.best_within_noise) == ("a", "a", True)
    assert [row.name for row in found.rows] == ["a", "b", "c"]
    assert "median step error <= 2.0%, worst <= 5.0%" in found.rule


def test_a_pair_in_the_wrong_order_fails() -> None:
    rows = record(measured("a", spread(1800, 2)), measured("b", spread(1820, 2)))
    found = agree(rows, {"a": predicted(1815), "b": predicted(1805)})
    assert found.worst_step_error < 0.02
    assert (found.order_pairs, found.order_right) == (1, 0)
    assert not found.passed
    assert (found.best_measured, found.best_predicted, found.best_within_noise) == ("a", "b", False)


def test_a_tie_in_the_prediction_is_not_the_measured_order() -> None:
    rows = record(measured("a", spread(1800, 2)), measured("b", spread(1820, 2)))
    found = agree(rows, {"a": predicted(1810), "b": predicted(1810)})
    assert (found.order_pairs, found.order_right) == (1, 0)


def test_pairs_within_the_noise_do_not_count() -> None:
    """Steps that scatter by 100 around medians 10 apart say nothing about the order."""
    noisy = [1700, 1750, 1800, 1850, 1900]
    rows = record(measured("a", noisy), measured("b", [step + 10 for step in noisy]))
    found = agree(rows, {"a": predicted(1815), "b": predicted(1805)})
    assert (found.order_pairs, found.order_right, found.order_within_noise) == (0, 0, 1)
    assert found.passed
    assert found.best_measured == "a"
    assert found.best_predicted == "b"
    assert found.best_within_noise


@pytest.mark.parametrize(
    ("errors", "passed"),
    [
        ((0.0, 0.0, 0.0), True),
        ((0.019, 0.019, 0.049), True),
        ((0.021, 0.021, 0.0), False),  # the median
        ((0.0, 0.0, 0.051), False),  # the worst
        ((0.0, 0.0, -0.051), False),
        ((-0.019, 0.019, -0.049), True),
    ],
)
def test_targets(errors: tuple[float, ...], passed: bool) -> None:
    steps = {"a": 100_000, "b": 200_000, "c": 300_000}
    rows = record(*(measured(name, spread(step, 2)) for name, step in steps.items()))
    reports = {
        name: predicted(round(step * (1 + error)))
        for (name, step), error in zip(steps.items(), errors, strict=True)
    }
    found = agree(rows, reports)
    assert found.passed == passed
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
    assert bare.median_exposed_error is None
    assert bare.median_bucket_end_error is None
    assert (bare.median_bucket_end_error_ns, bare.worst_bucket_end_error_ns) == (None, None)


def test_targets_are_checked_beside_the_rule() -> None:
    """Step 1.6 % off: within the rule, beyond the target; what was not traced cannot be told."""
    found = agree(record(measured("a", [100_000], sync_ends=[1200])), {"a": predicted(101_600)})
    assert found.passed
    assert [(check.name, check.met) for check in found.targets] == [
        ("median step error", False),
        ("worst step error", True),
        ("median bucket end error", None),
        ("median exposed error", True),
    ]
    assert [check.limit for check in found.targets] == [0.015, 0.04, 0.03, 0.08]
    assert TARGETS.median_step < Limits(median_step=0.02, worst_step=0.05).median_step


def test_targets_are_for_paced_runs_only() -> None:
    rows = record(replace(measured("a", [1800]), mode="model", environment={"place": "somewhere"}))
    found = agree(rows, {"a": PREDICTED})
    assert (found.targets, found.mode, found.place) == ((), "model", "somewhere")


def as_run(steps: int = 1, source: str | None = None) -> Measurement:
    """Steps of a trace, a bucket of which ends 20 % earlier than predicted; exposed 400 for 200."""
    probes = [traced(3000, 1000, 1200)] * steps
    made = measured("as run", [3000] * steps, sync_ends=[1400] * steps, traced=probes)
    return replace(made, mode="trace", provenance={} if source is None else {"source": source})


def test_a_step_of_a_trace_neither_passes_nor_fails() -> None:
    """Its step is predicted from itself: what is tested are ends of buckets and what is exposed."""
    for report in (PREDICTED, predicted(3000)):
        found = agree(record(as_run()), {"as run": report})
        assert found.passed is None
        assert found.targets == ()
        assert found.median_bucket_end_error == pytest.approx(0.1)
        assert found.median_exposed_error == pytest.approx(0.5)
        assert "tested are the ends of buckets and exposed communication" in found.rule


def test_too_few_steps_have_no_interval() -> None:
    for steps in (1, 2, 3, 4):
        (row,) = agree(record(as_run(steps)), {"as run": PREDICTED}).rows
        assert row.has_interval == (steps >= 3)
        assert [end.iterations for end in row.bucket_ends] == [steps, steps]
        assert all(end.has_interval == (steps >= 3) for end in row.bucket_ends)


# ---------------------------------------------------------------------------------------------------
# The regret of the recommendation.


def test_no_regret_without_a_recommendation() -> None:
    assert agree(record(measured("a", [1800])), {"a": PREDICTED}).regret is None


@pytest.mark.parametrize("order", [("recommended", "a"), ("a", "recommended")])
def test_no_regret_where_the_recommendation_is_the_best_or_ties(order: tuple[str, str]) -> None:
    found = agree(record(*(measured(name, [1800, 1810]) for name in order)), dict.fromkeys(order, PREDICTED))
    assert found.regret is not None
    assert (found.regret.best, found.regret.regret_ns, found.regret.relative) == ("recommended", 0, 0.0)
    assert (found.regret.low_ns, found.regret.high_ns, found.regret.within_noise) == (0, 0, True)


def test_regret_pairs_rounds() -> None:
    """20 behind in every round: certain, although the rounds scatter by 500."""
    best = [2000, 2500, 2100, 2300, 2200]
    rows = record(measured("recommended", [step + 20 for step in best]), measured("b", best))
    found = agree(rows, {"recommended": PREDICTED, "b": PREDICTED}).regret
    assert found is not None
    assert (found.best, found.regret_ns, found.low_ns, found.high_ns) == ("b", 20, 20, 20)
    assert found.relative == pytest.approx(20 / 2200)
    assert (found.within_noise, found.paired_rounds) == (False, 5)


def test_regret_within_noise() -> None:
    """Behind in some rounds, ahead in others."""
    rows = record(
        measured("recommended", [2010, 1990, 2030, 1980, 2020]), measured("b", [2000, 2001, 1999, 2002, 2000])
    )
    found = agree(rows, {"recommended": PREDICTED, "b": PREDICTED}).regret
    assert found is not None
    assert found.regret_ns == 10
    assert found.low_ns <= 0 < found.high_ns
    assert found.within_noise


@settings(max_examples=tries(40))
@given(st.lists(st.lists(st.integers(900, 1100), min_size=3, max_size=6), min_size=1, max_size=4))
def test_regret_is_never_negative_and_lies_in_its_interval(candidates: list[list[int]]) -> None:
    names = ["recommended", *(f"c{number}" for number in range(1, len(candidates)))]
    rows = record(*(measured(name, steps) for name, steps in zip(names, candidates, strict=True)))
    found = agree(rows, dict.fromkeys(names, PREDICTED))
    assert found.regret is not None
    assert found.regret.regret_ns >= 0
    assert found.regret.low_ns <= found.regret.high_ns
    assert (found.regret.regret_ns == 0) == (found.regret.best == "recommended")
    assert found.regret.within_noise == (found.regret.low_ns <= 0)


def test_only_candidates_with_iterations_are_compared() -> None:
    plain = replace(measured("plain", [1600]), role="plain", asked=None, observed=None)
    broken = measured("broken", [])
    rows = record(plain, measured("a", [1800]), broken)
    assert [row.name for row in agree(rows, {"a": PREDICTED, "broken": PREDICTED}).rows] == ["a"]


def test_a_record_without_any_is_refused() -> None:
    with pytest.raises(InputError, match="record 'r': no candidate has a complete iteration"):
        agree(record(measured("a", [])), {"a": PREDICTED})


def test_a_candidate_without_a_prediction_is_refused() -> None:
    rows = record(measured("a", [1800]), measured("b", [1800]))
    with pytest.raises(InputError, match="candidate 'b' has no prediction"):
        agree(rows, {"a": PREDICTED})


@settings(max_examples=tries(60))
@given(
    st.lists(
        st.tuples(st.lists(st.integers(900, 1100), min_size=1, max_size=5), st.integers(900, 1100)),
        min_size=1,
        max_size=5,
    )
)
def test_order_is_counted_pair_by_pair(candidates: list[tuple[list[int], int]]) -> None:
    names = [f"c{number}" for number in range(len(candidates))]
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
    best = {row.name: row.measured_step_ns for row in found.rows}
    assert best[found.best_measured] == min(best.values())
    assert reports[found.best_predicted].step_ns == min(report.step_ns for report in reports.values())


def test_the_facade_predicts_each_candidate() -> None:
    """``sim.agreement`` simulates what was asked for; without copies where it is told so."""
    hardware = replace(HARDWARE, copy_out_bytes_per_s=1e9)
    rows = replace(
        record(measured("split", [1800]), measured("whole", [1800], assignment=WHOLE)), hardware=hardware
    )
    found = sim.agreement(rows)
    for row, assignment in zip(found.rows, (SPLIT, WHOLE), strict=True):
        assert row.predicted == sim.summarize(sim.simulate(WORKLOAD, hardware, assignment, "analytic"))
    assert [row.predicted_step_ns for row in found.rows] == [1900, 2000]
    assert [row.predicted_step_ns for row in sim.agreement(rows, copies=False).rows] == [1800, 1800]
