"""What a clock hands back, and the timeline made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sim.clock import program as lane
from sim.clock.program import Program
from sim.nouns.collective import CollectiveTimes
from sim.nouns.timeline import BucketTimes, PathKind, Span, Timeline

_KINDS: dict[int, PathKind] = {
    lane.BACKWARD: "backward",
    lane.HOOK: "hook",
    lane.COPY_IN: "copy_in",
    lane.LAUNCH: "launch",
    lane.COPY_BACK: "copy_out",
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

    @property
    def columns(self) -> tuple[tuple[int, ...], ...]:
        """The five times, of all collectives each."""
        return self.launch_ns, self.taken_ns, self.start_ns, self.end_ns, self.usable_ns

    @property
    def held_ns(self) -> tuple[tuple[int, int], ...]:
        """Of each collective, from when to when it had its channel."""
        each = zip(self.program.collectives, self.taken_ns, self.end_ns, self.usable_ns, strict=True)
        return tuple((taken, usable if one.holds_channel else end) for one, taken, end, usable in each)

    def in_backward(self) -> "Outcome":
        """The part from the start of backward until gradients are synchronised, in ns from there."""
        program, sent = self.program, self.program.of_backward
        start, shift = program.place(lane.BACKWARD_BEGIN, -1), sent.start
        begin = self.ended_ns[start] if start >= 0 else 0
        part = slice(start + 1, program.place(lane.SYNC_END, len(program.lane)))
        lane_part, collectives, carriers = program.lane[part], program.collectives[sent], program.carriers
        if shift:
            lane_part = tuple(item._replace(collective=item.collective - shift) for item in lane_part)
            collectives = tuple(
                one if one.after is None else replace(one, after=one.after - shift) for one in collectives
            )
            carriers = tuple(tuple(number - shift for number in bucket) for bucket in carriers)
        cut = replace(program, lane=lane_part, collectives=collectives, carriers=carriers)
        times = (self.ended_ns[part], *(column[sent] for column in self.columns))
        return Outcome(cut, *(tuple(time - begin for time in column) for column in times))

    @property
    def before_forward(self) -> dict[str, int]:
        """What a system adds before backward to forward's own work, by what it is for; ns."""
        parts: dict[str, int] = {}
        start, until = 0, self.program.place(lane.BACKWARD_BEGIN, 0)
        for item, end in zip(self.program.lane[:until], self.ended_ns, strict=False):
            what = self.program.around_for if item.kind == lane.AROUND else "parameters"
            if item.collective >= 0:
                what = self.program.collectives[item.collective].purpose
            parts[what] = parts.get(what, 0) + end - start - item.duration_ns * (item.kind == lane.FORWARD)
            start = end
        return {what: took for what, took in parts.items() if took}

    @property
    def backward_end_ns(self) -> int:
        """When backward was over."""
        return self.ended_ns[self.program.place(lane.BACKWARD_END, -1)]

    @property
    def sync_end_ns(self) -> int:
        """When gradients were synchronised: at the lane's end where nothing follows."""
        return self.ended_ns[self.program.place(lane.SYNC_END, -1)]

    @property
    def lane_end_ns(self) -> int:
        """When the lane came to its end."""
        return self.ended_ns[-1]

    def lives_ns(self) -> list[list[int]]:
        """Of each bucket when it was complete, and when the lane began to copy it back, and had."""
        made = [[0, 0, 0] for _ in self.program.carriers]
        for item, begun, ended in zip(self.program.lane, (0, *self.ended_ns), self.ended_ns, strict=False):
            if item.bucket is not None and item.kind == lane.READY:
                made[item.bucket][0] = ended
            elif item.bucket is not None and item.kind == lane.COPY_BACK:
                made[item.bucket][1:] = begun, ended
        return made


def _collectives(outcome: Outcome) -> tuple[CollectiveTimes, ...]:
    """Every collective; its channel is the lowest that is free when it takes one, whatever the engine."""
    free, held = [0] * outcome.program.machine.channels, outcome.held_ns
    labels = [0] * len(held)
    # Of several that take one in the same instant, those that take no time have left it for the others.
    for number in sorted(range(len(held)), key=lambda k: (*held[k], outcome.launch_ns[k], k)):
        taken, until = held[number]
        labels[number] = next(place for place, time in enumerate(free) if time <= taken)
        free[labels[number]] = until
    return tuple(
        CollectiveTimes(
            collective=one,
            launch_ns=launch,
            start_ns=start,
            end_ns=end,
            usable_ns=usable,
            channel=channel,
            late_ns=start - taken,
        )
        for one, channel, (launch, taken, start, end, usable) in zip(
            outcome.program.collectives, labels, zip(*outcome.columns, strict=True), strict=True
        )
    )


