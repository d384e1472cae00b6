"""The SimPy clock: compute lanes, communication channels, and the rules that tie them.

Every process here is one sentence of CONTRACT's "How time runs". Ranks of one job run side by side in one
environment: a rank comes to a collective once it has launched it and has a channel for it. There it waits for
the last one, as a kernel that spins does: its channel is taken, nothing moves, and nothing is slowed down.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from sim.clock import program as lane
from sim.clock.program import Machine, Program, check_ranks
from sim.clock.timeline import Outcome
from sim.errors import NotModelledError

# What work is, for its rate: the lane's own of three kinds (as ``BACKWARD``, whatever else it computes), or
# a collective, a small message or a larger one.
SENT, SMALL = "sent", "small"
Kind = int | str

# What is written down of each collective, in the order of ``Outcome``: when it was what.
LAUNCHED, TAKEN, STARTED, ENDED, USABLE = range(5)

# SimPy's priorities are URGENT 0 and NORMAL 1; these come last in an instant, rates behind all launches.
CHAINED, RATES = 2, 3


def last_of_instant(env: simpy.Environment, priority: int) -> simpy.Event:
    """An event that fires when all others of this instant, of a lower ``priority``, have."""
    event = env.event()
    event._ok, event._value = True, None
    env.schedule(event, priority=priority)  # type: ignore[arg-type]
    return event


@dataclass(slots=True, eq=False)
class Task:
    """Work in progress: what is left of it, in 2**-20 ns, and how fast it goes now."""

    done: simpy.Event
    left: int
    kind: Kind
    since: int
    rate: int = 0
    due: int = 0


class Stretch:
    """Stretches work while other work is active (rule 4 of "How time runs").

    What is left of work is counted in 2**-20 ns, so that its end does not depend on how often rates changed;
    only that is rounded, up. So nothing ends in the instant in which rates change, and changes of one instant
    take effect together however often rates are settled in it.
    """

    def __init__(self, env: simpy.Environment, machine: Machine) -> None:
        self._env, self._machine = env, machine
        self._active: list[Task] = []
        self._alarm: simpy.Event | None = None  # of what ends next
        self._settling = False
        self._stretches = bool(machine.in_force & {"idle", "computing", "copying_in", "copying_out"})

    def work(self, duration_ns: int, kind: Kind) -> simpy.Event:
        """An event that fires when ``duration_ns`` of work is done, however long that takes."""
        if not self._stretches or duration_ns == 0:
            return self._env.timeout(duration_ns)
        task = Task(self._env.event(), duration_ns * lane.FULL_SPEED, kind, int(self._env.now))
        self._active.append(task)
        self._request_settle()
        return task.done

    def _request_settle(self) -> None:
        if not self._settling:
            self._settling = True
            last_of_instant(self._env, RATES).callbacks = [self._settle]

    def _settle(self, _: simpy.Event) -> None:
        self._settling = False
        now, rates = int(self._env.now), self._rates()
        for task in self._active:
            rate = rates[task.kind]
            if rate != task.rate:
                task.left -= (now - task.since) * task.rate
                task.since, task.rate = now, rate
                task.due = now - (-task.left // rate)
        if self._active:
            self._alarm = self._env.timeout(min(task.due for task in self._active) - now)
            self._alarm.callbacks = [self._finish]

    def _rates(self) -> dict[Kind, int]:
        """How fast each kind of work goes beside what is active now."""
        machine, under_way = self._machine, [task.kind for task in self._active]
        larger, small = under_way.count(SENT), under_way.count(SMALL)
        copying = {lane.COPY_IN: machine.copying_in, lane.COPY_BACK: machine.copying_out}
        own = {lane.BACKWARD: machine.computing, **copying}
        beside = next((own[kind] for kind in under_way if isinstance(kind, int)), machine.idle)
        return {
            **{kind: rates.lane if larger or small else lane.FULL_SPEED for kind, rates in own.items()},
            SENT: beside.shared if larger > 1 else beside.alone,
            SMALL: beside.small if larger else beside.shared if small > 1 else beside.alone,
        }

    def _finish(self, alarm: simpy.Event) -> None:
        if alarm is self._alarm:  # else rates have changed since
            ended = [task for task in self._active if task.due == self._env.now]
            self._active = [task for task in self._active if task not in ended]
            for task in ended:
                task.done.succeed()
            self._request_settle()


# A collective: ranks that are missing, and what fires once none (of a broadcast: its root) is.
Meeting = tuple[set[int], simpy.Event]


class Rank:
    """One rank's program, from its own start: its processes and what they write down."""

    def __init__(
        self, env: simpy.Environment, number: int, program: Program, begin: int, meetings: Sequence[Meeting]
    ) -> None:
        self.env, self.number, self.program, self.begin_ns = env, number, program, begin
        self.meetings = meetings
        self.stretch = Stretch(env, program.machine)
        self.channels = simpy.Resource(env, capacity=program.machine.channels)
        self.launches = simpy.Store(env)
        self.taken: list[int] = []
        self.ended: list[int] = []
        self.log = [[0] * len(program.collectives) for _ in range(5)]
        self.usable = [env.event() for _ in program.collectives]
        self.chained: list[int] = []
        self.followers: defaultdict[int | None, list[int]] = defaultdict(list)
        for number, collective in enumerate(program.collectives):
            self.followers[collective.after].append(number)

    @property
    def now(self) -> int:
        """The instant in ns, on this rank's clock."""
        return int(self.env.now) - self.begin_ns

    def lane(self) -> Generator[simpy.Event, Any, None]:
        """Run the compute lane, item by item; launches go on beside it."""
        machine = self.program.machine
        yield self.env.timeout(-self.now)
        self.env.process(self.launcher())
        for kind, duration_ns, number, *_ in self.program.lane:
            if kind == lane.WAIT:
                yield self.usable[number]
            elif kind == lane.STALLED:
                yield self.env.timeout(duration_ns)
            elif kind == lane.LAUNCH and machine.launch_blocks_compute:
                yield self.stretch.work(machine.launch_cost_ns, lane.BACKWARD)
                self._launched(number)
            elif kind == lane.LAUNCH:
                self.launches.put(number)
            elif duration_ns:
                is_copy = kind in (lane.COPY_IN, lane.COPY_BACK)
                yield self.stretch.work(duration_ns, kind if is_copy else lane.BACKWARD)
            self.ended.append(self.now)

    def launcher(self) -> Generator[simpy.Event, Any, None]:
        """Launch collectives beside the compute lane, one after the other."""
        while True:
            number = yield self.launches.get()
            yield self.env.timeout(self.program.machine.launch_cost_ns)
            self._launched(number)

    def _launched(self, number: int) -> None:
        self.log[LAUNCHED][number] = self.now
        self.env.process(self._collective(number, self.channels.request()))

    def _collective(self, number: int, channel: Any) -> Generator[simpy.Event, Any, None]:
        collective, (missing, all_here) = self.program.collectives[number], self.meetings[number]
        yield channel
        self.log[TAKEN][number] = self.now
        self.taken.append(number)
        missing.remove(self.number)
        if collective.root == self.number if collective.root is not None else not missing:
            all_here.succeed()
        elif not all_here.triggered:
            yield all_here
        self.log[STARTED][number] = self.now
        is_small = collective.num_bytes < self.program.machine.small_bytes
        has_waited = self.log[TAKEN][number] > self.log[LAUNCHED][number]
        queued_ns = collective.queued_ns if has_waited else None
        service_ns = collective.service_ns if queued_ns is None else queued_ns
        yield self.stretch.work(service_ns, SMALL if is_small else SENT)
        self.log[ENDED][number] = self.now
        if not collective.holds_channel:
            self.channels.release(channel)
        if collective.settle_ns:
            yield self.env.timeout(collective.settle_ns)
        if collective.holds_channel:
            self.channels.release(channel)
        self.log[USABLE][number] = self.now
        self.usable[number].succeed()
        for follower in self.followers[number]:
            self.env.process(self._follow(follower))

    def _follow(self, number: int) -> Generator[simpy.Event, Any, None]:
        """Launch a chained collective, as a callback does, after all else that happens in that instant."""
        self.chained.append(number)
        yield last_of_instant(self.env, CHAINED)
        if self.chained:
            due, self.chained = sorted(self.chained), []
            for follower in due:
                self._launched(follower)


def play(program: Program) -> Outcome:
    """Play a program in SimPy."""
    return play_together((program,), (0,))[0]


def play_together(programs: Sequence[Program], begins_ns: Sequence[int]) -> tuple[Outcome, ...]:
    """What becomes of each rank's micro-batch, which begins at ``begins_ns`` on one clock.

    Outcomes count from the rank's own begin. The next micro-batch begins where the lane of this one ends.

    Raises:
        InputError, NotModelledError: ranks that do not launch the same collectives, see ``check_ranks``, or
            come to them in different orders.
    """
    check_ranks(programs)
    env = simpy.Environment(min(begins_ns))
    meetings = [(set(range(len(programs))), env.event()) for _ in programs[0].collectives]
    both = enumerate(zip(programs, begins_ns, strict=True))
    ranks = [Rank(env, number, *of, meetings) for number, of in both]
    for rank in ranks:
        env.process(rank.lane())
    env.run()
    if any(missing for missing, _ in meetings) or any(rank.taken != ranks[0].taken for rank in ranks):
        raise NotModelledError("ranks: they come to their collectives in different orders")
    return tuple(Outcome(rank.program, tuple(rank.ended), *map(tuple, rank.log)) for rank in ranks)
