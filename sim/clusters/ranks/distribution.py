"""How long steps are over many draws of a job's ranks, and what a bucket assignment makes of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar

from sim.clusters.ranks.rank_files import Ranks
from sim.clusters.ranks.summary import StepDistribution
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

if TYPE_CHECKING:
    from sim.clusters.ranks.crew import Crew
    from sim.clusters.ranks.step_chain import JobSteps

MOST_SAMPLES = 1_000_000
_MOST_JOBS = 20
_FEWEST_STEPS = 10  # in a job, so that the one that is not counted is no great loss
_MOST_LOTTERIES = 1000  # jobs, if a rank draws a pace once a job: more steps of one job then say little
_STEPS_OF_A_LOTTERY = 2
_MOST_RANKS = 1 << 23  # of all jobs together: what is kept of them takes 192 MiB


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


def step_distribution(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    ranks: Ranks,
    *,
    samples: int = 1000,
    seed: int = 0,
    others: Mapping[str, Workload] | None = None,
) -> StepDistribution:
    """``samples`` steps of ``hardware.world_size`` ranks that differ as ``ranks`` says, from ``seed``.

    ``others`` are the workloads that ``ranks.groups`` name. Raises as ``compare_assignments``.
    """
    from sim.clusters.ranks.step_chain import (  # compiled code; only what plays ranks waits for that
        VariedStep,
        play_jobs,
    )
    from sim.clusters.ranks.summary import summarise

    crew = _prepare(workload, hardware, ranks, samples, seed, others)
    step = VariedStep(crew, hardware, assignment)
    jobs = play_jobs(step, seed, _steps(samples, crew))
    return summarise(workload, hardware, assignment, step, jobs, seed)


def compare_assignments(
    workload: Workload,
    hardware: Hardware,
    assignments: Mapping[str, Assignment],
    ranks: Ranks,
    *,
    samples: int = 1000,
    seed: int = 0,
    others: Mapping[str, Workload] | None = None,
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
        others: the workloads that ``ranks.groups`` name.
        progress: called now and then with how many steps are played, and how many there are.

    Raises:
        InputError: an argument that is not legal, ranks that there are not, workloads of other models.
        NotModelledError: ranks that wait for each other for ever, or too many for collectives that follow
            one another.
    """
    from sim.clusters.ranks.step_chain import VariedStep, play_jobs
    from sim.clusters.ranks.summary import enough_stalls, interval, summarise

    if not assignments:
        raise InputError("assignments: none is not legal; give at least one")
    crew = _prepare(workload, hardware, ranks, samples, seed, others)
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


def _prepare(
    workload: Workload,
    hardware: Hardware,
    ranks: Ranks,
    samples: int,
    seed: int,
    others: Mapping[str, Workload] | None,
) -> "Crew":
    from sim.clusters.ranks.crew import make_crew

    if not 1 <= samples <= MOST_SAMPLES:
        raise InputError(f"samples: {samples} is not legal; give 1 to {MOST_SAMPLES:,}")
    if seed < 0:
        raise InputError(f"seed: {seed} is not legal; give an integer >= 0")
    return make_crew(workload, hardware.world_size, ranks, others or {})


def _steps(samples: int, crew: "Crew") -> list[int]:
    """Steps of each job: up to 20 jobs, of at least ten steps each where there are so many; many short jobs
    where ranks draw a pace once a job."""
    jobs = min(_MOST_JOBS, samples // _FEWEST_STEPS)
    if crew.ranks.pace_spread:
        most = max(_MOST_JOBS, min(_MOST_LOTTERIES, _MOST_RANKS // len(crew)))
        jobs = min(most, samples // _STEPS_OF_A_LOTTERY)
    jobs = max(1, jobs)
    return [samples // jobs + (number < samples % jobs) for number in range(jobs)]
