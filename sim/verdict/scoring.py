"""How well prediction and measurement agree, by a rule that is stated beforehand."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

import numpy as np

from sim.errors import InputError
from sim.nouns.comparison import Agreement, CandidateAgreement
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.records import Record
from sim.nouns.report import Report

MEDIAN_TARGET = 0.02
WORST_TARGET = 0.05
_BOOTSTRAPS = 2000


def median_interval(values: Sequence[int], seed: int = 0) -> tuple[int, int]:
    """95 % bootstrap confidence interval of the median, in the unit of ``values``."""
    if len(values) == 1:
        return values[0], values[0]
    generator = np.random.default_rng(seed)
    picks = generator.choice(np.asarray(values), size=(_BOOTSTRAPS, len(values)))
    low, high = np.quantile(np.median(picks, axis=1), [0.025, 0.975])
    return round(float(low)), round(float(high))


def _median_bucket(index: int, iterations: Sequence[MeasuredIteration]) -> MeasuredBucket:
    rows = [iteration.buckets[index] for iteration in iterations]

    def middle(name: str) -> int | None:
        values = [getattr(row, name) for row in rows if getattr(row, name) is not None]
        return round(median(values)) if values else None

    return MeasuredBucket(
        index=index,
        ready_ns=middle("ready_ns"),
        launch_ns=middle("launch_ns"),
        start_ns=middle("start_ns"),
        end_ns=middle("end_ns"),
    )


def compare(measurement: Measurement, predicted: Report) -> CandidateAgreement:
    """One candidate's measurement against its prediction."""
    steps = [iteration.step_ns for iteration in measurement.iterations]
    step = round(median(steps))
    if step == 0:
        raise InputError(f"candidate {measurement.name!r}: a median step of 0 ns cannot be compared")
    low, high = median_interval(steps)
    sync_end = round(median(iteration.sync_end_ns for iteration in measurement.iterations))
    exposed = sync_end - measurement.plain_backward_ns
    traced = [it for it in measurement.traced if len(it.buckets) == len(predicted.buckets)]
    buckets = tuple(_median_bucket(k, traced) for k in range(len(predicted.buckets))) if traced else ()
    errors = tuple(
        (row.end_ns - bucket.end_ns) / bucket.end_ns
        for row, bucket in zip(predicted.buckets, buckets, strict=False)
        if bucket.end_ns
    )
    probe = median(it.step_ns for it in measurement.traced) / step - 1 if measurement.traced else None
    assert measurement.observed is not None
    return CandidateAgreement(
        name=measurement.name,
        bucket_indices=measurement.observed,
        iterations=len(steps),
        measured_step_ns=step,
        step_low_ns=low,
        step_high_ns=high,
        predicted_step_ns=predicted.step_ns,
        step_error=(predicted.step_ns - step) / step,
        measured_exposed_ns=exposed,
        predicted_exposed_ns=predicted.exposed_comm_ns,
        exposed_error=(predicted.exposed_comm_ns - exposed) / exposed if exposed > 0 else None,
        measured_backward_end_ns=round(median(it.backward_end_ns for it in measurement.iterations)),
        measured_sync_end_ns=sync_end,
        buckets=buckets,
        bucket_end_errors=errors,
        median_bucket_end_error=median(map(abs, errors)) if errors else None,
        probe_effect=probe,
        predicted=predicted,
    )


def agree(
    record: Record,
    predictions: Mapping[str, Report],
    median_target: float = MEDIAN_TARGET,
    worst_target: float = WORST_TARGET,
) -> Agreement:
    """A record against the predictions of its candidates, by name.

    The rule: median step error and worst step error within their targets, and every pair of
    candidates whose measured intervals are apart in the predicted order.
    """
    measured = [measurement for measurement in record.candidates if measurement.iterations]
    for measurement in measured:
        if measurement.name not in predictions:
            raise InputError(f"record {record.name!r}: candidate {measurement.name!r} has no prediction")
    rows = [compare(measurement, predictions[measurement.name]) for measurement in measured]
    if not rows:
        raise InputError(f"record {record.name!r}: no candidate has a complete iteration to compare")
    right = apart = 0
    for one, two in combinations(rows, 2):
        if one.measured_step_ns > two.measured_step_ns:
            one, two = two, one
        if one.step_high_ns >= two.step_low_ns:
            continue
        apart += 1
        right += one.predicted_step_ns < two.predicted_step_ns
    best_measured = min(rows, key=lambda row: row.measured_step_ns)
    best_predicted = min(rows, key=lambda row: row.predicted_step_ns)
    step_errors = [abs(row.step_error) for row in rows]
    exposed_errors = [abs(row.exposed_error) for row in rows if row.exposed_error is not None]
    end_errors = [abs(error) for row in rows for error in row.bucket_end_errors]
    passed = median(step_errors) <= median_target and max(step_errors) <= worst_target and right == apart
    return Agreement(
        name=record.name,
        rows=tuple(rows),
        median_step_error=median(step_errors),
        worst_step_error=max(step_errors),
        median_exposed_error=median(exposed_errors) if exposed_errors else None,
        median_bucket_end_error=median(end_errors) if end_errors else None,
        order_pairs=apart,
        order_right=right,
        order_within_noise=len(rows) * (len(rows) - 1) // 2 - apart,
        best_measured=best_measured.name,
        best_predicted=best_predicted.name,
        best_within_noise=best_predicted.step_low_ns <= best_measured.step_high_ns,
        rule=f"median step error <= {median_target:.1%}, worst <= {worst_target:.1%}, and the predicted "
        f"order of every pair whose measured intervals are apart",
        passed=passed,
    )
