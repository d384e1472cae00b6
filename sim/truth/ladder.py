"""Where a difference comes from: one mechanism after another changes, and a part is what its change adds.

So parts add up to the nanosecond, and what hides behind backward, or behind a mechanism that came earlier,
adds nothing. ``difference`` climbs from a step of computing alone to each of two steps; ``attribute`` climbs
from a predicted step to the measured one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sim.costs.service_time import empty_ns, scale
from sim.nouns.assignment import DDP_POLICIES
from sim.nouns.hardware import CURVES, SLOWDOWNS, CurvePoint, Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement, Record
from sim.nouns.timeline import Timeline
from sim.systems.simulate import simulate
from sim.units import NS_PER_S, median_ns

# What each mechanism sets on a machine on which only computing takes time, in order.
_RUNGS: dict[str, tuple[str, ...]] = {
    "copy_in": ("copy_in_bytes_per_s", "hook_cost_ns"),
    "launch": ("launch_cost_ns",),
    "find_unused": ("search_unused_ns", "mark_used_ns"),
    "accumulate": ("accumulate_bytes_per_s",),
    "latency": CURVES,  # each collective takes what one without bytes does
    "bytes": CURVES,  # each takes its whole time
    "copy_out": ("copy_out_bytes_per_s",),
    "interference": tuple(name for name in SLOWDOWNS if name != "channel_slowdown"),
}

_STRETCHES = 12  # most times backward is stretched: one is exact without slow-downs, else each comes nearer


@dataclass(frozen=True, slots=True)
class Part:
    """One mechanism's part of two steps: what each takes longer because of it, behind those before it."""

    name: str
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        """By how much the part became longer; negative: shorter."""
        return self.after_ns - self.before_ns


def difference(before: Timeline, after: Timeline) -> tuple[Part, ...]:
    """Why ``after`` takes longer or shorter than ``before``: parts that add up to the difference exactly.

    The order: computing alone (forward, loss, backward, optimizer, what hooks compute), copies into buckets,
    launches, the search for unused parameters, adding up micro-batches, latency of collectives, their bytes,
    copies back, computing and communication that slow each other, the slowest rank. That collectives slow one
    another down is the link's own, and is there from the start. The part that changed most is told first;
    those that neither step has are left out, and all where none differs. Raises ``SimError`` as ``simulate``.
    """
    climbed = _climb(before), _climb(after)
    if climbed[0] == climbed[1]:
        return ()
    names = ("compute", *_RUNGS, "straggler")
    parts = (Part(name, *(steps.get(name, 0) for steps in climbed)) for name in names)
    there = [part for part in parts if part.before_ns or part.after_ns]
    return tuple(sorted(there, key=lambda part: -abs(part.change_ns)))


def _climb(timeline: Timeline) -> dict[str, int]:
    """The parts of a step in ns, in order, without mechanisms that its hardware does not have."""
    whole = timeline.hardware
    names = {name for of_rung in _RUNGS.values() for name in of_rung if name not in CURVES}
    bare: dict[str, Any] = {one.name: one.default for one in fields(Hardware) if one.name in names}
    least = {name: empty_ns(curve) for name in CURVES if (curve := whole.curve(name))}
    flat: dict[str, Any] = {name: (CurvePoint(num_bytes=0, duration_ns=ns),) for name, ns in least.items()}
    level, hardware = replace(whole, **flat), replace(whole.retimed(lambda *_: 0), **bare)

    def step_ns() -> int:
        job, iteration = timeline.workload, timeline.iteration
        return simulate(job, hardware, timeline.assignment, "analytic", iteration=iteration).step_ns

    reached = step_ns()
    parts: dict[str, int] = {"compute": reached}
    for part, of_rung in _RUNGS.items():
        there = level if part == "latency" else whole
        richer = replace(hardware, **{name: getattr(there, name) for name in of_rung})
        if richer != hardware:
            hardware = richer
            parts[part], reached = (now := step_ns()) - reached, now
    if timeline.slowest is not None:
        parts["straggler"] = timeline.step_ns - reached
    return parts


