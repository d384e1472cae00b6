"""What drawn jobs say: the distribution of their steps, what the slowest rank costs, and which it is."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.clusters.ranks.crew import Crew, make_crew
from sim.clusters.ranks.rank_files import RankGroup, Ranks, SlowRanks
from sim.clusters.ranks.step_chain import JobSteps, VariedStep, play_even
from sim.costs.doubts import doubts_about
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.draws import NO_SCATTER
from sim.tuner.gain import student
from sim.units import format_number

_WORST = 5
_FEWEST_STALLS = 20  # a Poisson number of 20 has a standard deviation of less than a quarter of it
_QUANTILES = np.linspace(0, 1, 101)


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
class CollectiveWait:
    """One collective of a step: its ``bucket`` (None where it carries none) and how ranks waited there.

    ``waited_ns`` is the mean over ranks and steps, ``longest_ns`` the mean over steps of how long the first
    to come waited. ``straggler_share`` is in how many steps any rank waited: in the others all came together,
    such as where the channel was busy until all had launched it.
    """

    bucket: int | None
    num_bytes: int
    waited_ns: int
    longest_ns: int
    straggler_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDistribution:
    """Steps of a job of ``world_size`` ranks under one assignment; times in ns, intervals at 95 %.

    A step is from where the last rank has ended one to where the last has ended the next. ``samples`` steps
    in ``jobs`` chains, each of which drew its ranks anew; None for an interval of fewer than two jobs, or of
    so few stalls that how jobs scatter does not tell it. Intervals leave out how few iterations were
    recorded. ``quantiles_ns`` has 101: from the shortest step to the longest.

    ``nominal_step_ns`` is the step if every rank were the workload as it is, ``slowest_cost_ns`` what the
    mean step is longer. ``even_step_ns`` and ``imbalance_cost_ns`` are the same if each rank computed, before
    backward, in it and in the optimizer, what all ranks did in the mean of all steps, stalls included: the
    same work, evenly spread. ``mean_pace`` is all that over what the workload computes. ``waited_ns`` is how
    long a rank's collectives waited for the last rank in a step, in the mean.
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
    mean_pace: float
    even_step_ns: int
    imbalance_cost_ns: int
    waited_ns: int
    parts: tuple[RankPart, ...] = ()
    worst: tuple[RankPart, ...] = ()
    collectives: tuple[CollectiveWait, ...] = ()
    not_known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


def interval(tables: Sequence[NDArray[np.int64]], is_told: bool) -> tuple[int, int | None, int | None]:
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
    every = np.concatenate([job.steps_ns for job in jobs])
    mean, low, high = interval([job.steps_ns for job in jobs], enough_stalls(crew.ranks, jobs))
    quantiles = np.quantile(every, _QUANTILES).round().astype(np.int64).tolist()
    one = make_crew(replace(workload, samples=()), 1, Ranks(name="alike"), {})
    alike = VariedStep(one, hardware, assignment)
    own = np.sum([works[0] for works in alike.works_ns], axis=0).astype(np.float64)
    computed = np.sum([job.computed_ns for job in jobs], axis=0) / (len(every) * world_size)
    pace = float(computed.sum() / own.sum()) if own.any() else 1.0
    nominal, even = play_even(alike, own), play_even(alike, computed)
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
        mean_pace=pace,
        even_step_ns=even,
        imbalance_cost_ns=mean - even,
        waited_ns=round(sum(float(job.rank_waited_ns.sum()) for job in jobs) / (len(every) * world_size)),
        parts=_parts(crew, jobs),
        worst=_worst(jobs),
        collectives=_collectives(step, jobs),
        not_known=_not_known(step, hardware),
        notes=(*_notes(crew, step, jobs), *doubts_about(workload, hardware)),
        provenance={"source": "sim.step_distribution", "workload": workload.name, "hardware": hardware.name},
    )


