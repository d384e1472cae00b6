"""Several jobs on one cluster, step after step: while their collectives meet, links are shared.

Each job is played as one rank, since all its ranks are alike, by the rules of ``simpy_clock``. While
collectives of several jobs are under way, each goes at the pace that this set of jobs allows: what is left of
it stretches by (its time beside them) / (its time alone). The set changes whenever a collective starts or
ends.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from sim.clock.program import Program
from sim.clock.simpy_clock import Player
from sim.clusters.jobs.neighbours import check_apart, check_world_size, hardware_beside, shared_links
from sim.clusters.jobs.shared_links import Links, Sharing
from sim.errors import InputError
from sim.metrics.step import step_ns
from sim.nouns.checks import at_least
from sim.nouns.cluster import Cluster, check_ranks
from sim.nouns.collective import Collective
from sim.nouns.jobs import Job, JobsReport, PlayedJob, Start
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.systems.simulate import simulate, simulated_step_ns
from sim.units import divide_half_even, median_ns

MOST_STEPS = 100_000  # of all jobs together: some minutes

Step = Generator[simpy.Event, Any, None]


@dataclass(slots=True, kw_only=True)
class _Running:
    """A job as it runs: the ends of its steps, and what they took; in ns."""

    number: int
    workload: Workload
    programs: tuple[Program, ...]
    step_ns: list[int] = field(default_factory=list)
    exposed_ns: list[int] = field(default_factory=list)


class _Playing:
    """All jobs in one environment."""

    def __init__(self, cluster: Cluster, jobs: Sequence[Job], steps: int) -> None:
        self.env = simpy.Environment()
        self.links = Links(cluster, jobs)
        self.steps = steps
        self.done = self.env.event()
        self.running = [
            _Running(
                number=number,
                workload=job.workload,
                programs=write(job.workload, job.hardware, job.assignment),
            )
            for number, job in enumerate(jobs)
        ]

    def play(self, offsets_ns: Sequence[int]) -> list[_Running]:
        """Play until each job has made its steps; quicker jobs go on until the last one has."""
        for running, offset_ns in zip(self.running, offsets_ns, strict=True):
            self.env.process(self._job(running, offset_ns))
        self.env.run(until=self.done)
        return self.running

    def _job(self, running: _Running, offset_ns: int) -> Step:
        yield self.env.timeout(offset_ns)
        while True:
            start, exposed_ns = self._now, 0
            for program in running.programs:
                sharing = Sharing(self.env, program.effects, self.links, running.number)
                yield from self._blocking(sharing, program.before_forward)
                yield self.env.timeout(
                    program.before_forward_ns
                    + running.workload.forward_ns
                    - program.hidden_ns
                    + running.workload.loss_ns
                )
                backward = self._now
                player = Player(self.env, program, sharing)
                if not program.effects.launch_blocks_compute:
                    self.env.process(player.launcher())
                yield self.env.process(player.lane())
                if program.collectives or program is running.programs[-1]:
                    exposed_ns += self._now - backward - running.workload.backward_ns
                yield self.env.timeout(program.optimizer_ns + program.after_sync_ns)
                yield from self._blocking(sharing, program.after_sync)
            running.step_ns.append(self._now - start)
            running.exposed_ns.append(exposed_ns)
            if not self.done.triggered and all(len(each.step_ns) >= self.steps for each in self.running):
                self.done.succeed()

    def _blocking(self, sharing: Sharing, collectives: Sequence[Collective]) -> Step:
        for collective in collectives:
            yield sharing.work(collective.service_ns, "collective", collective)

    @property
    def _now(self) -> int:
        return int(self.env.now)


def play_jobs(
    jobs: Sequence[Job],
    cluster: Cluster,
    *,
    steps: int = 50,
    warmup: int = 10,
    offsets_ns: Sequence[int] | None = None,
    starts: int = 1,
) -> JobsReport:
    """What each job's steps are while all of them run on ``cluster``, and which links they share.

    While collectives of several jobs are under way, each goes at its fair share of the links. Jobs with steps
    of one length keep the phase that they start in, and it decides how much of their communication meets:
    ``starts`` shows by how much.

    Args:
        jobs: each with the GPU of each of its ranks, and its hardware as it is alone.
        cluster: the machine.
        steps: how many each job plays at least; quicker ones go on until the last has.
        warmup: how many first steps of each job are left out of the figures.
        offsets_ns: when each job starts; None: all at once.
        starts: how many starts are played, s = 0, 1, …: in start s job ``j`` begins ``j * s / starts`` of its
            own step later, modulo a step. The figures are those of the first.

    Raises:
        InputError: an argument that is not legal; no jobs, two of one name, ranks that are no GPUs or that
            two jobs have, or not as many as a job's hardware has.
        AssignmentError, NotModelledError: as ``simulate``.
    """
    offsets = _check(jobs, cluster, steps, warmup, offsets_ns)
    at_least("starts", starts, 1)
    timelines = [simulate(job.workload, job.hardware, job.assignment, "analytic") for job in jobs]
    alone = [step_ns(timeline) for timeline in timelines]
    _check_length(jobs, alone, steps, offsets, starts)
    offsets_of_starts = [
        tuple(
            offset + number * part * step_alone_ns // starts % step_alone_ns
            for number, (offset, step_alone_ns) in enumerate(zip(offsets, alone, strict=True))
        )
        for part in range(starts)
    ]
    every = [_Playing(cluster, jobs, steps).play(begins) for begins in offsets_of_starts]
    played = every[0]
    rows = []
    for number, (job, timeline, running) in enumerate(zip(jobs, timelines, played, strict=True)):
        others = [other.ranks for other in (*jobs[:number], *jobs[number + 1 :])]
        beside = hardware_beside(job.hardware, cluster, job.ranks, others)
        rows.append(
            _row(
                job,
                alone[number],
                timeline.exposed_ns,
                simulated_step_ns(job.workload, beside, job.assignment),
                running.step_ns[warmup:],
                running.exposed_ns[warmup:],
            )
        )
    return JobsReport(
        cluster=cluster.name,
        jobs=tuple(rows),
        shared_links=shared_links(cluster, [job.ranks for job in jobs], [job.name for job in jobs]),
        steps=steps,
        warmup=warmup,
        offsets_ns=offsets,
        starts=tuple(
            Start(offsets_ns=begins, mean_step_ns=tuple(_mean(one.step_ns[warmup:]) for one in running))
            for begins, running in zip(offsets_of_starts, every, strict=True)
        )
        if starts > 1
        else (),
        provenance={job.name: {"workload": job.workload.name, "hardware": job.hardware.name} for job in jobs},
    )


def _mean(times_ns: Sequence[int]) -> int:
    return divide_half_even(sum(times_ns), len(times_ns))


def _check(
    jobs: Sequence[Job], cluster: Cluster, steps: int, warmup: int, offsets_ns: Sequence[int] | None
) -> tuple[int, ...]:
    if not jobs:
        raise InputError("jobs: an empty list is not legal; give at least one")
    names = [job.name for job in jobs]
    for number, job in enumerate(jobs):
        if job.name in names[:number]:
            raise InputError(f"jobs.{number}.name: {job.name!r} occurs twice; give each job its own")
        check_ranks(cluster, job.ranks, f"{job.name}: ranks")
        check_world_size(job.hardware, job.ranks, f"{job.name}: ranks")
    check_apart([job.ranks for job in jobs], names)
    at_least("steps", steps, 1)
    at_least("warmup", warmup, 0)
    if warmup >= steps:
        raise InputError(f"warmup: {warmup} is not legal; give fewer than the {steps} steps")
    offsets = tuple(offsets_ns) if offsets_ns is not None else (0,) * len(jobs)
    if len(offsets) != len(jobs):
        raise InputError(f"offsets_ns: {len(offsets)} are not legal; give one a job, {len(jobs)}")
    for number, offset in enumerate(offsets):
        at_least(f"offsets_ns.{number}", offset, 0)
    return offsets


def _check_length(
    jobs: Sequence[Job], alone: Sequence[int], steps: int, offsets: Sequence[int], starts: int
) -> None:
    """Raise ``InputError`` where quicker jobs would go on for too many steps before the last is done."""
    for job, step_alone_ns in zip(jobs, alone, strict=True):
        if step_alone_ns == 0:
            raise InputError(f"{job.name}: its step takes 0 ns; give a workload that takes time")
    in_all = _steps_in_all(alone, steps, offsets, starts)
    if in_all <= MOST_STEPS:
        return
    if _steps_in_all(alone, steps, [0] * len(jobs), starts) <= MOST_STEPS:
        raise InputError(
            f"offsets_ns: {max(offsets)} is not legal here; until the last job has played its {steps} "
            f"steps, all of them make {in_all:.0f}, and {MOST_STEPS} may be played, so start it earlier"
        )
    raise InputError(
        f"steps: {steps} is not legal here; until the last job has played so many, all of them make "
        f"{in_all:.0f}, and {MOST_STEPS} may be played, so give fewer"
    )


def _steps_in_all(alone: Sequence[int], steps: int, offsets: Sequence[int], starts: int) -> float:
    """How many steps all jobs make, each as long as alone, until the last one has made ``steps``."""
    each_job = list(zip(offsets, alone, strict=True))
    last_ns = max(offset + (steps + 1) * step_alone_ns for offset, step_alone_ns in each_job)
    return starts * sum((last_ns - offset) / step_alone_ns for offset, step_alone_ns in each_job)


def _row(
    job: Job,
    alone_ns: int,
    alone_exposed_ns: int,
    always_beside_ns: int,
    steps: list[int],
    exposed: list[int],
) -> PlayedJob:
    ordered = sorted(steps)
    return PlayedJob(
        name=job.name,
        ranks=job.ranks,
        alone_step_ns=alone_ns,
        alone_exposed_comm_ns=alone_exposed_ns,
        mean_step_ns=_mean(steps),
        p5_step_ns=_percentile(ordered, 5),
        median_step_ns=median_ns(steps),
        p95_step_ns=_percentile(ordered, 95),
        mean_exposed_comm_ns=_mean(exposed),
        always_beside_step_ns=always_beside_ns,
        slowdown=sum(steps) / len(steps) / alone_ns,
        step_ns=tuple(steps),
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """The nearest-rank percentile: the least value that ``percent`` % of ``ordered`` do not exceed."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
