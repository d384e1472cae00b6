"""What a clock hands back, and the timeline made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sim.clock.program import (
    AROUND,
    BACKWARD,
    BACKWARD_BEGIN,
    BACKWARD_END,
    COPY_BACK,
    COPY_IN,
    FORWARD,
    HOOK,
    LAUNCH,
    OPTIMIZER,
    READY,
    SYNC_END,
    WAIT,
    Program,
)
from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, CollectiveTimes
from sim.nouns.hardware import Hardware
from sim.nouns.timeline import BucketTimes, Iteration, PathKind, Span, Timeline
from sim.nouns.workload import Workload
from sim.units import format_ms

_KINDS: dict[int, PathKind] = {
    BACKWARD: "backward",
    HOOK: "hook",
    COPY_IN: "copy_in",
    LAUNCH: "launch",
    COPY_BACK: "copy_out",
}


@dataclass(frozen=True)
class Outcome:
    """What became of ``program``, in ns from its start.

    ``ended_ns``: when the lane was through with each of its items; the next one begins in that instant. Per
    collective: ``launch_ns``, ``taken_ns`` (it had a channel: from then on it waits for other ranks, if for
    anything), ``start_ns``, ``end_ns`` and ``usable_ns``.
    """

    program: Program
    ended_ns: tuple[int, ...]
    launch_ns: tuple[int, ...]
    taken_ns: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    usable_ns: tuple[int, ...]

    def in_backward(self) -> "Outcome":
        """The part from the start of backward until gradients are synchronised, in ns from there."""
        program = self.program
        first = program.place(BACKWARD_BEGIN, -1) + 1
        last, sent = program.place(SYNC_END, len(program.lane)), program.of_backward
        if (first, last, sent) == (0, len(program.lane), slice(0, len(program.collectives))):
            return self
        shift, begin = sent.start, self.begin_ns
        cut = replace(
            program,
            lane=tuple(
                item._replace(collective=item.collective - shift) if item.collective >= 0 else item
                for item in program.lane[first:last]
            ),
            collectives=tuple(
                replace(one, after=one.after - shift) if one.after is not None and shift else one
                for one in program.collectives[sent]
            ),
            carriers=tuple(tuple(number - shift for number in sent) for sent in program.carriers),
        )
        columns = (self.launch_ns, self.taken_ns, self.start_ns, self.end_ns, self.usable_ns)
        times = (self.ended_ns[first:last], *(column[sent] for column in columns))
        return Outcome(cut, *(tuple(time - begin for time in column) for column in times))

    @property
    def begin_ns(self) -> int:
        """When backward began."""
        at = self.program.place(BACKWARD_BEGIN, -1)
        return self.ended_ns[at] if at >= 0 else 0

    @property
    def before_forward(self) -> dict[str, int]:
        """What a system adds before backward to forward's own work, by what it is for; ns."""
        parts: dict[str, int] = {}
        start, until = 0, self.program.place(BACKWARD_BEGIN, 0)
        for item, end in zip(self.program.lane[:until], self.ended_ns, strict=False):
            what = self.program.around_for if item.kind == AROUND else "parameters"
            if item.collective >= 0:
                what = self.program.collectives[item.collective].purpose
            parts[what] = parts.get(what, 0) + end - start - item.duration_ns * (item.kind == FORWARD)
            start = end
        return {what: took for what, took in parts.items() if took}

    @property
    def ready_ns(self) -> tuple[int, ...]:
        """When each bucket was complete."""
        return self._of_buckets(READY, self.ended_ns)

    @property
    def copy_out_start_ns(self) -> tuple[int, ...]:
        """When the lane began to copy each bucket back."""
        return self._of_buckets(COPY_BACK, (0, *self.ended_ns[:-1]))

    @property
    def available_ns(self) -> tuple[int, ...]:
        """When each bucket was copied back."""
        return self._of_buckets(COPY_BACK, self.ended_ns)

    @property
    def backward_end_ns(self) -> int:
        """When backward was over."""
        return self.ended_ns[self.program.place(BACKWARD_END, -1)]

    @property
    def sync_end_ns(self) -> int:
        """When gradients were synchronised: at the lane's end where nothing follows."""
        return self.ended_ns[self.program.place(SYNC_END, -1)]

    @property
    def lane_end_ns(self) -> int:
        """When the lane came to its end."""
        return self.ended_ns[-1]

    def _of_buckets(self, kind: int, times_ns: Sequence[int]) -> tuple[int, ...]:
        made = [0] * len(self.program.carriers)
        for item, time in zip(self.program.lane, times_ns, strict=True):
            if item.kind == kind and item.bucket is not None:
                made[item.bucket] = time
        return tuple(made)


