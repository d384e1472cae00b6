"""Where a difference comes from: one mechanism after another changes, and a part is what its change adds.

So parts add up to the nanosecond, and what hides behind backward, or behind a mechanism that came earlier,
adds nothing. ``difference`` climbs from a step of computing alone to each of two steps; ``attribute`` climbs
from a predicted step to the measured one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import mean, median
from typing import Any, Literal

from sim.errors import SimError
from sim.nouns.assignment import DDP_POLICIES
from sim.nouns.hardware import CURVES, SLOWDOWNS, Curve, CurvePoint
from sim.nouns.measurement import MeasuredIteration, Measurement, Record
from sim.nouns.timeline import Timeline
from sim.nouns.workload import ReadyTimes, Workload
from sim.systems.simulate import simulate
from sim.units import NS_PER_S, divide_half_even

PartName = Literal[
    "compute",
    "copy_in",
    "launch",
    "find_unused",
    "accumulate",
    "latency",
    "bytes",
    "copy_out",
    "interference",
    "straggler",
]
Cause = Literal["assignment", "machine", "assignment and machine"]
# What each mechanism sets on a machine on which only computing takes time, in order.
_RUNGS: dict[PartName, tuple[str, ...]] = {
    "copy_in": ("copy_in_bytes_per_s", "hook_cost_ns"),
    "launch": ("launch_cost_ns",),
    "find_unused": ("search_unused_ns", "mark_used_ns"),
    "accumulate": ("accumulate_bytes_per_s",),
    "latency": CURVES,  # each collective takes the shortest time on its curve
    "bytes": CURVES,
    "copy_out": ("copy_out_bytes_per_s",),
    "interference": tuple(name for name in SLOWDOWNS if name != "channel_slowdown"),
}
_STRETCHES = 12  # most times backward is stretched: one is exact without slow-downs, else each comes nearer


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One mechanism's part of two steps: what each takes longer because of it, behind those before it."""

    name: PartName
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        """By how much the part became longer; negative: shorter."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One turn from a step to another, and what it changed: ``parts`` add up to ``change_ns`` exactly.

    The part that changed most comes first; parts that both steps have not are left out.
    """

    cause: Cause
    change_ns: int
    parts: tuple[Part, ...]


def difference(before: Timeline, after: Timeline) -> tuple[Change, ...]:
    """Why ``after`` takes longer or shorter than ``before``: parts that add up to the difference exactly.

    The order: computing alone (forward, loss, backward, optimizer, what hooks compute), copies into buckets,
    launches, the search for unused parameters, adding up micro-batches, the latency of collectives (each
    takes the shortest time on its curve), their bytes (each takes its whole time), copies back, computing
    and communication that slow each other, the slowest rank. That collectives slow one another down is the
    link's own, and is there from the start.

    Where assignment and machine differ, the assignment changes first, on the first machine, and then the
    machine: the other way round the two parts may differ, their sum does not. Where it cannot be played there
    they change together. The machine here is all that is not the assignment: hardware, and how fast the
    workload computes.

    Raises:
        SimError: what cannot be played, see ``sim.simulate``.
    """
    used = [(one.assignment, one.iteration) for one in (before, after)]
    assigned = [(one.policy, one.bucket_indices, one.ddp_kwargs, one.settings, at) for one, at in used]
    machines = [(one.workload, one.hardware, one.slowest) for one in (before, after)]
    causes: list[Cause] = ["assignment"] if assigned[0] != assigned[1] else []
    causes += ["machine"] if machines[0] != machines[1] else []
    steps = [before, after]
    if len(causes) == 2:
        try:
            middle = replace(before, assignment=after.assignment, iteration=after.iteration)
            steps = [before, _again(middle), after]
        except SimError:
            causes = ["assignment and machine"]
    climbed = [_climb(one) for one in steps] if causes else []
    changes = []
    for cause, (old, new) in zip(causes, pairwise(climbed), strict=True):
        names: list[PartName] = ["compute", *_RUNGS, "straggler"]
        parts = [Part(name=name, before_ns=old.get(name, 0), after_ns=new.get(name, 0)) for name in names]
        there = [part for part in parts if part.before_ns or part.after_ns]
        there.sort(key=lambda part: -abs(part.change_ns))
        change_ns = sum(part.change_ns for part in there)
        changes.append(Change(cause=cause, change_ns=change_ns, parts=tuple(there)))
    return tuple(changes)


def _again(timeline: Timeline, **changed: Any) -> Timeline:
    """What a timeline holds, with some of it changed, played once more."""
    inputs = ("workload", "hardware", "assignment", "iteration", "slowest")
    given = {name: getattr(timeline, name) for name in inputs} | changed
    workload, hardware, assignment = (given.pop(name) for name in inputs[:3])
    return simulate(workload, hardware, assignment, "analytic", **given)


