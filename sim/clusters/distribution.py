"""How long steps are over many draws of ranks that differ: what the slowest rank costs, which it is, and what
a bucket assignment makes of it.

A job is a chain of steps of all ranks: each begins its next step where its own last one ended.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice, pairwise, repeat
from typing import Any, ClassVar

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.play import (
    DURATION,
    END,
    KIND,
    QUEUED,
    SERVICE,
    STARTED,
    TAKEN,
    Sheet,
    make_sheet,
    play_ranks,
)
from sim.clock.program import BACKWARD, MOST_NS, Program
from sim.clusters.ranks import Brought, Crew, Ranks, make_crew
from sim.costs.doubts import notes_of, rests_on
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Legal
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import write
from sim.systems.simulate import simulated_step_ns
from sim.tuner.draws import read_scatter
from sim.tuner.gain import student
from sim.units import format_number

MOST_CELLS = 1 << 27  # ranks times collectives: 1 GiB an array
MOST_BYTES = 1 << 30  # of arrays that jobs which run at once may hold
_BYTES_A_CELL = 64  # rank and collective: came and its kin
MOST_SAMPLES = 1_000_000
_MOST_JOBS = 20
_FEWEST_STEPS = 10  # in a job, so that the one that is not counted is no great loss
_MOST_LOTTERIES = 1000  # jobs, if a rank draws a pace once a job: more steps of one job then say little
_STEPS_OF_A_LOTTERY = 2
_MOST_RANKS = 1 << 23  # of all jobs together: what is kept of them takes 192 MiB
_FEWEST_STALLS = 20  # a Poisson number of 20 has a standard deviation of less than a quarter of it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """``count`` ranks, of which ``first`` is the first, as one: how they came to collectives.

    ``last_share`` is the share of all collectives to which they came last, split evenly where others came
    with them, and without those to which all came together; ``waited_ns`` how long one of them waited for the
    last in a step, in the mean; ``pace`` the mean of what they drew.
    """

    name: str
    first: int
    count: int
    pace: float
    last_share: float
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDistribution:
    """Steps of a job of ``world_size`` ranks under one assignment; times in ns, intervals at 95 %.

    A step is from where the last rank has ended one to where the last has ended the next. ``samples`` steps
    in ``jobs`` chains, each of which drew its ranks anew; None for an interval of fewer than two jobs, or of
    so few stalls that how jobs scatter does not tell it. Intervals leave out how few iterations were
    recorded. ``quantiles_ns`` has 101: from the shortest step to the longest.

    ``nominal_step_ns`` is the step if every rank were the workload as it is, ``slowest_cost_ns`` what the
    mean step is longer. ``waited_ns`` is how long a rank's collectives of backward waited for the last rank
    in a step, in the mean.
    """

    KIND: ClassVar[str] = "step_distribution"
    workload: str
    hardware: str
    ranks: str
    policy: str
    bucket_count: int
    world_size: int
    samples: int
    jobs: int
    seed: int
    mean_step_ns: int
    mean_low_ns: int | None
    mean_high_ns: int | None
    p5_step_ns: int
    median_step_ns: int
    p95_step_ns: int
    p99_step_ns: int
    quantiles_ns: tuple[int, ...]
    nominal_step_ns: int
    slowest_cost_ns: int
    waited_ns: int
    parts: tuple[RankPart, ...] = ()
    not_known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """One assignment over the same draws as the first one, which ``gain_ns`` is measured against.

    ``gain_ns``: by how much its mean step is shorter, with an interval where that of a mean step has one;
    ``nominal_gain_ns`` the same with all ranks alike. Their difference is what it changes of the cost of the
    slowest.
    """

    name: str
    gain_ns: int
    gain_low_ns: int | None
    gain_high_ns: int | None
    nominal_gain_ns: int
    distribution: StepDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentComparison:
    """Several assignments on the same draws; the first row is what the others are measured against."""

    KIND: ClassVar[str] = "assignment_comparison"
    rows: tuple[PairedRow, ...]
    best_by_mean: str
    best_by_nominal: str
    provenance: dict[str, Any] = field(default_factory=dict)


# Chains of steps.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JobSteps:
    """What one job did.

    ``steps_ns`` [steps]: from where the last rank ended the step before to where the last ended this one.
    Sums over these steps, for each rank: ``rank_waited_ns``, ``rank_paces``, and ``rank_last``, how often it
    came last to a collective of backward: where several did, each has its part of it, and where all came
    together nobody has. ``stalled``: the number of steps in which any rank stalled.
    """

    steps_ns: Ints
    rank_waited_ns: Ints
    rank_last: Floats
    rank_paces: Floats
    stalled: int


class VariedStep:
    """A step under one assignment, as each variant runs it: micro-batches, and what a stall interrupts."""

    def __init__(self, crew: Crew, hardware: Hardware, assignment: Assignment) -> None:
        written = [write(workload, hardware, assignment) for workload in crew.variants]
        self.crew = crew
        self.programs = written[0]
        self.sheets = [make_sheet(programs) for programs in zip(*written, strict=True)]
        if self.cells > MOST_CELLS:
            raise InputError(
                f"world_size: {len(crew):,} ranks with {self.cells // len(crew):,} collectives are more than "
                f"{MOST_CELLS:,} together; give fewer ranks or larger buckets"
            )
        self._untils_ns = [
            np.where(lanes[:, :, KIND] == BACKWARD, lanes[:, :, DURATION], 0).cumsum(axis=1)
            for _, lanes, _ in self.sheets
        ]
        if crew.ranks.stall_probability and any((until[:, -1] == 0).any() for until in self._untils_ns):
            raise InputError("stall_probability: a backward without work cannot be interrupted; give 0")
        self.scatter = read_scatter(hardware)
        self.jitters = self.scatter.known > 0 and hardware.world_size > 1
        self._places = [_places(program, crew.variants[0], assignment) for program in self.programs]

    @property
    def sent(self) -> int:
        """Collectives that are launched in backward, of all micro-batches."""
        slices = [program.of_backward for program in self.programs]
        return sum(one.stop - one.start for one in slices)

    @property
    def cells(self) -> int:
        """Ranks times collectives, of the largest micro-batch."""
        return len(self.crew) * max(1, *(len(program.collectives) for program in self.programs))

    def stalls(self, brought: Brought) -> list[Ints]:
        """The interrupted item of each rank's lane in each micro-batch, -1 where none is."""
        made = [np.full(len(self.crew), -1, dtype=np.int64) for _ in self.sheets]
        for rank, share in zip(brought.stalled.tolist(), brought.where.tolist(), strict=True):
            variants = brought.variants[:, rank]
            untils = [until[k] for until, k in zip(self._untils_ns, variants, strict=True)]
            ends = np.cumsum([until[-1] for until in untils])
            done = int(share * ends[-1])
            batch = int(np.searchsorted(ends, done, side="right"))
            before = ends[batch] - untils[batch][-1]
            made[batch][rank] = np.searchsorted(untils[batch], done - before, side="right")
        return made

    def varied(self, luck: Floats | None) -> list[tuple[Sheet, ...]]:
        """What is played [steps][micro-batch], with the jitter of single all-reduces by ``luck`` [steps,
        micro-batches, gradients], where the calibration kept any."""
        if luck is None:
            return [tuple(self.sheets)]
        batches = range(len(self.sheets))
        return list(zip(*(self._varied(batch, luck[:, batch]) for batch in batches), strict=True))

    def _varied(self, batch: int, luck: Floats) -> list[Sheet]:
        sheet, places = self.sheets[batch], self._places[batch]
        known = places >= 0
        if not known.any():
            return [sheet] * len(luck)
        wires = np.array([one.num_bytes for one in self.programs[batch].collectives], dtype=np.int64)
        factors = self.scatter.jitter(wires[known], luck[:, places[known]])
        made = []
        for times in np.rint(np.minimum(sheet.collectives[known, SERVICE] * factors, MOST_NS)):
            collectives = sheet.collectives.copy()
            collectives[known, SERVICE] = collectives[known, QUEUED] = times
            made.append(sheet._replace(collectives=collectives))
        return made


