"""Why one step is longer than another: both are built up mechanism by mechanism, and the parts compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from sim.errors import SimError
from sim.metrics.step import step_ns
from sim.nouns.collective import Collective
from sim.nouns.hardware import CURVES, SLOWDOWNS, Curve, CurvePoint, Hardware
from sim.nouns.timeline import Timeline
from sim.systems.registry import collectives
from sim.systems.simulate import simulate
from sim.units import format_ms, format_size

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
_LAUNCHED = ("backward", "end of backward", "after backward")  # the phases in which the lane launches
_BESIDE_COMPUTING = tuple(name for name in SLOWDOWNS if name != "channel_slowdown")
_ORDER = (
    "First the assignment changes on the first machine, then the machine under the new assignment; "
    "the other way round the two parts may differ, their sum does not."
)
_TOGETHER = (
    "Assignment and machine change together: the new assignment cannot be played on the first machine."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One mechanism's part of two steps: what each step takes longer because of it, behind those before it.

    ``sim.truth.differences`` says in which order mechanisms come. ``sentence`` tells the part in words.
    """

    name: PartName
    before_ns: int
    after_ns: int
    sentence: str

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

    Each step is built up from one in which nothing but computing takes time, by one mechanism after the
    other; a part is what its mechanism then adds to the step, so that the parts of a step add up to it to
    the nanosecond. What hides behind backward, or behind a mechanism that came earlier, adds nothing. The
    order: computing alone (forward, loss, backward, optimizer, what hooks compute), copies into buckets,
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
    ends = {id(end): end for _, *pair in turns for end in pair}
    known = {name: _ladder(end) for name, end in ends.items()}
    sent = {key: collectives(end) for key, end in ends.items()}
    changes = tuple(
        Change(
            cause=cause,
            before_step_ns=step_ns(one),
            after_step_ns=step_ns(other),
            parts=_parts(
                known[id(one)], known[id(other)], _Reasons(one, other, sent[id(one)], sent[id(other)])
            ),
        )
        for cause, one, other in turns
    )
    return Difference(
        before_step_ns=step_ns(before),
        after_step_ns=step_ns(after),
        changes=changes,
        order=order,
        facts=facts(before, after),
    )


def _turns(before: Timeline, after: Timeline) -> tuple[tuple[tuple[Cause, Timeline, Timeline], ...], str]:
    """The changes from one timeline to the other, each with its two ends, and a sentence on their order."""
    same_assignment = _assignment_of(before) == _assignment_of(after)
    same_machine = _machine_of(before) == _machine_of(after)
    if same_assignment and same_machine:
        return (), ""
    if same_machine:
        return (("assignment", before, after),), ""
    if same_assignment:
        return (("machine", before, after),), ""
    try:
        middle = _again(replace(before, assignment=after.assignment, iteration=after.iteration))
    except SimError:
        return (("assignment and machine", before, after),), _TOGETHER
    return (("assignment", before, middle), ("machine", middle, after)), _ORDER


def _assignment_of(timeline: Timeline) -> object:
    one = timeline.assignment
    return one.policy, one.bucket_indices, one.ddp_kwargs, one.settings, timeline.iteration


def _machine_of(timeline: Timeline) -> object:
    return timeline.workload, timeline.hardware, timeline.slowest


def _again(timeline: Timeline) -> Timeline:
    """What a timeline holds, played once more."""
    return simulate(
        timeline.workload,
        timeline.hardware,
        timeline.assignment,
        "analytic",
        iteration=timeline.iteration,
        slowest=timeline.slowest,
    )


