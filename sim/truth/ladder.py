"""Where a difference comes from: one mechanism after another changes, and a part is what its change adds.

So parts add up to the nanosecond, and what hides behind backward, or behind a mechanism that came earlier,
adds nothing. Each of two steps is climbed to from a step of computing alone.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from sim.errors import SimError
from sim.nouns.hardware import CURVES, SLOWDOWNS, Curve, CurvePoint
from sim.nouns.timeline import Timeline
from sim.systems.simulate import simulate

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