# ---- From a predicted step to the measured one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which mechanism the error of ``sync_end`` comes from, in ns; negative: predicted too short.

    The five parts, see ``attribute``, add up to ``total_ns``, predicted minus measured, exactly.
    """

    total_ns: int
    compute_ns: int
    copy_ns: int
    launch_ns: int
    communication_ns: int
    wait_ns: int


def attribute(record: Record, measurement: Measurement) -> Attribution | None:
    """The error of one candidate's ``sync_end``, by mechanism; medians over iterations throughout.

    One mechanism after another of the prediction is replaced by what was measured, in this order. Each part
    is what its replacement changed: so the parts add up, and a mechanism that another one hides counts 0.

    1. copy: at the rates of the noop run (DDP without communication, so that nothing slows its copies): into
       buckets in ``backward_end`` less that of the plain run, back in ``sync_end`` less ``backward_end``.
    2. launch: at the mean over buckets of launch less ready (or less the launch before) in the traced
       iterations. Their hook launches from Python: an upper bound of stock DDP's, and taken from compute.
    3. compute: backward is stretched evenly until the compute lane ends where it was measured to end: all
       that it lost to nodes that woke late, and to copies that collectives slow more than the model has it.
    4. communication: every collective takes from its launch to its end as long as in the traced iterations,
       queues included.
    5. wait: what is left: waits that return late, copies back that collectives slow down, and what sets
       traced and stock iterations apart.

    None where plain, noop or traced iterations are missing, a traced bucket's launch or end cannot be told,
    or another system than DDP does not launch and wait in bucket order.
    """
    workload, asked = record.workload, measurement.asked
    roles = {one.role: one.iterations for one in record.measurements}
    if asked is None or asked.policy not in DDP_POLICIES or not (roles.get("plain") and roles.get("noop")):
        return None

    def played(hardware: Hardware, backward: float = 1.0) -> Timeline:
        return simulate(scale(workload, hardware, backward=backward)[0], hardware, asked, "analytic")

    predicted = played(record.hardware)
    if (traced := _traced(measurement, len(predicted.buckets))) is None:
        return None
    durations_ns, launch_cost_ns = traced
    noop_end = _middle(roles["noop"], "backward_end_ns")
    total_bytes = sum(0 if gradient.sparse else gradient.on_wire for gradient in workload.gradients)
    hardware = replace(
        record.hardware,
        copy_in_bytes_per_s=_rate(total_bytes, noop_end - _middle(roles["plain"], "backward_end_ns")),
        copy_out_bytes_per_s=_rate(total_bytes, _middle(roles["noop"], "sync_end_ns") - noop_end),
    )
    copied, hardware = played(hardware), replace(hardware, launch_cost_ns=launch_cost_ns)
    computed = launched = played(hardware)
    lane_end, backward = _middle(measurement.iterations, "backward_end_ns"), workload.backward_ns
    for _ in range(_STRETCHES if backward else 0):
        if computed.backward_end_ns == lane_end:
            break
        backward = max(0, backward + lane_end - computed.backward_end_ns)
        computed = played(hardware, max(1e-6, backward / workload.backward_ns))
    ends = [one.launch_ns + took for one, took in zip(computed.buckets, durations_ns, strict=True)]
    played_ends = [one.end_ns for one in computed.buckets]
    reached = [one.sync_end_ns for one in (predicted, copied, launched, computed)]
    reached.append(reached[-1] - _finalized(computed, played_ends) + _finalized(computed, ends))
    reached.append(_middle(measurement.iterations, "sync_end_ns"))
    names = ("copy_ns", "launch_ns", "compute_ns", "communication_ns", "wait_ns")
    parts = (one - two for one, two in pairwise(reached))
    return Attribution(total_ns=reached[0] - reached[-1], **dict(zip(names, parts, strict=True)))


def _traced(measurement: Measurement, count: int) -> tuple[list[int], int] | None:
    """What the recording hook saw of one candidate, medians over traced iterations with ``count`` buckets:
    launch to end a bucket, and the cost of a launch; None where a stamp is missing."""
    seen = [one.buckets for one in measurement.traced if len(one.buckets) == count]
    stamps = np.array([[(one.ready_ns, one.launch_ns, one.end_ns) for one in each] for each in seen], float)
    if not seen or np.isnan(stamps).any():
        return None
    ready, launch, end = np.moveaxis(stamps, 2, 0)
    launched_before = np.pad(launch[:, :-1], ((0, 0), (1, 0)))
    costs, durations = launch - np.maximum(ready, launched_before), end - launch
    cost_ns = round(np.median(costs, axis=0).mean())
    return [round(one) for one in np.median(durations, axis=0).tolist()], max(0, cost_ns)


def _middle(iterations: Sequence[MeasuredIteration], name: str) -> int:
    return median_ns([getattr(iteration, name) for iteration in iterations])


def _rate(num_bytes: int, duration_ns: int) -> float | None:
    """Bytes/s; None, which counts as free, if no bytes were moved or no time was measured."""
    return num_bytes * NS_PER_S / duration_ns if num_bytes and duration_ns > 0 else None


def _finalized(timeline: Timeline, ends_ns: Sequence[int]) -> int:
    """``sync_end_ns`` if collectives end at ``ends_ns``: the lane waits and copies back, bucket by bucket."""
    time = timeline.backward_end_ns
    for bucket, end in zip(timeline.buckets, ends_ns, strict=True):
        time = max(time, end) + bucket.available_ns - bucket.copy_out_start_ns
    return time
