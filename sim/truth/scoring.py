"""A measured record against what the model of today predicts for it, by a rule that is stated beforehand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median

from sim.clusters.links import hardware_on
from sim.clusters.machines import boxed_cluster
from sim.costs.service_time import scale
from sim.errors import InputError
from sim.metrics.intervals import difference_interval, median_interval
from sim.metrics.step import summarize
from sim.nouns.measurement import MeasuredBucket, Measurement, Mode, Record
from sim.nouns.report import Report
from sim.systems.simulate import simulate
from sim.truth.ladder import Attribution, attribute
from sim.truth.recorded_job import held_to
from sim.units import median_ns

_FEWEST = 3  # iterations: fewer say nothing of how far a median may be trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest step errors allowed, over candidates, as shares of what was measured."""

    median_step: float
    worst_step: float

    @property
    def rule(self) -> str:
        """The rule of the verdict in words: step errors, and the order."""
        return (
            f"median step error <= {self.median_step:.1%}, worst <= {self.worst_step:.1%}, and the predicted "
            f"order of every pair whose measured intervals are apart"
        )


RULE = Limits(median_step=0.02, worst_step=0.05)
# Of models that compute for real, whose steps vary by some percent from minute to minute.
TRAINED = Limits(median_step=0.03, worst_step=0.08)
# Where a prediction is made from the box as a graph, or of slow ranks.
CONTENDED = Limits(median_step=0.1, worst_step=0.1)
_OF_TRACE = (
    "no pass or fail of a step that is predicted from its own forward, backward, optimizer, ready times and "
    "buckets; tested are the ends of buckets and exposed communication"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAgreement:
    """One candidate: median over its iterations against the prediction. Times in ns, errors relative
    and signed: (predicted - measured) / measured.

    ``_low_ns`` and ``_high_ns`` are 95 % confidence intervals of medians. ``measured_exposed_ns`` is against
    the plain backward of the same run; its interval holds the scatter of both, paired by round. ``buckets``
    are medians of the traced iterations, as ``predicted.buckets``; ``probe_effect`` is the traced step over
    the untraced step, minus 1.
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
    median_bucket_end_error: float | None
    probe_effect: float | None
    predicted: Report

    @property
    def has_interval(self) -> bool:
        """Whether there are iterations enough for the intervals to mean anything."""
        return self.iterations >= _FEWEST


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
        return self.paired_rounds >= _FEWEST


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """All candidates of a record, and the verdict by the stated rule.

    A pair of candidates counts for the order only where their measured intervals are apart.
    ``regret`` is None where no candidate is named ``recommended``, ``place`` empty where the record does not
    say it, ``passed`` None in mode ``trace``: such a step is predicted from its own parts, and what is tested
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


def agreement(record: Record) -> Agreement:
    """A measured record against what the model of today predicts for it, ``as_measured``."""
    limits, record = limits_of(record), as_measured(record)
    predictions = {
        one.name: summarize(simulate(record.workload, record.hardware, one.asked, "analytic"))
        for one in record.candidates
        if one.asked is not None
    }
    return agree(record, predictions, limits)


def attribution(record: Record) -> dict[str, Attribution]:
    """By candidate, which mechanisms its error comes from, as ``attribute`` tells them of the model of today;
    without those of which the record does not tell it."""
    record = as_measured(record)
    each = ((one.name, attribute(record, one)) for one in record.candidates if one.iterations)
    return {name: parts for name, parts in each if parts is not None}


def agree(record: Record, predictions: Mapping[str, Report], limits: Limits = RULE) -> Agreement:
    """A record against the predictions of its candidates, by name.

    The rule: median step error and worst step error within ``limits``, and every pair of candidates whose
    measured intervals are apart in the predicted order. Steps of a trace are predicted from their own parts,
    and neither pass nor fail.

    Raises:
        InputError: no candidate with a complete iteration.
    """
    measured = [measurement for measurement in record.candidates if measurement.iterations]
    if not measured:
        raise InputError(f"record {record.name!r}: no candidate has a complete iteration to compare")
    plain = next((one.iterations for one in record.measurements if one.role == "plain"), ())
    plain_ns = [iteration.sync_end_ns for iteration in plain]
    rows = [compare(one, predictions[one.name], plain_ns) for one in measured]
    fastest = sorted(rows, key=lambda row: row.measured_step_ns)
    apart = [(one, two) for one, two in combinations(fastest, 2) if one.step_high_ns < two.step_low_ns]
    right = sum(one.predicted_step_ns < two.predicted_step_ns for one, two in apart)
    best_predicted = min(rows, key=lambda row: row.predicted_step_ns)
    errors = [abs(row.step_error) for row in rows]
    ends = [end for row in rows for end in _off(row.buckets, row.predicted)]
    within = median(errors) <= limits.median_step and max(errors) <= limits.worst_step
    mode = measured[0].mode
    return Agreement(
        name=record.name,
        place=str(measured[0].environment.get("place", "")),
        mode=mode,
        rows=tuple(rows),
        median_step_error=median(errors),
        worst_step_error=max(errors),
        median_exposed_error=_middle(row.exposed_error for row in rows),
        median_bucket_end_error=_middle(share for _, share in ends),
        median_bucket_end_error_ns=_middle_ns(abs(off_ns) for off_ns, _ in ends),
        worst_bucket_end_error_ns=max((abs(off_ns) for off_ns, _ in ends), default=None),
        order_pairs=len(apart),
        order_right=right,
        order_within_noise=len(rows) * (len(rows) - 1) // 2 - len(apart),
        best_measured=fastest[0].name,
        best_predicted=best_predicted.name,
        best_within_noise=best_predicted.step_low_ns <= fastest[0].step_high_ns,
        regret=_regret(measured, fastest),
        rule=_OF_TRACE if mode == "trace" else limits.rule,
        passed=None if mode == "trace" else within and right == len(apart),
    )


def _off(buckets: Sequence[MeasuredBucket], predicted: Report) -> list[tuple[int, float | None]]:
    """Predicted minus measured end of each bucket whose end can be told, in ns, and over the measured end."""
    return [
        (off_ns := one.end_ns - seen.end_ns, off_ns / seen.end_ns if seen.end_ns else None)
        for one, seen in zip(predicted.buckets, buckets, strict=False)
        if seen.end_ns is not None
    ]


def _middle(values: Iterable[float | None]) -> float | None:
    """The median size of those that are known."""
    known = [abs(value) for value in values if value is not None]
    return median(known) if known else None


def _middle_ns(times: Iterable[int | None]) -> int | None:
    known = [time for time in times if time is not None]
    return median_ns(known) if known else None


def compare(
    measurement: Measurement, predicted: Report, plain_sync_ends_ns: Sequence[int] = ()
) -> CandidateAgreement:
    """One candidate's measurement against its prediction.

    ``plain_sync_ends_ns``: how long the plain backward took in each round, ns. Without them it is taken to
    have always lasted ``measurement.plain_backward_ns``.
    """
    seen, alone_ns = measurement.iterations, measurement.plain_backward_ns
    steps, backward_ends, sync_ends = (
        [getattr(one, name) for one in seen] for name in ("step_ns", "backward_end_ns", "sync_end_ns")
    )
    step, backward_end, sync_end = map(median_ns, (steps, backward_ends, sync_ends))
    if step == 0:
        raise InputError(f"candidate {measurement.name!r}: a median step of 0 ns cannot be compared")
    low, high = median_interval(steps)
    exposed, told = sync_end - alone_ns, predicted.exposed_by_micro_batch_ns[-1]
    exposed_low, exposed_high = difference_interval(
        sync_ends, plain_sync_ends_ns or [alone_ns] * len(sync_ends)
    )
    traced = [it.buckets for it in measurement.traced if len(it.buckets) == len(predicted.buckets)]
    stamps = ("ready_ns", "launch_ns", "start_ns", "end_ns")
    buckets = tuple(
        MeasuredBucket(
            index=place, **{name: _middle_ns(getattr(bucket, name) for bucket in same) for name in stamps}
        )
        for place, same in enumerate(zip(*traced, strict=True))
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
        exposed_low_ns=exposed_low,
        exposed_high_ns=exposed_high,
        predicted_exposed_ns=told,
        exposed_error=(told - exposed) / exposed if exposed > 0 else None,
        measured_backward_end_ns=backward_end,
        measured_sync_end_ns=sync_end,
        buckets=buckets,
        median_bucket_end_error=_middle(share for _, share in _off(buckets, predicted)),
        probe_effect=probe,
        predicted=predicted,
    )


def _regret(measured: Sequence[Measurement], fastest: Sequence[CandidateAgreement]) -> Regret | None:
    """What the recommendation lost against the best measured; None where none was measured."""
    ours = next((row for row in fastest if row.name == "recommended"), None)
    if ours is None:
        return None
    # On a tie the recommendation is as good as the best.
    best = ours if ours.measured_step_ns == fastest[0].measured_step_ns else fastest[0]
    steps = {one.name: [iteration.step_ns for iteration in one.iterations] for one in measured}
    low, high = difference_interval(steps[ours.name], steps[best.name])
    regret = ours.measured_step_ns - best.measured_step_ns
    return Regret(
        best=best.name,
        regret_ns=regret,
        low_ns=low,
        high_ns=high,
        relative=regret / best.measured_step_ns,
        within_noise=low <= 0,
        paired_rounds=min(ours.iterations, best.iterations),
    )


def as_measured(record: Record) -> Record:
    """``record`` with its hardware carried to the box it was measured in, if both say theirs, the slowest
    rank's workload, and both held to the job's own step where there is one.

    A measurement takes the slowest rank of each step, whose collectives wait for no other rank: its own
    workload tells its step. Raises ``AssignmentError`` and ``NotModelledError`` as ``simulate``, and
    ``InputError`` where nothing can be held to the job's own step.
    """
    workload, hardware = record.workload, record.hardware
    if record.is_carried:
        graphs = [
            replace(boxed_cluster(box.rates_bits, box.uplink_bits), placement=box.ranks)
            for box in (record.calibrated_in, record.box)
            if box is not None
        ]
        hardware = hardware_on(hardware, *graphs)
    if record.slow:
        workload, _ = scale(workload, hardware, backward=max(factor for _, factor in record.slow))
    if record.own_step is not None:
        job = held_to(workload, hardware, record.own_step)
        if job.why_not:
            raise InputError(f"{record.name}: own step: {job.why_not}")
        workload, hardware = job.workload, job.hardware
    return replace(record, workload=workload, hardware=hardware)


def limits_of(record: Record) -> Limits:
    """``CONTENDED`` for what is predicted from the links of a box or of slow ranks, ``TRAINED`` for models
    that compute for real, else ``RULE``."""
    if any(measured.mode == "model" for measured in record.measurements):
        return TRAINED
    return CONTENDED if record.slow or record.is_carried else RULE