def _given_back(outcome: Outcome) -> list[int]:
    """When each collective left its channel."""
    ends = zip(outcome.program.collectives, outcome.end_ns, outcome.usable_ns, strict=True)
    return [usable if one.holds_channel else end for one, end, usable in ends]


def _channels(outcome: Outcome) -> list[int]:
    """The lowest channel free when each collective takes one: a label, the same whatever the engine."""
    program = outcome.program
    free = [0] * program.machine.channels
    labels = [0] * len(program.collectives)
    taken = outcome.taken_ns
    until = _given_back(outcome)
    # Of several that take one in the same instant, those that take no time have left it for the others.
    for number in sorted(range(len(labels)), key=lambda k: (taken[k], until[k], outcome.launch_ns[k], k)):
        channel = next(place for place, time in enumerate(free) if time <= taken[number])
        free[channel] = until[number]
        labels[number] = channel
    return labels


def _buckets(outcome: Outcome, labels: list[int]) -> tuple[BucketTimes, ...]:
    program = outcome.program
    lives = zip(outcome.ready_ns, outcome.copy_out_start_ns, outcome.available_ns, strict=True)
    made = []
    for k, (carriers, (ready, copied, available)) in enumerate(zip(program.carriers, lives, strict=True)):
        collectives = [program.collectives[number] for number in carriers]
        made.append(
            BucketTimes(
                index=k,
                num_bytes=sum(collective.num_bytes for collective in collectives),
                ready_ns=ready,
                launch_ns=min((outcome.launch_ns[number] for number in carriers), default=ready),
                start_ns=min((outcome.start_ns[number] for number in carriers), default=ready),
                end_ns=max((outcome.end_ns[number] for number in carriers), default=ready),
                available_ns=available,
                service_ns=sum(collective.service_ns for collective in collectives),
                copy_out_start_ns=copied,
                channel=labels[carriers[0]] if carriers else 0,
                late_ns=sum(outcome.start_ns[number] - outcome.taken_ns[number] for number in carriers),
            )
        )
    return tuple(made)


