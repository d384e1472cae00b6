"""The SimPy engine: a compute lane, communication channels, and the rules that tie them.

Every process here is one sentence of CONTRACT's "How time runs": the compute lane runs its program, the
launcher launches one after the other, channels serve first come first served, a chained collective follows
another. Stretching (interference) lives in ``Stretch`` alone.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import simpy

from sim.clock.outcome import Ledger, Outcome
from sim.clock.program import FULL_SPEED, CopyBack, Effects, Launch, Program, Rates, Ready, Wait, Work
from sim.nouns.collective import Collective
from sim.nouns.timeline import ComputeSpan, SpanKind

Kind = Literal["lane", "copy_in", "copy_out", "collective", "small"]  # "small": a small message

# SimPy's priorities are URGENT 0 and NORMAL 1; these come last in an instant, rates behind all launches.
CHAINED, RATES = 2, 3

Step = Generator[simpy.Event, Any, None]


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
    alarm: int = 0


class Stretch:
    """Stretches work while other work is active (rule 4 of "How time runs").

    What is left of work is counted in 2**-20 ns, so that its end does not depend on how often rates changed;
    only that is rounded, up. So nothing ends in the instant in which rates change, and changes of one instant
    take effect together however often rates are settled in it.
    """

    def __init__(self, env: simpy.Environment, effects: Effects) -> None:
        self._env = env
        self._effects = effects
        self._active: list[Task] = []
        self._settling = False
        self._stretches = effects.stretches

    def work(self, duration_ns: int, kind: Kind, collective: Collective | None = None) -> simpy.Event:
        """An event that fires when ``duration_ns`` of work is done, however long that takes."""
        if not self._stretches or duration_ns == 0:
            return self._env.timeout(duration_ns)
        if collective is not None and collective.num_bytes < self._effects.small_bytes:
            kind = "small"
        task = Task(self._env.event(), duration_ns * FULL_SPEED, kind, self._now)
        self._active.append(task)
        self._request_settle()
        return task.done

    @property
    def _now(self) -> int:
        return int(self._env.now)

    def _request_settle(self) -> None:
        if self._settling:
            return
        self._settling = True
        event = last_of_instant(self._env, RATES)
        event.callbacks = [self._settle]

    def _settle(self, _: simpy.Event) -> None:
        self._settling = False
        now, rates, is_moved = self._now, self._rates(), False
        for task in self._active:
            rate = rates[task.kind]
            if rate != task.rate:
                is_moved = True
                task.left -= (now - task.since) * task.rate
                task.since, task.rate = now, rate
                task.due = now - (-task.left // rate)
            if is_moved:  # tasks behind a moved one, too: those that end together do so in order of start
                task.alarm += 1
                alarm = self._env.timeout(task.due - now, (task, task.alarm))
                alarm.callbacks = [self._finish]

    def _rates(self) -> dict[Kind, int]:
        """How fast each kind of work goes beside what is active now."""
        effects, under_way = self._effects, [task.kind for task in self._active]
        larger, small = under_way.count("collective"), under_way.count("small")
        lane: dict[Kind, Rates] = {
            "lane": effects.computing,
            "copy_in": effects.copying_in,
            "copy_out": effects.copying_out,
        }
        beside = next((lane[kind] for kind in under_way if kind in lane), effects.idle)
        made = {kind: rates.lane if larger or small else FULL_SPEED for kind, rates in lane.items()}
        made["collective"] = beside.shared if larger > 1 else beside.alone
        made["small"] = beside.small if larger else beside.shared if small > 1 else beside.alone
        return made

    def _finish(self, alarm: simpy.Event) -> None:
        assert alarm.value is not None
        task, number = alarm.value
        if task.alarm != number or task.done.triggered:
            return
        self._active.remove(task)
        task.done.succeed()
        self._request_settle()


class Player:
    """One program being played: the processes and what they write down."""

    def __init__(self, env: simpy.Environment, program: Program) -> None:
        self.env = env
        self.program = program
        self.stretch = Stretch(env, program.effects)
        self.channels = simpy.Resource(env, capacity=program.effects.channels)
        self.launches = simpy.Store(env)
        self.ledger = Ledger(program)
        self.usable = [env.event() for _ in program.collectives]
        self.chained: list[int] = []
        self.followers: dict[int, list[int]] = {}
        for number, collective in enumerate(program.collectives):
            if collective.after is not None:
                self.followers.setdefault(collective.after, []).append(number)

    @property
    def now(self) -> int:
        """The instant in ns, on this player's clock."""
        return int(self.env.now)

    def _occupy(
        self, kind: SpanKind, duration_ns: int, gradient: int | None = None, bucket: int | None = None
    ) -> Step:
        start = self.now
        yield self.stretch.work(duration_ns, "copy_in" if kind == "copy_in" else "lane")
        if duration_ns:
            self.ledger.compute.append(
                ComputeSpan(kind=kind, start_ns=start, end_ns=self.now, gradient=gradient, bucket=bucket)
            )

    def lane(self) -> Step:
        """Run the compute lane, item by item."""
        ledger, effects = self.ledger, self.program.effects
        for item in self.program.lane:
            if isinstance(item, Work):
                yield from self._occupy(*item)
            elif isinstance(item, Ready):
                ledger.ready[item.bucket] = self.now
            elif isinstance(item, Launch):
                if effects.launch_blocks_compute:
                    bucket = self.program.collectives[item.collective].bucket
                    yield from self._occupy("launch", effects.launch_cost_ns, bucket=bucket)
                    self._launched(item.collective)
                else:
                    self.launches.put(item.collective)
            elif isinstance(item, Wait):
                yield self.usable[item.collective]
            elif isinstance(item, CopyBack):
                ledger.copy_out_start[item.bucket] = self.now
                yield self.stretch.work(item.duration_ns, "copy_out")
                ledger.available[item.bucket] = self.now
            else:
                ledger.backward_end = self.now

    def launcher(self) -> Step:
        """Launch collectives beside the compute lane, one after the other."""
        while True:
            number = yield self.launches.get()
            if self.program.effects.launch_cost_ns:
                yield self.env.timeout(self.program.effects.launch_cost_ns)
            self._launched(number)

    def _launched(self, number: int) -> None:
        self.ledger.launch[number] = self.now
        self.env.process(self._collective(number, self.channels.request()))

    def _collective(self, number: int, channel: simpy.resources.resource.Request) -> Step:
        collective = self.program.collectives[number]
        yield channel
        yield from self._await_others(number)
        self.ledger.start[number] = self.now
        yield self.stretch.work(collective.service_ns, "collective", collective)
        self.ledger.end[number] = self.now
        if not collective.holds_channel:
            self.channels.release(channel)
        if collective.settle_ns:
            yield self.env.timeout(collective.settle_ns)
        if collective.holds_channel:
            self.channels.release(channel)
        self.ledger.usable[number] = self.now
        self.usable[number].succeed()
        for follower in self.followers.get(number, ()):
            self.env.process(self._follow(follower))

    def _await_others(self, number: int) -> Step:
        """Wait for ranks that have not come yet, which slows nothing; here, with one rank, for none."""
        yield from ()

    def _follow(self, number: int) -> Step:
        """Launch a chained collective, as a callback does, after all else that happens in that instant."""
        self.chained.append(number)
        yield last_of_instant(self.env, CHAINED)
        if self.chained:
            due, self.chained = sorted(self.chained), []
            for follower in due:
                self._launched(follower)


def play(program: Program) -> Outcome:
    """Play a program in SimPy."""
    env = simpy.Environment()
    player = Player(env, program)
    lane = env.process(player.lane())
    if not program.effects.launch_blocks_compute:
        env.process(player.launcher())
    env.run(until=lane)
    sync_end = int(env.now)
    env.run()  # collectives that nothing waits for are played to their end, too
    return player.ledger.outcome(sync_end)