def _places(program: Program, workload: Workload, assignment: Assignment) -> Ints:
    """For each collective the place, in ready order, of the gradient that it waits for, whose luck it has.

    -1 where nothing is known of how the collective varies.
    """
    place = {index: at for at, index in enumerate(workload.order())}
    made = []
    for one in program.collectives:
        is_known = one.kind == "all_reduce" and one.bucket is not None
        members = assignment.bucket_indices[one.bucket] if is_known and one.bucket is not None else ()
        made.append(max((place.get(index, 0) for index in members), default=-1))
    return np.array(made, dtype=np.int64)


def play_job(
    step: VariedStep, seed: np.random.SeedSequence, steps: int, played: Callable[[], None] = lambda: None
) -> JobSteps:
    """``steps`` steps of a job, after a first one that is not counted since all ranks begin it together.

    ``played`` is called after each step.
    """
    crew = step.crew
    rolling, lucky = seed.spawn(2)
    luck = None
    if step.jitters:
        shape = (steps + 1, len(step.sheets), len(crew.variants[0].gradients))
        luck = np.random.default_rng(lucky).standard_normal(shape)
    varied = step.varied(luck)
    rank_waited, rank_last = np.zeros(len(crew), np.int64), np.zeros(len(crew))
    ends, finished = np.zeros(len(crew), np.int64), [0]
    rank_paces, stalled_steps = np.zeros(len(crew)), 0
    for number, brought in enumerate(islice(crew.steps(rolling, len(step.sheets)), steps + 1)):
        stalls = step.stalls(brought)
        for batch, sheet in enumerate(varied[number % len(varied)]):
            variants = brought.variants[batch]
            met = play_ranks(sheet, variants, brought.paces, stalls[batch], crew.ranks.stall_ns, ends)
            ends, log = met.states[:, END].copy(), met.log[:, step.programs[batch].of_backward]
            if number:
                waits = log[:, :, STARTED] - log[:, :, TAKEN]
                rank_waited += waits.sum(axis=1)
                was_last = waits == 0
                sharing = was_last.sum(axis=0)
                rank_last += was_last @ np.where(sharing < len(crew), 1 / sharing, 0.0)
        finished.append(int(ends.max()))
        if number:
            rank_paces += brought.paces
            stalled_steps += brought.stalled.size > 0
        played()
    times_ns = np.array(finished, dtype=np.int64)
    return JobSteps(
        steps_ns=times_ns[2:] - times_ns[1:-1],
        rank_waited_ns=rank_waited,
        rank_last=rank_last,
        rank_paces=rank_paces,
        stalled=stalled_steps,
    )


