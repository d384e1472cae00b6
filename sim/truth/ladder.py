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
from sim.nouns.measurement import MeasuredIteration, Measurement, Record, Role
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.registry import collectives
from sim.systems.simulate import simulate
from sim.units import NS_PER_S, divide_half_even, format_ms, format_size

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
_WORDS: dict[PartName, str] = {
    "compute": "Computing alone",
    "copy_in": "Copies into buckets",
    "launch": "Launches",
    "find_unused": "Searching and marking unused parameters",
    "accumulate": "Adding up micro-batches",
    "latency": "Latency of collectives",
    "bytes": "Bytes on the wire",
    "copy_out": "Copies back",
    "interference": "Computing and communication that slow each other",
    "straggler": "Waiting for the slowest rank",
}
_STRETCHES = 12  # most times backward is stretched: one is exact without slow-downs, else each comes nearer
_BESIDE_COMPUTING = tuple(name for name in SLOWDOWNS if name != "channel_slowdown")
# What each mechanism sets on a machine on which only computing takes time, in order.
_RUNGS: dict[PartName, tuple[str, ...]] = {
    "copy_in": ("copy_in_bytes_per_s", "hook_cost_ns"),
    "launch": ("launch_cost_ns",),
    "find_unused": ("search_unused_ns", "mark_used_ns"),
    "accumulate": ("accumulate_bytes_per_s",),
    "latency": CURVES,  # each collective takes the shortest time on its curve
    "bytes": CURVES,
    "copy_out": ("copy_out_bytes_per_s",),
    "interference": _BESIDE_COMPUTING,
}


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

    @property
    def sentence(self) -> str:
        """The part in words."""
        words, after = _WORDS[self.name], format_ms(self.after_ns)
        if format_ms(self.before_ns) == after:
            return f"{words}: {after} in both."
        sign = "+" if self.change_ns > 0 else "-"
        return f"{words}: {format_ms(self.before_ns)} became {after}, {sign}{format_ms(abs(self.change_ns))}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One turn from a step to another, and what it changed: ``parts`` add up to ``change_ns`` exactly.

    The part that changed most comes first; parts that both steps have not are left out.
    """

    cause: Cause
    before_step_ns: int
    after_step_ns: int
    parts: tuple[Part, ...]

    @property
    def change_ns(self) -> int:
        """By how much the step became longer; negative: shorter."""
        return self.after_step_ns - self.before_step_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Why one step is not as long as another.

    ``changes`` lead from the one to the other in turns, none where both are the same; ``order`` says which
    turn came first and why it matters, empty where there was but one. ``facts`` are what can be seen on
    both timelines.
    """

    before_step_ns: int
    after_step_ns: int
    changes: tuple[Change, ...]
    order: str
    facts: tuple[str, ...]

    @property
    def change_ns(self) -> int:
        """By how much the step became longer; negative: shorter."""
        return self.after_step_ns - self.before_step_ns


def difference(before: Timeline, after: Timeline) -> Difference:
    """Why ``after`` takes longer or shorter than ``before``: parts that add up to the difference exactly.

    The order: computing alone (forward, loss, backward, optimizer, what hooks compute), copies into buckets,
    launches, the search for unused parameters, adding up micro-batches, the latency of collectives (each
    takes the shortest time on its curve), their bytes (each takes its whole time), copies back, computing
    and communication that slow each other, the slowest rank. That collectives slow one another down is the
    link's own, and is there from the start.

    Where assignment and machine differ, the assignment is changed first. The machine here is all that is not
    the assignment: hardware, and how fast the workload computes.

    Raises:
        SimError: what cannot be played, see ``sim.simulate``.
    """
    turns, order = _turns(before, after)
    known = {id(end): _climb(end) for _, *pair in turns for end in pair}
    changes = []
    for cause, one, other in turns:
        old, new = known[id(one)], known[id(other)]
        parts = [
            Part(name=name, before_ns=old.get(name, 0), after_ns=new.get(name, 0))
            for name in _WORDS
            if old.get(name, 0) or new.get(name, 0)
        ]
        changes.append(
            Change(
                cause=cause,
                before_step_ns=one.step_ns,
                after_step_ns=other.step_ns,
                parts=tuple(sorted(parts, key=lambda part: -abs(part.change_ns))),
            )
        )
    return Difference(
        before_step_ns=before.step_ns,
        after_step_ns=after.step_ns,
        changes=tuple(changes),
        order=order,
        facts=_facts(before, after),
    )