def _spans(outcome: Outcome) -> tuple[tuple[Span, ...], int]:
    """Every span with what released it, and the number of the one that the lane's end came with.

    A collective is launched by the lane, by the launch before it or by the collective that it follows; where
    it had no channel then, another one left it to it. What the lane does next is released by what it did
    last, or by the collective that it waited for.
    """
    program = outcome.program
    machine, collectives = program.machine, program.collectives
    cost = 0 if machine.launch_blocks_compute else machine.launch_cost_ns
    # The spans of a collective, one behind the other: each is numbered before what released it is known.
    spans: list[tuple[PathKind, int, int, int | None, int | None, int | None]] = []
    causes: list[int] = []
    first, sent, done = [], [], []
    times = zip(
        outcome.launch_ns,
        outcome.taken_ns,
        outcome.start_ns,
        outcome.end_ns,
        outcome.usable_ns,
        strict=True,
    )
    for number, (one, (launch, taken, start, end, usable)) in enumerate(zip(collectives, times, strict=True)):
        first.append(len(spans))
        if cost and one.after is None:
            spans.append(("launch", launch - cost, launch, one.bucket, None, number))
        if start > taken:
            spans.append(("straggler", taken, start, one.bucket, None, number))
        sent.append(len(spans))
        spans.append((one.kind, start, end, one.bucket, None, number))
        if usable > end:
            spans.append(("settle", end, usable, one.bucket, None, number))
        done.append(len(spans) - 1)
        causes += range(first[-1] - 1, len(spans) - 1)

    lane, now, launcher = -1, 0, -1
    for item, ended in zip(program.lane, outcome.ended_ns, strict=True):
        if item.kind == WAIT and ended > now:
            lane = done[item.collective]
        elif ended > now:
            bucket = collectives[item.collective].bucket if item.kind == LAUNCH else item.bucket
            spans.append((_KINDS[item.kind], now, ended, bucket, item.gradient, None))
            causes.append(lane)
            lane = len(spans) - 1
        if item.kind == LAUNCH:
            at, begun = first[item.collective], outcome.launch_ns[item.collective] - cost
            causes[at] = lane if begun == ended else launcher
            launcher = at
        now = ended

    held = zip(outcome.taken_ns, _given_back(outcome), strict=True)
    left = {until: number for number, (taken, until) in enumerate(held) if until > taken}
    # Who has left a channel is not among these where forward's gathers last into backward.
    for number, one in enumerate(collectives):
        if one.after is not None:
            causes[first[number]] = done[one.after]
        if outcome.taken_ns[number] > outcome.launch_ns[number]:
            by = left.get(outcome.taken_ns[number], -1)
            channel = -1 if by < 0 else done[by] if collectives[by].holds_channel else sent[by]
            causes[first[number] + (cost > 0 and one.after is None)] = channel
    return tuple(Span(*span, cause) for span, cause in zip(spans, causes, strict=True)), lane


def _told_of_forward(gathers: Sequence[Collective], added: Mapping[str, int]) -> tuple[str, ...]:
    """What the reader of a report should know where forward gathers parameters, if that takes time."""
    if not any(one.service_ns for one in gathers if one.phase == "forward"):
        return ()
    return (
        f"forward waits {format_ms(added.get('parameters', 0))} for gathers of parameters and their copies; "
        f"exposed communication counts backward only",
        "how long forward takes (forward_ns) is one number: it is shared out over modules as backward's time "
        "is over their gradients, and what gathers hide behind forward follows from that",
    )


def make_timeline(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    outcome: Outcome,
    *,
    earlier: tuple[Timeline, ...],
    engine: str,
    iteration: Iteration,
    slowest: Workload | None,
) -> Timeline:
    """The timeline of one played program, a micro-batch that follows ``earlier`` ones of its step."""
    whole, outcome = outcome, outcome.in_backward()
    program, labels = outcome.program, _channels(outcome)
    spans, released_by = _spans(outcome)
    added = whole.before_forward
    optimizer_ns = sum(item.duration_ns for item in whole.program.lane if item.kind == OPTIMIZER)
    return Timeline(
        workload=workload,
        hardware=hardware,
        assignment=assignment,
        iteration=iteration,
        engine=engine,
        pre_forward_ns=sum(added.values()),
        before_forward=tuple(added.items()),
        earlier=earlier,
        before=whole.program.before,
        after=whole.program.after,
        buckets=_buckets(outcome, labels),
        collectives=tuple(
            CollectiveTimes(
                collective=collective,
                launch_ns=outcome.launch_ns[number],
                start_ns=outcome.start_ns[number],
                end_ns=outcome.end_ns[number],
                usable_ns=outcome.usable_ns[number],
                channel=labels[number],
                late_ns=outcome.start_ns[number] - outcome.taken_ns[number],
            )
            for number, collective in enumerate(program.collectives)
        ),
        backward_end_ns=outcome.backward_end_ns,
        sync_end_ns=outcome.sync_end_ns,
        optimizer_ns=optimizer_ns,
        post_sync_ns=whole.lane_end_ns - whole.sync_end_ns - optimizer_ns,
        early_launches=program.early_launches,
        notes=(*program.notes, *_told_of_forward(whole.program.before, added)),
        slowest=slowest,
        spans=spans,
        released_by=released_by,
    )
