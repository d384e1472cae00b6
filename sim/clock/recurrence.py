"""The twin without SimPy: the same semantics as closed recurrences, or stepped where work stretches.

Independent of ``lanes`` on purpose: each is the other's oracle.
"""

import heapq
from collections import deque
from fractions import Fraction

from sim.clock.outcome import Ledger, Outcome
from sim.clock.program import CopyBack, LaneItem, Launch, Program, Ready, Wait, Work
from sim.nouns.timeline import ComputeSpan


def solve(program: Program) -> Outcome:
    """The outcome of a program, to the nanosecond what ``lanes.play`` says."""
    chained = any(collective.after is not None for collective in program.collectives)
    return _Stepper(program).run() if chained or program.effects.stretches else _recur(program)


def _recur(program: Program) -> Outcome:
    """Nothing stretches and nothing is chained: collectives are launched, and so served, in lane order."""
    effects, collectives, ledger = program.effects, program.collectives, Ledger(program)
    cost, spans = effects.launch_cost_ns, ledger.compute
    free = [0] * effects.channels
    lane = last_launch = 0
    for item in program.lane:
        if isinstance(item, Work):
            if item.duration_ns:
                spans.append(_span(item, lane, lane + item.duration_ns))
                lane += item.duration_ns
        elif isinstance(item, Launch):
            number = item.collective
            collective = collectives[number]
            if effects.launch_blocks_compute:
                if cost:
                    spans.append(_launch_span(collective.bucket, lane, lane + cost))
                lane += cost
                launch = lane
            else:
                last_launch = launch = max(last_launch, lane) + cost
            taken = max(launch, heapq.heappop(free))
            start = max(taken, collective.arrival_ns)
            end = start + collective.service_ns
            usable = end + collective.settle_ns
            heapq.heappush(free, usable if collective.holds_channel else end)
            ledger.launch[number], ledger.start[number], ledger.late[number] = launch, start, start - taken
            ledger.end[number], ledger.usable[number] = end, usable
        elif isinstance(item, Ready):
            ledger.ready[item.bucket] = lane
        elif isinstance(item, Wait):
            lane = max(lane, ledger.usable[item.collective])
        elif isinstance(item, CopyBack):
            ledger.copy_out_start[item.bucket] = lane
            lane += item.duration_ns
            ledger.available[item.bucket] = lane
        else:
            ledger.backward_end = lane
    return ledger.outcome(lane)