def _turns(before: Timeline, after: Timeline) -> tuple[list[tuple[Cause, Timeline, Timeline]], str]:
    """The changes from one timeline to the other, each with its two ends, and a sentence on their order."""
    used = [(one.assignment, one.iteration) for one in (before, after)]
    assigned = [(one.policy, one.bucket_indices, one.ddp_kwargs, one.settings, at) for one, at in used]
    machines = [(one.workload, one.hardware, one.slowest) for one in (before, after)]
    causes: list[Cause] = []
    causes += ["assignment"] if assigned[0] != assigned[1] else []
    causes += ["machine"] if machines[0] != machines[1] else []
    if len(causes) < 2:
        return [(cause, before, after) for cause in causes], ""
    try:
        middle = _again(replace(before, assignment=after.assignment, iteration=after.iteration))
    except SimError:
        return [("assignment and machine", before, after)], (
            "Assignment and machine change together: the new assignment cannot be played on the first "
            "machine."
        )
    return [("assignment", before, middle), ("machine", middle, after)], (
        "First the assignment changes on the first machine, then the machine under the new assignment; "
        "the other way round the two parts may differ, their sum does not."
    )


def _again(timeline: Timeline, **changed: Any) -> Timeline:
    """What a timeline holds, with some of it changed, played once more."""
    inputs = ("workload", "hardware", "assignment", "iteration", "slowest")
    given = {name: getattr(timeline, name) for name in inputs} | changed
    workload, hardware, assignment = (given.pop(name) for name in inputs[:3])
    return simulate(workload, hardware, assignment, "analytic", **given)


def _climb(timeline: Timeline) -> dict[PartName, int]:
    """The parts of a step in ns, in order, without mechanisms that its hardware does not have."""
    whole = timeline.hardware
    bare: dict[str, Any] = {name: 0 for names in _RUNGS.values() for name in names if name.endswith("_ns")}
    bare |= {name: None for names in _RUNGS.values() for name in names if name.endswith("_per_s")}
    bare |= dict.fromkeys(_BESIDE_COMPUTING, 1.0) | {name: _flat(whole.curve(name), 0) for name in CURVES}
    hardware = replace(whole, **bare)
    reached = _again(timeline, hardware=hardware, slowest=None).step_ns
    parts: dict[PartName, int] = {"compute": reached}
    for part, names in _RUNGS.items():
        fields: dict[str, Any] = {name: getattr(whole, name) for name in names}
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


def _facts(before: Timeline, after: Timeline) -> tuple[str, ...]:
    """What differs between two timelines, a sentence each; empty where nothing does."""
    found, ends = [], (before, after)
    many = [len(one.buckets) for one in ends]
    largest = [format_size(max(bucket.num_bytes for bucket in one.buckets)) for one in ends]
    if before.assignment.bucket_indices != after.assignment.bucket_indices:
        count = f"{many[0]} bucket{'s' if many[0] > 1 else ''} became {many[1]}"
        if many[0] == many[1]:
            count = f"{many[1]} bucket{'s' if many[1] > 1 else ''} still"
        had = f"has {largest[1]}, it had {largest[0]}" if len({*largest}) > 1 else f"still has {largest[1]}"
        found.append(f"{count}; the largest {had}.")
    times: dict[str, list[int | None]] = {
        "The first collective starts": [
            min((one.start_ns for one in end.collectives), default=None) for end in ends
        ],
        "The last bucket to start does so": [
            max((one.start_ns for one in end.buckets), default=None) for end in ends
        ],
        "Backward ends": [end.backward_end_ns for end in ends],
        "All gradients are available": [end.sync_end_ns for end in ends],
    }
    for what, (old, new) in times.items():
        if old is not None and new is not None and old != new:
            by = f"{format_ms(abs(new - old))} {'later' if new > old else 'earlier'}"
            at = f"at {format_ms(new)} from the start of backward, it was {format_ms(old)}"
            found.append(f"{what} {by}: {at}.")
    sent = [format_size(sum(one.num_bytes for one in collectives(end))) for end in ends]
    if sent[0] != sent[1]:
        found.append(f"{sent[1]} travel in a step, {sent[0]} did.")
    return tuple(found)


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
    assert measurement.asked is not None
    if measurement.asked.policy not in DDP_POLICIES:
        return None
    workload, asked = record.workload, measurement.asked
    plain, noop = _iterations(record, "plain"), _iterations(record, "noop")
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
    copy, launch, compute, communication, wait = (one - two for one, two in pairwise(reached))
    return Attribution(
        total_ns=reached[0] - reached[-1],
        copy_ns=copy,
        launch_ns=launch,
        compute_ns=compute,
        communication_ns=communication,
        wait_ns=wait,
    )


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

    def scaled(ready_ns: int | None) -> int | None:
        return None if ready_ns is None else divide_half_even(ready_ns * backward_ns, workload.backward_ns)

    gradients = tuple(replace(one, ready_ns=scaled(one.ready_ns)) for one in workload.gradients)
    return replace(workload, backward_ns=backward_ns, gradients=gradients)


def _finalized(timeline: Timeline, ends_ns: Sequence[int]) -> int:
    """``sync_end_ns`` if collectives end at ``ends_ns``: the lane waits and copies back, bucket by bucket."""
    time = timeline.backward_end_ns
    for bucket, end in zip(timeline.buckets, ends_ns, strict=True):
        time = max(time, end) + bucket.available_ns - bucket.copy_out_start_ns
    return time
