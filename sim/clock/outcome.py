"""What an engine hands back, and the timeline made of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.clock.program import Program
from sim.nouns.assignment import Assignment
from sim.nouns.collective import CollectiveTimes
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import BucketTimes, ComputeSpan, Iteration, Timeline
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Raw result of playing a program, in ns from the start of backward.

    Per bucket: ``ready_ns``, ``copy_out_start_ns``, ``available_ns``. Per collective: ``launch_ns``,
    ``start_ns``, ``end_ns``, ``usable_ns``, and ``late_ns``, for which it had a channel before its start.
    ``compute`` are the lane's spans, without copies back.
    """

    compute: tuple[ComputeSpan, ...]
    ready_ns: tuple[int, ...]
    copy_out_start_ns: tuple[int, ...]
    available_ns: tuple[int, ...]
    launch_ns: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    usable_ns: tuple[int, ...]
    late_ns: tuple[int, ...]
    backward_end_ns: int
    sync_end_ns: int

    @property
    def taken_ns(self) -> tuple[int, ...]:
        """When each collective had a channel: from then on it waits for other ranks, if for anything."""
        return tuple(start - late for start, late in zip(self.start_ns, self.late_ns, strict=True))


Play = Callable[[Program], Outcome]
PlayTogether = Callable[[Sequence[Program], Sequence[int]], tuple[Outcome, ...]]


class Ledger:
    """What an engine writes down while it plays; all times in ns."""

    __slots__ = (
        "available",
        "backward_end",
        "compute",
        "copy_out_start",
        "end",
        "late",
        "launch",
        "ready",
        "start",
        "usable",
    )

    def __init__(self, program: Program) -> None:
        buckets, collectives = len(program.carriers), len(program.collectives)
        self.compute: list[ComputeSpan] = []
        self.ready = [0] * buckets
        self.copy_out_start = [0] * buckets
        self.available = [0] * buckets
        self.launch = [0] * collectives
        self.start = [0] * collectives
        self.end = [0] * collectives
        self.usable = [0] * collectives
        self.late = [0] * collectives
        self.backward_end = 0

    def outcome(self, sync_end_ns: int) -> Outcome:
        """All of it, once the lane has come to its end."""
        return Outcome(
            compute=tuple(self.compute),
            ready_ns=tuple(self.ready),
            copy_out_start_ns=tuple(self.copy_out_start),
            available_ns=tuple(self.available),
            launch_ns=tuple(self.launch),
            start_ns=tuple(self.start),
            end_ns=tuple(self.end),
            usable_ns=tuple(self.usable),
            late_ns=tuple(self.late),
            backward_end_ns=self.backward_end,
            sync_end_ns=sync_end_ns,
        )


def _channels(program: Program, outcome: Outcome) -> list[int]:
    """The lowest channel free when each collective takes one: a label, the same whatever the engine."""
    free = [0] * program.effects.channels
    labels = [0] * len(program.collectives)
    taken = outcome.taken_ns
    until = [
        outcome.usable_ns[k] if collective.holds_channel else outcome.end_ns[k]
        for k, collective in enumerate(program.collectives)
    ]
    # Of several that take one in the same instant, those that take no time have left it for the others.
    for number in sorted(range(len(labels)), key=lambda k: (taken[k], until[k], outcome.launch_ns[k], k)):
        channel = next(place for place, time in enumerate(free) if time <= taken[number])
        free[channel] = until[number]
        labels[number] = channel
    return labels


def _bucket(program: Program, outcome: Outcome, labels: list[int], k: int) -> BucketTimes:
    carriers, ready = program.carriers[k], outcome.ready_ns[k]
    collectives = [program.collectives[number] for number in carriers]
    return BucketTimes(
        index=k,
        num_bytes=sum(collective.num_bytes for collective in collectives),
        ready_ns=ready,
        launch_ns=min((outcome.launch_ns[number] for number in carriers), default=ready),
        start_ns=min((outcome.start_ns[number] for number in carriers), default=ready),
        end_ns=max((outcome.end_ns[number] for number in carriers), default=ready),
        available_ns=outcome.available_ns[k],
        service_ns=sum(collective.service_ns for collective in collectives),
        copy_out_start_ns=outcome.copy_out_start_ns[k],
        channel=labels[carriers[0]] if carriers else 0,
        late_ns=sum(outcome.late_ns[number] for number in carriers),
    )


def make_timeline(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    program: Program,
    outcome: Outcome,
    *,
    earlier: tuple[Timeline, ...],
    engine: str,
    iteration: Iteration,
    slowest: Workload | None,
) -> Timeline:
    """The timeline of one played program, a micro-batch that follows ``earlier`` ones of its step."""
    labels = _channels(program, outcome)
    return Timeline(
        workload=workload,
        hardware=hardware,
        assignment=assignment,
        iteration=iteration,
        engine=engine,
        pre_forward_ns=program.pre_forward_ns,
        before_forward=program.before_forward_parts,
        earlier=earlier,
        before=program.before_forward,
        after=program.after_sync,
        compute=outcome.compute,
        buckets=tuple(_bucket(program, outcome, labels, k) for k in range(len(program.carriers))),
        collectives=tuple(
            CollectiveTimes(
                collective=collective,
                launch_ns=outcome.launch_ns[number],
                start_ns=outcome.start_ns[number],
                end_ns=outcome.end_ns[number],
                usable_ns=outcome.usable_ns[number],
                channel=labels[number],
                late_ns=outcome.late_ns[number],
            )
            for number, collective in enumerate(program.collectives)
        ),
        backward_end_ns=outcome.backward_end_ns,
        sync_end_ns=outcome.sync_end_ns,
        optimizer_ns=program.optimizer_ns,
        post_sync_ns=program.post_sync_ns,
        early_launches=program.early_launches,
        notes=program.notes,
        slowest=slowest,
    )
