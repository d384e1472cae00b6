"""Measured against predicted."""

from dataclasses import dataclass

from sim.nouns.measurement import MeasuredBucket
from sim.nouns.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAgreement:
    """One candidate: median over its iterations against the prediction. Times in ns, errors relative
    and signed: (predicted - measured) / measured.

    ``step_low_ns`` and ``step_high_ns`` are the 95 % confidence interval of the median step.
    ``measured_exposed_ns`` is against the plain backward of the same run. ``buckets`` are medians of
    the traced iterations; ``bucket_end_errors`` compares their ends, from the start of backward.
    ``probe_effect`` is the traced step over the untraced step, minus 1.
    """

    name: str
    bucket_indices: tuple[tuple[int, ...], ...]
    iterations: int
    measured_step_ns: int
    step_low_ns: int
    step_high_ns: int
    predicted_step_ns: int
    step_error: float
    measured_exposed_ns: int
    predicted_exposed_ns: int
    exposed_error: float | None
    measured_backward_end_ns: int
    measured_sync_end_ns: int
    buckets: tuple[MeasuredBucket, ...]
    bucket_end_errors: tuple[float, ...]
    median_bucket_end_error: float | None
    probe_effect: float | None
    predicted: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All candidates of a record, and the verdict by the stated rule.

    A pair of candidates counts for the order only where their measured intervals are apart.
    """

    name: str
    rows: tuple[CandidateAgreement, ...]
    median_step_error: float
    worst_step_error: float
    median_exposed_error: float | None
    median_bucket_end_error: float | None
    order_pairs: int
    order_right: int
    order_within_noise: int
    best_measured: str
    best_predicted: str
    best_within_noise: bool
    rule: str
    passed: bool