class _Stepper:
    """From instant to instant, with exact fractions of remaining work."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.effects = program.effects
        self.ledger = Ledger(program)
        self.now = 0
        self.items: deque[LaneItem] = deque(program.lane)
        self.busy: LaneItem | None = None  # what the lane works at
        self.busy_since = 0
        self.busy_left = Fraction(0)
        self.sync_end: int | None = None
        self.to_launch: deque[tuple[int, int]] = deque()  # (time, collective), beside the lane, in order
        self.last_launch = 0
        self.queue: deque[int] = deque()  # launched, waiting for a channel
        self.awaited: list[int] = []  # they have a channel, and wait for other ranks
        self.serving: dict[int, Fraction] = {}  # collective -> work that remains
        self.settling: list[tuple[int, int]] = []  # (time, collective)
        self.held = 0  # channels that are busy with what comes before or after a collective
        self.usable: set[int] = set()
        self.to_follow: list[tuple[int, int]] = []  # (time, chained collective)
        self.followers: dict[int, list[int]] = {}
        for number, collective in enumerate(program.collectives):
            if collective.after is not None:
                self.followers.setdefault(collective.after, []).append(number)

    def run(self) -> Outcome:
        while True:
            self._settle_instant()
            rates = self._rates()
            ends = {
                number: self._due(self.ledger.start[number], left, rates[0])
                for number, left in self.serving.items()
            }
            lane_end = self._due(self.busy_since, self.busy_left, rates[1]) if self.busy else None
            instants = [*ends.values(), *(time for time, _ in self.to_launch)]
            instants += [self.program.collectives[number].arrival_ns for number in self.awaited]
            instants += [time for time, _ in self.settling]
            instants += [time for time, _ in self.to_follow]
            if lane_end is not None:
                instants.append(lane_end)
            if not instants:
                assert self.sync_end is not None, "the lane waits for what is never launched"
                return self.ledger.outcome(self.sync_end)
            self._advance(min(instants), ends, lane_end, rates)

    def _due(self, start: int, left: Fraction, factor: Fraction) -> int:
        """When work ends at today's rate; its whole duration is rounded, once."""
        return start + round(self.now - start + left * factor)

    def _rates(self) -> tuple[Fraction, Fraction]:
        """Factors by which collectives and the lane are stretched from here on."""
        effects = self.effects
        comm = lane = Fraction(1)
        copies_back = isinstance(self.busy, CopyBack)
        if self.busy is not None:
            comm *= effects.comm_copy_out_slowdown if copies_back else effects.comm_slowdown
        if len(self.serving) > 1:
            comm *= effects.channel_slowdown
        if self.serving:
            lane *= effects.copy_out_slowdown if copies_back else effects.compute_slowdown
            if isinstance(self.busy, Work) and self.busy.kind == "copy_in":
                lane *= effects.copy_in_slowdown
        return comm, lane

    def _advance(
        self, then: int, ends: dict[int, int], lane_end: int | None, rates: tuple[Fraction, Fraction]
    ) -> None:
        """Go to the next instant: what ends there has ended, the rest has that much less to do."""
        elapsed = then - self.now
        self.now = then
        for number, end in ends.items():
            if end == then:
                del self.serving[number]
                self._ended(number)
            else:
                self.serving[number] -= elapsed / rates[0]
        if self.busy is None:
            return
        if lane_end != then:
            self.busy_left -= elapsed / rates[1]
            return
        done, self.busy = self.busy, None
        if isinstance(done, CopyBack):
            self.ledger.available[done.bucket] = then
        elif isinstance(done, Launch):
            bucket = self.program.collectives[done.collective].bucket
            self.ledger.compute.append(_launch_span(bucket, self.busy_since, then))
            self._launched(done.collective)
        elif isinstance(done, Work):
            self.ledger.compute.append(_span(done, self.busy_since, then))

    def _settle_instant(self) -> None:
        """All that happens at this instant without taking time."""
        while True:
            before = self._count()
            self._run_lane()
            while self.to_launch and self.to_launch[0][0] == self.now:
                self._launched(self.to_launch.popleft()[1])
            self._serve()
            for number in [one for one in self.awaited if self._is_attended(one)]:
                self.awaited.remove(number)
                self.held -= 1
                self._start(number)
            for time, number in sorted(self.settling):
                if time == self.now:
                    self.settling.remove((time, number))
                    self.held -= self.program.collectives[number].holds_channel
                    self._usable(number)
            if before != self._count():
                continue
            due = sorted(number for time, number in self.to_follow if time == self.now)
            if not due:
                return
            self.to_follow = [entry for entry in self.to_follow if entry[0] != self.now]
            for number in due:
                self._launched(number)

    def _count(self) -> tuple[int, ...]:
        """Differs after anything has happened."""
        return (
            len(self.items),
            len(self.to_launch),
            len(self.queue),
            len(self.awaited),
            len(self.settling),
            len(self.usable),
        )

    def _run_lane(self) -> None:
        while self.busy is None and self.items:
            item = self.items[0]
            if isinstance(item, Wait) and item.collective not in self.usable:
                return
            self.items.popleft()
            if isinstance(item, Ready):
                self.ledger.ready[item.bucket] = self.now
            elif isinstance(item, Launch):
                if not self.effects.launch_blocks_compute:
                    self.last_launch = max(self.last_launch, self.now) + self.effects.launch_cost_ns
                    self.to_launch.append((self.last_launch, item.collective))
                elif not self._occupy(item, self.effects.launch_cost_ns):
                    self._launched(item.collective)
            elif isinstance(item, Work):
                self._occupy(item, item.duration_ns)
            elif isinstance(item, CopyBack):
                self.ledger.copy_out_start[item.bucket] = self.now
                if not self._occupy(item, item.duration_ns):
                    self.ledger.available[item.bucket] = self.now
            elif not isinstance(item, Wait):
                self.ledger.backward_end = self.now
        if self.busy is None and self.sync_end is None:
            self.sync_end = self.now

    def _occupy(self, item: LaneItem, duration_ns: int) -> bool:
        if duration_ns:
            self.busy, self.busy_since, self.busy_left = item, self.now, Fraction(duration_ns)
        return duration_ns > 0

    def _launched(self, number: int) -> None:
        self.ledger.launch[number] = self.now
        self.queue.append(number)

    def _serve(self) -> None:
        while self.queue and len(self.serving) + self.held < self.effects.channels:
            number = self.queue.popleft()
            if self._is_attended(number):
                self._start(number)
            else:
                self.ledger.late[number] = self.program.collectives[number].arrival_ns - self.now
                self.awaited.append(number)
                self.held += 1

    def _is_attended(self, number: int) -> bool:
        return self.program.collectives[number].arrival_ns <= self.now

    def _start(self, number: int) -> None:
        self.ledger.start[number] = self.now
        if self.program.collectives[number].service_ns:
            self.serving[number] = Fraction(self.program.collectives[number].service_ns)
        else:
            self._ended(number)

    def _ended(self, number: int) -> None:
        self.ledger.end[number] = self.now
        collective = self.program.collectives[number]
        if collective.settle_ns:
            self.held += collective.holds_channel
            self.settling.append((self.now + collective.settle_ns, number))
        else:
            self._usable(number)

    def _usable(self, number: int) -> None:
        self.ledger.usable[number] = self.now
        self.usable.add(number)
        for follower in self.followers.get(number, ()):
            self.to_follow.append((self.now + self.program.collectives[follower].delay_ns, follower))


def _span(work: Work, start: int, end: int) -> ComputeSpan:
    return ComputeSpan(kind=work.kind, start_ns=start, end_ns=end, gradient=work.gradient, bucket=work.bucket)


def _launch_span(bucket: int | None, start: int, end: int) -> ComputeSpan:
    return ComputeSpan(kind="launch", start_ns=start, end_ns=end, bucket=bucket)