class _Sums:
    """By rank, over the steps of all jobs: mean wait and pace of a step, and how often it came last."""

    def __init__(self, jobs: Sequence[JobSteps]) -> None:
        self.steps = sum(len(job.steps_ns) for job in jobs)
        self.waited = np.sum([job.rank_waited_ns for job in jobs], axis=0) / self.steps
        self.last = np.sum([job.rank_last for job in jobs], axis=0)
        self.paces = np.sum([job.rank_paces for job in jobs], axis=0) / self.steps
        self.collectives = max(1, self.steps * len(jobs[0].stragglers))

    def part(self, name: str, ranks: NDArray[np.int64]) -> RankPart:
        return RankPart(
            name=name,
            first=int(ranks[0]),
            count=len(ranks),
            pace=float(self.paces[ranks].mean()),
            last_share=float(self.last[ranks].sum() / self.collectives),
            waited_ns=round(float(self.waited[ranks].mean())),
        )


def _parts(crew: Crew, jobs: Sequence[JobSteps]) -> tuple[RankPart, ...]:
    """What was named in ``ranks``, range by range, cut where ranges overlap, and all other ranks as one."""
    sums, ranks = _Sums(jobs), crew.ranks
    named: list[SlowRanks | RankGroup] = [*ranks.slow, *ranks.groups]
    edges = sorted({0, len(crew), *(one.first for one in named), *(one.first + one.count for one in named)})
    parts, rest = [], []
    for first, stop in pairwise(edges):
        inside = [one for one in named if one.first <= first < one.first + one.count]
        if not inside:
            rest.append(np.arange(first, stop))
            continue
        words = [one.workload for one in inside if isinstance(one, RankGroup)]
        if any(isinstance(one, SlowRanks) for one in inside):
            words.append(f"slow, pace {format_number(crew.paces[first], 6)}")
        parts.append(sums.part(", ".join(words), np.arange(first, stop)))
    if rest:
        parts.append(sums.part("all others" if parts else "all", np.concatenate(rest)))
    return tuple(parts)


def _worst(jobs: Sequence[JobSteps]) -> tuple[RankPart, ...]:
    """The ranks that came last most often."""
    sums = _Sums(jobs)
    order = np.argsort(-sums.last, kind="stable")[:_WORST]
    return tuple(sums.part(f"rank {rank}", np.array([rank])) for rank in order if sums.last[rank])


def _collectives(step: VariedStep, jobs: Sequence[JobSteps]) -> tuple[CollectiveWait, ...]:
    steps, at, rows = sum(len(job.steps_ns) for job in jobs), 0, []
    ranks = len(step.crew)
    for lanes in step.batches:
        for one in lanes.programs[0].collectives[lanes.programs[0].of_backward]:
            rows.append(
                CollectiveWait(
                    bucket=one.bucket,
                    num_bytes=one.num_bytes,
                    waited_ns=round(sum(float(job.waited_ns[at]) for job in jobs) / (steps * ranks)),
                    longest_ns=round(sum(float(job.longest_ns[at]) for job in jobs) / steps),
                    straggler_share=sum(int(job.stragglers[at]) for job in jobs) / steps,
                )
            )
            at += 1
    return tuple(rows)


def _not_known(step: VariedStep, hardware: Hardware) -> tuple[str, ...]:
    missing, sizes = len(step.scatter.counts) - step.scatter.known, len(step.scatter.counts)
    unknown = list(step.crew.not_known)
    if missing and hardware.world_size > 1:
        unknown.append(NO_SCATTER + (f" at {missing} of {sizes} sizes" if step.scatter.known else ""))
    return tuple(unknown)


def _notes(crew: Crew, step: VariedStep, jobs: Sequence[JobSteps]) -> tuple[str, ...]:
    notes = list(crew.notes)
    around = [
        one
        for lanes in step.batches
        for program in lanes.programs[:1]
        for one in (*program.before, *program.after)
    ]
    if around and len(crew) > 1:
        notes.append(
            f"{len(around)} collective(s) before forward and after synchronisation: steps contain how long "
            f"ranks wait there, figures of waiting and of who came last do not"
        )
    if len(jobs) == 1:
        notes.append("one job of steps: no interval; raise samples")
    if not enough_stalls(crew.ranks, jobs):
        notes.append(
            f"{sum(job.stalled for job in jobs)} steps with a stall in all: too few for an interval; raise "
            f"samples until there are {_FEWEST_STALLS}"
        )
    return tuple(notes)
