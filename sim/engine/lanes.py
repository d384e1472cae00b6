"""The SimPy engine: a compute lane, communication channels, and the rules that tie them.

Every process here is one sentence of "How time runs": the compute lane runs backward, the launcher
launches strictly in bucket order, channels serve first come first served, finalize waits and copies
back in order. Stretching (interference) lives in ``_Stretch`` alone.
"""

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import simpy

from sim.engine.outcome import Outcome
from sim.engine.plan import Plan
from sim.nouns.timeline import ComputeSpan, SpanKind

Kind = Literal["lane", "copy_in", "copy_out", "collective"]

_AFTER_EVERYTHING = 2  # SimPy's priorities are URGENT 0 and NORMAL 1; this comes last in an instant.

Step = Generator[simpy.Event, Any, None]


@dataclass(slots=True, eq=False)
class _Task:
    """Work in progress: what remains of it at factor 1, and how much it is stretched now."""

    done: simpy.Event
    remaining: Fraction
    kind: Kind
    start: int
    since: int
    factor: Fraction = Fraction(1)
    alarm: int = 0


class _Stretch:
    """Stretches work while other work is active (rule 4 of "How time runs").

    Rates change only at integer instants and remaining work is an exact fraction, so that the end of
    a task does not depend on how often rates changed; its whole duration is rounded once, half to even.
    All changes within one instant take effect together, after every event of that instant.
    """

    def __init__(self, env: simpy.Environment, plan: Plan) -> None:
        self._env = env
        self._plan = plan
        self._active: list[_Task] = []
        self._settling = False

    def work(self, duration_ns: int, kind: Kind) -> simpy.Event:
        """An event that fires when ``duration_ns`` of work is done, however long that takes."""
        if not self._plan.stretches or duration_ns == 0:
            return self._env.timeout(duration_ns)
        task = _Task(self._env.event(), Fraction(duration_ns), kind, start=self._now, since=self._now)
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
        event = self._env.event()
        event._ok, event._value = True, None
        event.callbacks = [self._settle]
        self._env.schedule(event, priority=_AFTER_EVERYTHING)  # type: ignore[arg-type]

    def _settle(self, _: simpy.Event) -> None:
        self._settling = False
        under_way = [task.kind for task in self._active]
        for task in self._active:
            task.remaining -= (self._now - task.since) / task.factor
            task.since = self._now
            task.factor = self._factor(task.kind, under_way)
            task.alarm += 1
            elapsed = self._now - task.start
            left = round(elapsed + task.remaining * task.factor) - elapsed
            alarm = self._env.timeout(left, (task, task.alarm))
            alarm.callbacks = [self._finish]

    def _factor(self, kind: Kind, under_way: list[Kind]) -> Fraction:
        plan = self._plan
        factor = Fraction(1)
        collectives = under_way.count("collective")
        if kind == "collective":
            if "lane" in under_way or "copy_in" in under_way:
                factor *= plan.comm_slowdown
            if "copy_out" in under_way:
                factor *= plan.comm_copy_out_slowdown
            if collectives > 1:
                factor *= plan.channel_slowdown
        elif collectives:
            factor *= plan.copy_out_slowdown if kind == "copy_out" else plan.compute_slowdown
            if kind == "copy_in":
                factor *= plan.copy_in_slowdown
        return factor

    def _finish(self, alarm: simpy.Event) -> None:
        assert alarm.value is not None
        task, number = alarm.value
        if task.alarm != number or task.done.triggered:
            return
        self._active.remove(task)
        task.done.succeed()
        self._request_settle()


class _Backward:
    """One backward pass: the processes and what they write down."""

    def __init__(self, env: simpy.Environment, plan: Plan) -> None:
        count = len(plan.wire_bytes)
        self.env = env
        self.plan = plan
        self.stretch = _Stretch(env, plan)
        self.channels = simpy.Resource(env, capacity=plan.channels)
        self.launches = simpy.Store(env)
        self.compute: list[ComputeSpan] = []
        self.ready = [0] * count
        self.launch = [0] * count
        self.start = [0] * count
        self.end = [0] * count
        self.copy_out_start = [0] * count
        self.available = [0] * count
        self.reduced = [env.event() for _ in range(count)]
        self.compute_end = 0

    @property
    def now(self) -> int:
        return int(self.env.now)

    def _occupy(
        self, kind: SpanKind, duration_ns: int, gradient: int | None = None, bucket: int | None = None
    ) -> Step:
        start = self.now
        yield self.stretch.work(duration_ns, "copy_in" if kind == "copy_in" else "lane")
        if duration_ns:
            self.compute.append(
                ComputeSpan(kind=kind, start_ns=start, end_ns=self.now, gradient=gradient, bucket=bucket)
            )

    def backward(self) -> Step:
        """The compute lane: backward's work, copies in, and launches where they block it."""
        plan = self.plan
        pending = plan.pending
        next_bucket = 0
        for gradient, work, copy_in, bucket in zip(
            plan.gradients, plan.work_ns, plan.copy_in_ns, plan.bucket_of, strict=True
        ):
            yield from self._occupy("backward", work, gradient)
            yield from self._occupy("copy_in", copy_in, gradient)
            pending[bucket] -= 1
            if pending[bucket]:
                continue
            self.ready[bucket] = self.now
            # A3.5: launch in bucket order, all that are ready; a later bucket waits for its turn.
            while next_bucket < len(pending) and pending[next_bucket] == 0:
                if plan.launch_blocks_compute:
                    yield from self._occupy("launch", plan.launch_cost_ns, bucket=next_bucket)
                    self._launched(next_bucket)
                else:
                    self.launches.put(next_bucket)
                next_bucket += 1
        yield from self._occupy("backward", plan.tail_ns)
        self.compute_end = self.now
        yield from self._finalize()

    def launcher(self) -> Step:
        """Launches beside the compute lane, one after the other."""
        for _ in self.ready:
            bucket = yield self.launches.get()
            if self.plan.launch_cost_ns:
                yield self.env.timeout(self.plan.launch_cost_ns)
            self._launched(bucket)

    def _launched(self, bucket: int) -> None:
        self.launch[bucket] = self.now
        self.env.process(self._collective(bucket, self.channels.request()))

    def _collective(self, bucket: int, channel: simpy.resources.resource.Request) -> Step:
        yield channel
        self.start[bucket] = self.now
        yield self.stretch.work(self.plan.service_ns[bucket], "collective")
        self.end[bucket] = self.now
        self.channels.release(channel)
        self.reduced[bucket].succeed()

    def _finalize(self) -> Step:
        """A3.10: for each bucket in order, wait for its collective, then copy back."""
        for bucket, copy_out in enumerate(self.plan.copy_out_ns):
            yield self.reduced[bucket]
            self.copy_out_start[bucket] = self.now
            yield self.stretch.work(copy_out, "copy_out")
            self.available[bucket] = self.now


def play(plan: Plan) -> Outcome:
    """Play a plan in SimPy."""
    env = simpy.Environment()
    run = _Backward(env, plan)
    env.process(run.backward())
    if not plan.launch_blocks_compute:
        env.process(run.launcher())
    env.run()
    return Outcome(
        compute=tuple(run.compute),
        ready_ns=tuple(run.ready),
        launch_ns=tuple(run.launch),
        start_ns=tuple(run.start),
        end_ns=tuple(run.end),
        copy_out_start_ns=tuple(run.copy_out_start),
        available_ns=tuple(run.available),
        backward_end_ns=run.compute_end,
    )