def _ladder(timeline: Timeline) -> dict[PartName, int]:
    """The parts of a step in ns, in order, without mechanisms that its hardware does not have."""
    hardware = _bare(timeline.hardware)
    reached = step_ns(_again(replace(timeline, hardware=hardware, slowest=None)))
    parts: dict[PartName, int] = {"compute": reached}
    for name, fields in _rungs(timeline.hardware).items():
        richer = replace(hardware, **fields)
        if richer == hardware:
            continue
        hardware = richer
        now = step_ns(_again(replace(timeline, hardware=hardware, slowest=None)))
        parts[name], reached = now - reached, now
    if timeline.slowest is not None:
        parts["straggler"] = step_ns(timeline) - reached
    return parts


def _bare(hardware: Hardware) -> Hardware:
    """A machine on which only computing takes time."""
    alone: dict[str, Any] = dict.fromkeys(_BESIDE_COMPUTING, 1.0)
    alone |= {name: _constant(hardware.curve(name), 0) for name in CURVES}
    return replace(
        hardware,
        copy_in_bytes_per_s=None,
        copy_out_bytes_per_s=None,
        accumulate_bytes_per_s=None,
        launch_cost_ns=0,
        search_unused_ns=0,
        mark_used_ns=0,
        hook_cost_ns=0,
        **alone,
    )


def _rungs(hardware: Hardware) -> Mapping[PartName, dict[str, Any]]:
    """What each mechanism sets on the bare machine, in order; all of them together are the machine."""

    def own(*names: str) -> dict[str, Any]:
        return {name: getattr(hardware, name) for name in names}

    return {
        "copy_in": own("copy_in_bytes_per_s", "hook_cost_ns"),
        "launch": own("launch_cost_ns"),
        "find_unused": own("search_unused_ns", "mark_used_ns"),
        "accumulate": own("accumulate_bytes_per_s"),
        "latency": {name: _constant(hardware.curve(name)) for name in CURVES},
        "bytes": own(*CURVES),
        "copy_out": own("copy_out_bytes_per_s"),
        "interference": own(*_BESIDE_COMPUTING),
    }


def _constant(curve: Curve | None, duration_ns: int | None = None) -> Curve | None:
    """A curve of one duration: the given one, else the shortest of ``curve``."""
    if curve is None:
        return None
    shortest = min(point.duration_ns for point in curve)
    return (CurvePoint(num_bytes=0, duration_ns=shortest if duration_ns is None else duration_ns),)


class _Reasons(NamedTuple):
    """What stands behind the parts of two steps: their timelines, and all collectives of each step."""

    before: Timeline
    after: Timeline
    before_sent: Sequence[Collective]
    after_sent: Sequence[Collective]


def _parts(old: dict[PartName, int], new: dict[PartName, int], reasons: _Reasons) -> tuple[Part, ...]:
    parts = [
        Part(
            name=name,
            before_ns=old.get(name, 0),
            after_ns=new.get(name, 0),
            sentence=_sentence(name, old.get(name, 0), new.get(name, 0), reasons),
        )
        for name in _WORDS
        if old.get(name, 0) or new.get(name, 0)
    ]
    return tuple(sorted(parts, key=lambda part: -abs(part.change_ns)))


def _sentence(name: PartName, old: int, new: int, reasons: _Reasons) -> str:
    if format_ms(old) == format_ms(new):
        return f"{_WORDS[name]}: {format_ms(new)} in both."
    why = _why(name, new > old, reasons)
    words = f"{_WORDS[name]}: {format_ms(old)} became {format_ms(new)}, {signed_ms(new - old)}"
    return f"{words}{f' ({why})' if why else ''}."


def _why(name: PartName, longer: bool, reasons: _Reasons) -> str:
    """Words on what changed in the whole step; empty if it did not grow or shrink as the part did.

    The part then changed by what hides behind backward, of which no number of the whole step tells.
    """
    before, after, was, now = reasons
    if name == "latency":
        pairs = [_latency(one.hardware, sent) for one, sent in ((before, was), (after, now))]
        return _became(pairs[0], pairs[1], longer)
    if name == "launch":
        pairs = [_launching(one.hardware, sent) for one, sent in ((before, was), (after, now))]
        return _became(pairs[0], pairs[1], longer)
    if name == "bytes":
        whole = [sum(one.num_bytes for one in sent) for sent in (was, now)]
        last = [one.buckets[-1].num_bytes for one in (before, after)]
        told = [
            (what, _became((sizes[0], format_size(sizes[0])), (sizes[1], format_size(sizes[1])), longer))
            for what, sizes in (("in all", whole), ("last bucket", last))
        ]
        return "; ".join(f"{what}: {words}" for what, words in told if words)
    return ""


