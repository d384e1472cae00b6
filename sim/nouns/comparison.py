"""Measured against predicted."""

from dataclasses import dataclass

from sim.nouns.measurement import MeasuredBucket, Mode
from sim.nouns.report import Report

LEAST_FOR_INTERVAL = 3  # iterations: fewer say nothing of how far a median may be trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketEnd:
    """When one bucket's collective ended, ns from the start of backward.

    ``measured_ns`` is the median of the ``iterations`` in which it can be told, ``low_ns`` and ``high_ns``
    its 95 % confidence interval. ``error_ns`` is predicted minus measured; ``error`` the same over measured,
    None where the measured end is 0.
    """

    index: int
    num_bytes: int
    iterations: int
    measured_ns: int
    low_ns: int
    high_ns: int
    predicted_ns: int
    error_ns: int
    error: float | None

    @property
    def has_interval(self) -> bool:
        """Whether there are iterations enough for the interval to mean anything."""
        return self.iterations >= LEAST_FOR_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which mechanism the error of ``sync_end`` comes from, in ns; negative: predicted too short.

    The five parts add up to ``total_ns``, predicted minus measured ``sync_end``, exactly. How each is told
    from the others is written at ``sim.truth.attribution.attribute``.
    """

    total_ns: int
    compute_ns: int
    copy_ns: int
    launch_ns: int
    communication_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAgreement:
    """One candidate: median over its iterations against the prediction. Times in ns, errors relative
    and signed: (predicted - measured) / measured.

    ``step_low_ns`` and ``step_high_ns`` are the 95 % confidence interval of the median step.
    ``measured_exposed_ns`` is against the plain backward of the same run; its interval holds the scatter of
    both, paired by round. ``buckets`` are medians of the traced iterations, ``bucket_ends`` compares the
    ends that can be told. ``probe_effect`` is the traced step over the untraced step, minus 1.
    ``attribution`` is None where the record lacks what it takes: plain and noop runs, every bucket traced.
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
    exposed_low_ns: int
    exposed_high_ns: int
    predicted_exposed_ns: int
    exposed_error: float | None
    measured_backward_end_ns: int
    measured_sync_end_ns: int
    buckets: tuple[MeasuredBucket, ...]
    bucket_ends: tuple[BucketEnd, ...]
    median_bucket_end_error: float | None
    median_bucket_end_error_ns: int | None
    probe_effect: float | None
    attribution: Attribution | None
    predicted: Report

    @property
    def has_interval(self) -> bool:
        """Whether there are iterations enough for the intervals to mean anything."""
        return self.iterations >= LEAST_FOR_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What the candidate named ``recommended`` lost against the best measured, ``best``.

    ``regret_ns`` is the difference of their median steps, ``relative`` the same over the best's.
    ``low_ns`` and ``high_ns`` are its 95 % confidence interval; ``paired_rounds`` rounds, which both ran
    side by side, were drawn for it together. ``within_noise``: the interval reaches 0.
    """

    best: str
    regret_ns: int
    low_ns: int
    high_ns: int
    relative: float
    within_noise: bool
    paired_rounds: int

    @property
    def has_interval(self) -> bool:
        """Whether there are rounds enough for the interval to mean anything."""
        return self.paired_rounds >= LEAST_FOR_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """One figure held to its limit; ``value`` and ``met`` are None where the record cannot tell."""

    name: str
    limit: float
    value: float | None
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All candidates of a record, and the verdict by the stated rule.

    A pair of candidates counts for the order only where their measured intervals are apart.
    ``regret`` is None where no candidate is named ``recommended``. ``targets`` are stricter than the rule
    and decide nothing. ``place`` is empty where the record does not say where it was measured.
    ``passed`` is None in mode ``trace``: such a step is predicted from its own parts, and what is tested
    instead, as ``rule`` says, are the ends of buckets and exposed communication.
    """

    name: str
    place: str
    mode: Mode
    rows: tuple[CandidateAgreement, ...]
    median_step_error: float
    worst_step_error: float
    median_exposed_error: float | None
    median_bucket_end_error: float | None
    median_bucket_end_error_ns: int | None
    worst_bucket_end_error_ns: int | None
    order_pairs: int
    order_right: int
    order_within_noise: int
    best_measured: str
    best_predicted: str
    best_within_noise: bool
    regret: Regret | None
    rule: str
    passed: bool | None
    targets: tuple[TargetCheck, ...]
