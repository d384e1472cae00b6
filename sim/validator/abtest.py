"""The user's own model under DDP's default and under a recommended assignment, in turns."""

from pathlib import Path

from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Gain
from sim.nouns.workload import Workload
from sim.truth.turns import AbTest, Turns, judge_turns
from sim.validator.jobs import GLOO_ON_HOST, JOB, Candidate, Carrier, ReplayJob, UserModel, read_job
from sim.validator.launch import Place
from sim.validator.replay import Progress, gather_record, replay

_DEFAULT, _RECOMMENDED = "DDP default", "recommended"


def ab_job(
    model: UserModel,
    recommended: Assignment,
    *,
    carrier: Carrier = GLOO_ON_HOST,
    workload: Workload | None = None,
    rounds: int = 30,
    seed: int = 0,
    samples_per_rank: int | None = None,
) -> ReplayJob:
    """Both in every round, in a shuffled order, with the model without DDP as a third.

    Args:
        model: the user's.
        recommended: must fit the model; with ``workload`` that is checked before any rank starts.
        carrier: on what device, and what sums up the buckets.
        workload: what the model's parameters must match.
        rounds: how often each is measured.
        seed: of the model, and of the order within rounds.
        samples_per_rank: of one step; default the leading dimension of the batch's first tensor.

    Raises:
        InputError: an illegal argument.
    """
    return ReplayJob(
        candidates=(Candidate(name=_DEFAULT), Candidate(name=_RECOMMENDED, assignment=recommended)),
        workload=workload,
        model=model,
        carrier=carrier,
        rounds=rounds,
        seed=seed,
        probed=False,
        is_ab=True,
        samples_per_rank=samples_per_rank,
    )


def run_ab(
    job: ReplayJob,
    place: Place,
    *,
    directory: Path | None = None,
    predicted: Gain | None = None,
    progress: Progress | None = None,
) -> AbTest:
    """Run a job of ``ab_job``; ``replay`` says what ``directory`` and ``progress`` are, and what is raised.

    ``predicted`` is the simulator's gain, to be written down beside the measured one.
    """
    return _judged(job, replay(job, place, directory, progress=progress), predicted)


def is_ab(directory: Path) -> bool:
    """Whether an A/B test was prepared there."""
    return (directory / JOB).is_file() and bool(getattr(read_job(directory / JOB)[0], "is_ab", False))


def recommended_in(directory: Path) -> Assignment:
    """What a prepared test compares with DDP's default."""
    found: Assignment | None = read_job(directory / JOB)[0].candidates[1].assignment
    if found is None:
        raise InputError(f"{directory}: no A/B test was prepared there")
    return found


def gather_ab(directory: Path, predicted: Gain | None = None) -> AbTest:
    """What the ranks of a prepared test measured; the measurements are written beside.

    Raises:
        InputError: no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    measurements = gather_record(directory)
    return _judged(read_job(directory / JOB)[0], measurements, predicted)


def _judged(job: ReplayJob, measurements: list[Measurement], predicted: Gain | None) -> AbTest:
    steps = {one.name: [each.step_ns for each in one.iterations] for one in measurements}
    one = measurements[0]
    about = one.environment["model"]
    return judge_turns(
        Turns(default=steps[_DEFAULT], recommended=steps[_RECOMMENDED], plain=steps["plain"]),
        name=about["factory"],
        world_size=one.world_size,
        samples_per_rank=job.samples_per_rank or about.get("samples"),
        predicted=predicted,
        environment=one.environment,
        hours="rank-hours" if about["device"] == "cpu" else "GPU-hours",
    )