def _buckets(outcome: Outcome, played: Sequence[CollectiveTimes]) -> tuple[BucketTimes, ...]:
    made: list[BucketTimes] = []
    lives = zip(outcome.program.carriers, outcome.lives_ns(), strict=True)
    for carriers, (ready, copied, available) in lives:
        sent = [played[number] for number in carriers]
        made.append(
            BucketTimes(
                index=len(made),
                num_bytes=sum(one.collective.num_bytes for one in sent),
                ready_ns=ready,
                launch_ns=min((one.launch_ns for one in sent), default=ready),
                start_ns=min((one.start_ns for one in sent), default=ready),
                end_ns=max((one.end_ns for one in sent), default=ready),
                available_ns=available,
                service_ns=sum(one.collective.service_ns for one in sent),
                copy_out_start_ns=copied,
                channel=sent[0].channel if sent else 0,
                late_ns=sum(one.late_ns for one in sent),
            )
        )
    return tuple(made)


def _spans(outcome: Outcome) -> tuple[tuple[Span, ...], tuple[int, ...], int]:
    """Every span, what released each, and the one that the lane's end came with: by their numbers.

    A collective is launched by the lane, by the launch before it or by the collective that it follows; where
    it had no channel then, another one left it to it. What the lane does next is released by what it did
    last, or by the collective that it waited for.
    """
    machine, collectives = outcome.program.machine, outcome.program.collectives
    cost = 0 if machine.launch_blocks_compute else machine.launch_cost_ns
    # The spans of a collective, one behind the other; of each the number of its first, its own and its last.
    spans: list[Span] = []
    causes: list[int] = []  # at first the span before it
    first, sent, done = [], [], []
    for number, (one, times) in enumerate(zip(collectives, zip(*outcome.columns, strict=True), strict=True)):
        launch, taken, start, end, usable = times
        parts: list[tuple[PathKind, int, int]] = []
        if cost and one.after is None:
            parts.append(("launch", launch - cost, launch))
        if start > taken:
            parts.append(("straggler", taken, start))
        first.append(len(spans))
        sent.append(len(spans) + len(parts))
        parts.append((one.kind, start, end))
        if usable > end:
            parts.append(("settle", end, usable))
        for kind, begin, until in parts:
            causes.append(len(spans) - 1)
            spans.append(Span(kind=kind, start_ns=begin, end_ns=until, bucket=one.bucket, collective=number))
        done.append(len(spans) - 1)

    last, now, launcher = -1, 0, -1
    for item, ended in zip(outcome.program.lane, outcome.ended_ns, strict=True):
        if item.kind == lane.WAIT and ended > now:
            last = done[item.collective]
        elif ended > now:
            bucket = collectives[item.collective].bucket if item.kind == lane.LAUNCH else item.bucket
            kind, gradient = _KINDS[item.kind], item.gradient
            spans.append(Span(kind=kind, start_ns=now, end_ns=ended, bucket=bucket, gradient=gradient))
            causes.append(last)
            last = len(spans) - 1
        if item.kind == lane.LAUNCH:
            at, begun = first[item.collective], outcome.launch_ns[item.collective] - cost
            causes[at] = last if begun == ended else launcher
            launcher = at
        now = ended

    left = {until: number for number, (taken, until) in enumerate(outcome.held_ns) if until > taken}
    # Who has left a channel is not among these where forward's gathers last into backward.
    for number, one in enumerate(collectives):
        if one.after is not None:
            causes[first[number]] = done[one.after]
        if outcome.taken_ns[number] > outcome.launch_ns[number]:
            by = left.get(outcome.taken_ns[number], -1)
            channel = -1 if by < 0 else done[by] if collectives[by].holds_channel else sent[by]
            causes[sent[number] - (outcome.start_ns[number] > outcome.taken_ns[number])] = channel
    return tuple(spans), tuple(causes), last


def make_timeline(outcome: Outcome, **step: Any) -> Timeline:
    """The timeline of one played program, a micro-batch; ``step``: what only who plays it knows of it."""
    whole, outcome = outcome, outcome.in_backward()
    spans, causes, released_by = _spans(outcome)
    played, added = _collectives(outcome), whole.before_forward
    optimizer_ns = sum(item.duration_ns for item in whole.program.lane if item.kind == lane.OPTIMIZER)
    rest_ns = sum(item.duration_ns for item in whole.program.lane if item.kind == lane.REST)
    return Timeline(
        pre_forward_ns=sum(added.values()),
        before_forward=tuple(added.items()),
        before=whole.program.before,
        after=whole.program.after,
        buckets=_buckets(outcome, played),
        collectives=played,
        backward_end_ns=outcome.backward_end_ns,
        sync_end_ns=outcome.sync_end_ns,
        optimizer_ns=optimizer_ns,
        post_sync_ns=whole.lane_end_ns - whole.sync_end_ns - optimizer_ns - rest_ns,
        rest_ns=rest_ns,
        early_launches=whole.program.early_launches,
        notes=whole.program.notes,
        spans=spans,
        causes=causes,
        released_by=released_by,
        **step,
    )