def _became(was: tuple[int, str], now: tuple[int, str], longer: bool) -> str:
    """Words on two amounts; empty if they read alike, or did not change in the way that ``longer`` says."""
    if was[0] == now[0] or was[1] == now[1] or (now[0] > was[0]) != longer:
        return ""
    return f"{was[1]} became {now[1]}"


def _latency(hardware: Hardware, sent: Sequence[Collective]) -> tuple[int, str]:
    """The shortest time that all collectives of a step take, kind by kind, to the microsecond."""
    total, words = 0, []
    for kind, count in Counter(one.kind for one in sent).items():
        curve = hardware.curve(kind)
        shortest = min(point.duration_ns for point in curve) if curve is not None else 0
        total += count * shortest
        named = "" if kind == "all_reduce" else f" {kind}"
        words.append(f"{count}{named} x {shortest / 1e6:.3f} ms")
    return total, " + ".join(words) or "no collective"


def _launching(hardware: Hardware, sent: Sequence[Collective]) -> tuple[int, str]:
    """What launches cost in a step: those of its backward, each by the compute lane."""
    count = sum(one.phase in _LAUNCHED and one.after is None for one in sent)
    return count * hardware.launch_cost_ns, f"{count} x {format_ms(hardware.launch_cost_ns)}"


def facts(before: Timeline, after: Timeline) -> tuple[str, ...]:
    """What differs between two timelines, a sentence each; empty where nothing does."""
    found = []
    old, new = before.buckets, after.buckets
    if before.assignment.bucket_indices != after.assignment.bucket_indices:
        many = (
            f"{_count(len(old))} became {len(new)}" if len(old) != len(new) else _count(len(new)) + " still"
        )
        largest = [format_size(max(bucket.num_bytes for bucket in one)) for one in (old, new)]
        had = (
            f"has {largest[1]}, it had {largest[0]}"
            if largest[0] != largest[1]
            else f"still has {largest[1]}"
        )
        found.append(f"{many}; the largest {had}.")
    first = [min((played.start_ns for played in one.collectives), default=None) for one in (before, after)]
    found += _moved("The first collective starts", first[0], first[1])
    last = [max((bucket.start_ns for bucket in one), default=None) for one in (old, new)]
    found += _moved("The last bucket to start does so", last[0], last[1])
    found += _moved("Backward ends", before.backward_end_ns, after.backward_end_ns)
    found += _moved("All gradients are available", before.sync_end_ns, after.sync_end_ns)
    sent = [format_size(sum(one.num_bytes for one in collectives(end))) for end in (before, after)]
    if sent[0] != sent[1]:
        found.append(f"{sent[1]} travel in a step, {sent[0]} did.")
    return tuple(found)


def _count(buckets: int) -> str:
    return f"{buckets} bucket{'s' if buckets > 1 else ''}"


def _moved(what: str, old: int | None, new: int | None) -> list[str]:
    if old is None or new is None or old == new:
        return []
    by = f"{format_ms(abs(new - old))} {'later' if new > old else 'earlier'}"
    return [f"{what} {by}: at {format_ms(new)} from the start of backward, it was {format_ms(old)}."]


def signed_ms(ns: int) -> str:
    """``+1.23 ms``, ``-0.40 ms``, with the sign spelled as people read it."""
    return f"{'+' if ns > 0 else '-' if ns < 0 else ''}{format_ms(abs(ns))}"
