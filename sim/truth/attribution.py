"""Splits the error of a prediction by mechanism: copies, launches, compute, communication, waits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from sim.nouns.assignment import DDP_POLICIES
from sim.nouns.measurement import MeasuredIteration, Measurement, Record, Role
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate
from sim.units import NS_PER_S, divide_half_even

_STRETCHES = 12  # most times backward is stretched: one is exact without slow-downs, else each comes nearer


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


def attribute(record: Record, measurement: Measurement) -> Attribution | None:
    """The error of one candidate's ``sync_end``, by mechanism.

    One mechanism after another of the prediction is replaced by what was measured, in this order. Each part
    is what its replacement changed: so the parts add up, and a mechanism that another one hides counts 0.

    1. copy: the copy bandwidths become those of the noop run (DDP without communication, so that nothing
       slows its copies): into buckets in ``backward_end`` less that of the plain run (with the calls of a
       few empty hooks), back in ``sync_end`` less ``backward_end``.
    2. launch: the cost of a launch becomes the mean over buckets of launch less ready (or less the launch
       before) in the traced iterations. The recording hook launches from Python, so this is an upper bound
       of what stock DDP pays, and the difference is taken from compute.
    3. compute: backward is stretched evenly until the compute lane ends where it was measured to end. This
       is all that the lane lost to anything else: nodes that woke late, copies slowed by collectives more
       than the model has it.
    4. communication: every collective takes from its launch to its end as long as in the traced iterations,
       queues included.
    5. wait: what is left. Waits for finished collectives that return late, copies back that collectives
       slow down, and what sets traced and stock iterations apart.

    Medians over iterations throughout. Returns None where plain, noop or traced iterations are missing, a
    traced bucket's launch or end cannot be told, or another system than DDP does not launch and wait in
    bucket order.
    """
    assert measurement.asked is not None
    if measurement.asked.policy not in DDP_POLICIES:
        return None
    plain, noop = _iterations(record, "plain"), _iterations(record, "noop")
    predicted = simulate(record.workload, record.hardware, measurement.asked, "analytic")
    traced = _TracedBuckets.of(measurement, len(predicted.buckets))
    if not plain or not noop or traced is None:
        return None
    measured_sync_end = _middle(measurement.iterations, "sync_end_ns")

    noop_end = _middle(noop, "backward_end_ns")
    total_bytes = sum(0 if gradient.sparse else gradient.on_wire for gradient in record.workload.gradients)
    hardware = replace(
        record.hardware,
        copy_in_bytes_per_s=_rate(total_bytes, noop_end - _middle(plain, "backward_end_ns")),
        copy_out_bytes_per_s=_rate(total_bytes, _middle(noop, "sync_end_ns") - noop_end),
    )
    copied = simulate(record.workload, hardware, measurement.asked, "analytic")

    hardware = replace(hardware, launch_cost_ns=traced.launch_cost_ns)
    launched = simulate(record.workload, hardware, measurement.asked, "analytic")

    lane_end = _middle(measurement.iterations, "backward_end_ns")
    computed, backward = launched, record.workload.backward_ns
    for _ in range(_STRETCHES):
        if computed.backward_end_ns == lane_end:
            break
        backward = max(0, backward + lane_end - computed.backward_end_ns)
        stretched = _stretched(record.workload, backward)
        computed = simulate(stretched, hardware, measurement.asked, "analytic")

    ends = [bucket.end_ns for bucket in computed.buckets]
    measured_ends = [
        bucket.launch_ns + duration
        for bucket, duration in zip(computed.buckets, traced.durations_ns, strict=True)
    ]
    communication = _finalized(computed, ends) - _finalized(computed, measured_ends)
    return Attribution(
        total_ns=predicted.sync_end_ns - measured_sync_end,
        copy_ns=predicted.sync_end_ns - copied.sync_end_ns,
        launch_ns=copied.sync_end_ns - launched.sync_end_ns,
        compute_ns=launched.sync_end_ns - computed.sync_end_ns,
        communication_ns=communication,
        wait_ns=computed.sync_end_ns - communication - measured_sync_end,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TracedBuckets:
    """What the recording hook saw of one candidate: launch to end a bucket, and the cost of a launch."""

    durations_ns: tuple[int, ...]
    launch_cost_ns: int

    @classmethod
    def of(cls, measurement: Measurement, count: int) -> "_TracedBuckets | None":
        """Medians over traced iterations with ``count`` buckets; None where a stamp is missing."""
        durations: list[list[int]] = [[] for _ in range(count)]
        costs: list[list[int]] = [[] for _ in range(count)]
        for iteration in measurement.traced:
            if len(iteration.buckets) != count:
                continue
            launched_before = 0
            for place, bucket in enumerate(iteration.buckets):
                if bucket.ready_ns is None or bucket.launch_ns is None or bucket.end_ns is None:
                    return None
                durations[place].append(bucket.end_ns - bucket.launch_ns)
                costs[place].append(bucket.launch_ns - max(bucket.ready_ns, launched_before))
                launched_before = bucket.launch_ns
        if not all(durations):
            return None
        return cls(
            durations_ns=tuple(round(median(row)) for row in durations),
            launch_cost_ns=max(0, round(mean(median(row) for row in costs))),
        )


def _iterations(record: Record, role: Role) -> Sequence[MeasuredIteration]:
    return next((m.iterations for m in record.measurements if m.role == role), ())


def _middle(iterations: Sequence[MeasuredIteration], name: str) -> int:
    values: list[int] = [getattr(iteration, name) for iteration in iterations]
    return round(median(values))


def _rate(num_bytes: int, duration_ns: int) -> float | None:
    """Bytes/s; None, which counts as free, if no bytes were moved or no time was measured."""
    return num_bytes * NS_PER_S / duration_ns if num_bytes and duration_ns > 0 else None


def _stretched(workload: Workload, backward_ns: int) -> Workload:
    """``workload`` with a backward of ``backward_ns``, its ready times scaled alike."""
    if not workload.backward_ns:
        return workload
    return replace(
        workload,
        backward_ns=backward_ns,
        gradients=tuple(
            replace(
                gradient,
                ready_ns=None
                if gradient.ready_ns is None
                else divide_half_even(gradient.ready_ns * backward_ns, workload.backward_ns),
            )
            for gradient in workload.gradients
        ),
    )


def _finalized(timeline: Timeline, ends_ns: Sequence[int]) -> int:
    """``sync_end_ns`` if collectives end at ``ends_ns``: the lane waits and copies back, bucket by bucket."""
    time = timeline.backward_end_ns
    for bucket, end in zip(timeline.buckets, ends_ns, strict=True):
        time = max(time, end) + bucket.available_ns - bucket.copy_out_start_ns
    return time