def _climb(timeline: Timeline) -> dict[PartName, int]:
    """The parts of a step in ns, in order, without mechanisms that its hardware does not have."""
    whole = timeline.hardware
    names = {name for of_rung in _RUNGS.values() for name in of_rung} - set(CURVES)
    nothing = {"_per_s": None, "_ns": 0, "_slowdown": 1.0}
    bare: dict[str, Any] = {
        name: next(value for end, value in nothing.items() if name.endswith(end)) for name in names
    }
    bare |= {name: _flat(whole.curve(name), 0) for name in CURVES}
    hardware = replace(whole, **bare)
    reached = _again(timeline, hardware=hardware, slowest=None).step_ns
    parts: dict[PartName, int] = {"compute": reached}
    for part, of_rung in _RUNGS.items():
        fields: dict[str, Any] = {name: getattr(whole, name) for name in of_rung}
        if part == "latency":
            fields = {name: _flat(whole.curve(name)) for name in CURVES}
        if (richer := replace(hardware, **fields)) == hardware:
            continue
        hardware = richer
        now = _again(timeline, hardware=hardware, slowest=None).step_ns
        parts[part], reached = now - reached, now
    if timeline.slowest is not None:
        parts["straggler"] = timeline.step_ns - reached
    return parts


def _flat(curve: Curve | None, duration_ns: int | None = None) -> Curve | None:
    """A curve of one duration: the given one, else the shortest of ``curve``."""
    if curve is None:
        return None
    shortest = min(point.duration_ns for point in curve)
    return (CurvePoint(num_bytes=0, duration_ns=shortest if duration_ns is None else duration_ns),)


# ---- From a predicted step to the measured one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which mechanism the error of ``sync_end`` comes from, in ns; negative: predicted too short.

    The five parts add up to ``total_ns``, predicted minus measured ``sync_end``, exactly. How each is told
    from the others is written at ``sim.truth.ladder.attribute``.
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
    workload, asked = record.workload, measurement.asked
    assert asked is not None
    if asked.policy not in DDP_POLICIES:
        return None
    roles = {one.role: one.iterations for one in record.measurements}
    plain, noop = roles.get("plain", ()), roles.get("noop", ())
    predicted = simulate(workload, record.hardware, asked, "analytic")
    traced = _traced(measurement, len(predicted.buckets))
    if not plain or not noop or traced is None:
        return None
    durations_ns, launch_cost_ns = traced
    noop_end = _middle(noop, "backward_end_ns")
    total_bytes = sum(0 if gradient.sparse else gradient.on_wire for gradient in workload.gradients)
    hardware = replace(
        record.hardware,
        copy_in_bytes_per_s=_rate(total_bytes, noop_end - _middle(plain, "backward_end_ns")),
        copy_out_bytes_per_s=_rate(total_bytes, _middle(noop, "sync_end_ns") - noop_end),
    )
    copied = simulate(workload, hardware, asked, "analytic")
    hardware = replace(hardware, launch_cost_ns=launch_cost_ns)
    launched = simulate(workload, hardware, asked, "analytic")
    lane_end = _middle(measurement.iterations, "backward_end_ns")
    computed, backward = launched, workload.backward_ns
    for _ in range(_STRETCHES):
        if computed.backward_end_ns == lane_end:
            break
        backward = max(0, backward + lane_end - computed.backward_end_ns)
        computed = simulate(_stretched(workload, backward), hardware, asked, "analytic")
    ends = [one.launch_ns + took for one, took in zip(computed.buckets, durations_ns, strict=True)]
    sent = _finalized(computed, ends)
    reached = [
        predicted.sync_end_ns,
        copied.sync_end_ns,
        launched.sync_end_ns,
        computed.sync_end_ns,
        computed.sync_end_ns - _finalized(computed, [one.end_ns for one in computed.buckets]) + sent,
        _middle(measurement.iterations, "sync_end_ns"),
    ]
    names = ("copy_ns", "launch_ns", "compute_ns", "communication_ns", "wait_ns")
    parts = (one - two for one, two in pairwise(reached))
    return Attribution(total_ns=reached[0] - reached[-1], **dict(zip(names, parts, strict=True)))


def _traced(measurement: Measurement, count: int) -> tuple[list[int], int] | None:
    """What the recording hook saw of one candidate, medians over traced iterations with ``count`` buckets:
    launch to end a bucket, and the cost of a launch; None where a stamp is missing."""
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
    cost_ns = round(mean(median(row) for row in costs))
    return [round(median(row)) for row in durations], max(0, cost_ns)


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

    def stretched(times: ReadyTimes) -> ReadyTimes:
        return tuple(
            None if time is None else divide_half_even(time * backward_ns, workload.backward_ns)
            for time in times
        )

    return workload.retimed(stretched, backward_ns=backward_ns)


def _finalized(timeline: Timeline, ends_ns: Sequence[int]) -> int:
    """``sync_end_ns`` if collectives end at ``ends_ns``: the lane waits and copies back, bucket by bucket."""
    time = timeline.backward_end_ns
    for bucket, end in zip(timeline.buckets, ends_ns, strict=True):
        time = max(time, end) + bucket.available_ns - bucket.copy_out_start_ns
    return time