def play_jobs(
    step: VariedStep, seed: int, steps: Sequence[int], played: Callable[[], None] = lambda: None
) -> list[JobSteps]:
    """Jobs of so many steps each, in threads (the loops hold no lock); results do not depend on how many.

    ``played`` is called after each step, by any thread.
    """
    seeds = np.random.SeedSequence(seed).spawn(len(steps))
    workers = max(1, min(os.cpu_count() or 1, len(steps), MOST_BYTES // (step.cells * _BYTES_A_CELL)))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(play_job, repeat(step), seeds, steps, repeat(played)))


# What they come to.


def step_distribution(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    ranks: Ranks,
    *,
    samples: int = 1000,
    seed: int = 0,
) -> StepDistribution:
    """``samples`` steps of ``hardware.world_size`` ranks that differ as ``ranks`` says, from ``seed``.

    Raises as ``compare_assignments``.
    """
    compared = compare_assignments(workload, hardware, {"": assignment}, ranks, samples=samples, seed=seed)
    return compared.rows[0].distribution


def compare_assignments(
    workload: Workload,
    hardware: Hardware,
    assignments: Mapping[str, Assignment],
    ranks: Ranks,
    *,
    samples: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AssignmentComparison:
    """Several assignments on the same draws; the first is what the others are measured against.

    Args:
        workload: what a rank computes; its ``samples`` are drawn from.
        hardware: ``world_size`` is how many ranks there are; its ``spread`` says how all-reduces vary.
        assignments: by name, at least one.
        ranks: how they differ.
        samples: steps of each assignment.
        seed: of all draws.
        progress: called now and then with how many steps are played, and how many there are.

    Raises:
        InputError: an argument that is not legal, or ranks that there are not.
        NotModelledError: ranks that come to their collectives in different orders.
    """
    if not assignments:
        raise InputError("assignments: none is not legal; give at least one")
    Legal(least=1, most=MOST_SAMPLES).take("samples", samples)
    Legal().take("seed", seed)
    crew = make_crew(workload, hardware.world_size, ranks)
    steps = _steps(samples, crew)
    total = len(assignments) * (sum(steps) + len(steps))  # one of each job is not counted
    done, seldom = count(1), max(1, total // 200)

    def played() -> None:
        number = next(done)
        if number % seldom == 0 or number == total:
            progress(number, total)

    rows: list[PairedRow] = []
    first: list[JobSteps] = []
    for name, assignment in assignments.items():
        step = VariedStep(crew, hardware, assignment)
        jobs = play_jobs(step, seed, steps, played)
        told = summarise(workload, hardware, assignment, step, jobs, seed)
        first = first or jobs
        gains = [one.steps_ns - other.steps_ns for one, other in zip(first, jobs, strict=True)]
        gain, low, high = interval(gains, enough_stalls(ranks, jobs))
        nominal = rows[0].distribution.nominal_step_ns if rows else told.nominal_step_ns
        rows.append(
            PairedRow(
                name=name,
                gain_ns=gain,
                gain_low_ns=low,
                gain_high_ns=high,
                nominal_gain_ns=nominal - told.nominal_step_ns,
                distribution=told,
            )
        )
    return AssignmentComparison(
        rows=tuple(rows),
        best_by_mean=min(rows, key=lambda row: row.distribution.mean_step_ns).name,
        best_by_nominal=min(rows, key=lambda row: row.distribution.nominal_step_ns).name,
        provenance={"source": "sim.compare_assignments", "workload": workload.name, "seed": seed},
    )


def _steps(samples: int, crew: Crew) -> list[int]:
    """Steps of each job: up to 20 jobs, of at least ten steps each where there are so many; many short jobs
    where ranks draw a pace once a job."""
    jobs = min(_MOST_JOBS, samples // _FEWEST_STEPS)
    if crew.ranks.pace_spread:
        most = max(_MOST_JOBS, min(_MOST_LOTTERIES, _MOST_RANKS // len(crew)))
        jobs = min(most, samples // _STEPS_OF_A_LOTTERY)
    jobs = max(1, jobs)
    return [samples // jobs + (number < samples % jobs) for number in range(jobs)]


def interval(tables: Sequence[Ints], is_told: bool) -> tuple[int, int | None, int | None]:
    """The mean of all steps in ns, and its 95 % interval by the scatter of the means of single jobs.

    ``tables`` are the steps of each job. There is no interval (None) for one job, or unless ``is_told``.
    """
    center = float(np.concatenate(tables).mean())
    if len(tables) < 2 or not is_told:
        return round(center), None, None
    means = np.array([table.mean() for table in tables])
    half = student(len(means) - 1) * float(means.std(ddof=1)) / len(means) ** 0.5
    return round(center), round(center - half), round(center + half)


def enough_stalls(ranks: Ranks, jobs: Sequence[JobSteps]) -> bool:
    """Whether enough steps had a stall for the scatter of jobs to tell how uncertain their mean is."""
    return not ranks.stall_probability or sum(job.stalled for job in jobs) >= _FEWEST_STALLS


def summarise(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    step: VariedStep,
    jobs: Sequence[JobSteps],
    seed: int,
) -> StepDistribution:
    """The distribution of these jobs' steps, beside the step of ranks that are all alike."""
    crew, world_size = step.crew, len(step.crew)
    sent = [one for program in step.programs for one in program.collectives]
    every = np.concatenate([job.steps_ns for job in jobs])
    mean, low, high = interval([job.steps_ns for job in jobs], enough_stalls(crew.ranks, jobs))
    quantiles = np.quantile(every, np.linspace(0, 1, 101)).round().astype(np.int64).tolist()
    nominal = simulated_step_ns(workload, hardware, assignment)
    return StepDistribution(
        workload=workload.name,
        hardware=hardware.name,
        ranks=crew.ranks.name,
        policy=assignment.policy,
        bucket_count=len(assignment.bucket_indices),
        world_size=world_size,
        samples=len(every),
        jobs=len(jobs),
        seed=seed,
        mean_step_ns=mean,
        mean_low_ns=low,
        mean_high_ns=high,
        p5_step_ns=quantiles[5],
        median_step_ns=quantiles[50],
        p95_step_ns=quantiles[95],
        p99_step_ns=quantiles[99],
        quantiles_ns=tuple(quantiles),
        nominal_step_ns=nominal,
        slowest_cost_ns=mean - nominal,
        waited_ns=round(sum(float(job.rank_waited_ns.sum()) for job in jobs) / (len(every) * world_size)),
        parts=_parts(crew, jobs, max(1, len(every) * step.sent)),
        not_known=(*crew.not_known, *(step.scatter.not_known if world_size > 1 else ())),
        notes=(
            *_notes(crew, jobs),
            *rests_on(hardware, (one.num_bytes for one in sent if one.kind == "all_reduce")),
            *notes_of(workload, hardware, (note for program in step.programs for note in program.notes)),
        ),
        provenance={"source": "sim.step_distribution", "workload": workload.name, "hardware": hardware.name},
    )


def _parts(crew: Crew, jobs: Sequence[JobSteps], collectives: int) -> tuple[RankPart, ...]:
    """What was named in ``ranks``, range by range, cut where ranges overlap, and all other ranks as one."""
    steps = sum(len(job.steps_ns) for job in jobs)
    waited = np.sum([job.rank_waited_ns for job in jobs], axis=0) / steps
    last = np.sum([job.rank_last for job in jobs], axis=0)
    paces = np.sum([job.rank_paces for job in jobs], axis=0) / steps

    def part(name: str, ranks: Ints) -> RankPart:
        return RankPart(
            name=name,
            first=int(ranks[0]),
            count=len(ranks),
            pace=float(paces[ranks].mean()),
            last_share=float(last[ranks].sum() / collectives),
            waited_ns=round(float(waited[ranks].mean())),
        )

    named = crew.ranks.slow
    edges = sorted({0, len(crew), *(one.first for one in named), *(one.first + one.count for one in named)})
    parts, rest = [], []
    for first, stop in pairwise(edges):
        if any(one.first <= first < one.first + one.count for one in named):
            pace = format_number(crew.paces[first], 6)
            parts.append(part(f"slow, pace {pace}", np.arange(first, stop)))
        else:
            rest.append(np.arange(first, stop))
    if rest:
        parts.append(part("all others" if parts else "all", np.concatenate(rest)))
    return tuple(parts)


def _notes(crew: Crew, jobs: Sequence[JobSteps]) -> tuple[str, ...]:
    notes = list(crew.notes)
    if len(jobs) == 1:
        notes.append("one job of steps: no interval; raise samples")
    if not enough_stalls(crew.ranks, jobs):
        notes.append(
            f"{sum(job.stalled for job in jobs)} steps with a stall in all: too few for an interval; raise "
            f"samples until there are {_FEWEST_STALLS}"
        )
    return tuple(notes)
