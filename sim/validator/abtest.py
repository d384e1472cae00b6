"""The user's own model under DDP's default and under a recommended assignment, in turns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.errors import InputError
from sim.formats.record_files import save_measurements
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Gain
from sim.nouns.workload import Workload
from sim.truth.turns import AbTest, Turns, judge_turns
from sim.validator.candidates.candidate import Candidate, check_replayable
from sim.validator.candidates.carriers import GLOO_ON_HOST, Carrier
from sim.validator.candidates.replay_jobs import (
    MIN_WARMUP,
    UserModel,
    check_rounds,
    model_job,
)
from sim.validator.collecting import Collected, Progress
from sim.validator.gathering import gather_record, prepared_assignment, write_prepared
from sim.validator.launch import Place, run_ranks
from sim.validator.prepared import JOB, read_job

_DEFAULT, _RECOMMENDED = "DDP default", "recommended"


def run_ab(
    model: UserModel,
    recommended: Assignment,
    place: Place,
    *,
    carrier: Carrier = GLOO_ON_HOST,
    workload: Workload | None = None,
    directory: Path | None = None,
    rounds: int = 30,
    warmup: int | None = None,
    seed: int = 0,
    samples_per_rank: int | None = None,
    predicted: Gain | None = None,
    progress: Progress | None = None,
) -> AbTest:
    """Run both in every round, in a shuffled order, with the model without DDP as a third.

    Args:
        model: the user's.
        recommended: must fit the model; with ``workload`` that is checked before any rank starts.
        place: where the ranks run.
        carrier: on what device, and what sums up the buckets.
        workload: what the model's parameters must match.
        directory: keeps the measurements, after a failure or Ctrl-C those that there are.
        rounds: how often each is measured.
        warmup: rounds that are dropped; default as DDP needs it.
        seed: of the model, and of the order within rounds.
        samples_per_rank: of one step; default the leading dimension of the batch's first tensor.
        predicted: the simulator's, to be written down beside the measured one.
        progress: told after every step.

    Raises:
        ReplayError: a rank failed, or DDP did not use the buckets asked for.
        InputError: an assignment that does not fit, or an illegal argument.
    """
    warmup = MIN_WARMUP[carrier.device] if warmup is None else warmup
    _check_samples(samples_per_rank)
    candidates, job = _ordered(model, recommended, rounds, warmup, seed, carrier, workload)
    collected = Collected(candidates, lanes=3, rounds=rounds, warmup=warmup, progress=progress)
    complete = False
    try:
        run_ranks(place, job, collected.take)
        complete = True
    finally:
        measurements = collected.measurements(place, "model", carrier.name, complete)
        if directory is not None:
            save_measurements(directory, measurements)
    return _judged(measurements, samples_per_rank, predicted)


def prepare_ab(
    model: UserModel,
    recommended: Assignment,
    directory: Path,
    world_size: int,
    *,
    carrier: Carrier = GLOO_ON_HOST,
    workload: Workload | None = None,
    rounds: int = 30,
    seed: int = 0,
    samples_per_rank: int | None = None,
) -> Path:
    """Write the job of ``run_ab`` for ranks that torchrun or srun starts; returns its path.

    Raises:
        InputError: as ``run_ab``.
    """
    _check_samples(samples_per_rank)
    warmup = MIN_WARMUP[carrier.device]
    candidates, job = _ordered(model, recommended, rounds, warmup, seed, carrier, workload)
    job["ab"] = {"samples_per_rank": samples_per_rank}
    return write_prepared(directory, candidates, job, world_size)


def is_ab(directory: Path) -> bool:
    """Whether ``prepare_ab`` wrote what is there."""
    return (directory / JOB).is_file() and "ab" in read_job(directory)


def recommended_in(directory: Path) -> Assignment:
    """What a prepared test compares with DDP's default."""
    found = prepared_assignment(directory, 1)
    if found is None:
        raise InputError(f"{directory}: the assignment of the test is gone; prepare it again")
    return found


def gather_ab(directory: Path, predicted: Gain | None = None) -> AbTest:
    """What the ranks of a prepared test measured; the measurements are written beside.

    Raises:
        InputError: no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    measurements = gather_record(directory)
    return _judged(measurements, read_job(directory)["ab"]["samples_per_rank"], predicted)


def _ordered(
    model: UserModel,
    recommended: Assignment,
    rounds: int,
    warmup: int,
    seed: int,
    carrier: Carrier,
    workload: Workload | None,
) -> tuple[list[Candidate], dict[str, Any]]:
    """The candidates and the job of the ranks."""
    check_rounds(rounds, warmup, carrier.device)
    candidates = [
        Candidate(name=_DEFAULT, assignment=None),
        Candidate(name=_RECOMMENDED, assignment=recommended),
    ]
    if workload is not None:
        check_replayable(workload, candidates, "model", carrier)
    return candidates, model_job(
        model, candidates, rounds, warmup, seed, carrier, workload=workload, probed=False
    )


def _check_samples(samples_per_rank: int | None) -> None:
    if samples_per_rank is not None and samples_per_rank < 1:
        raise InputError(f"samples: {samples_per_rank} is not legal; give at least 1")


def _judged(
    measurements: Sequence[Measurement], samples_per_rank: int | None, predicted: Gain | None
) -> AbTest:
    one = measurements[0]
    about = one.environment["model"]
    return judge_turns(
        Turns(
            default=_steps(measurements, _DEFAULT),
            recommended=_steps(measurements, _RECOMMENDED),
            plain=_steps(measurements, "plain"),
        ),
        name=about["factory"],
        world_size=one.world_size,
        samples_per_rank=samples_per_rank or about.get("samples"),
        predicted=predicted,
        environment=one.environment,
        hours="rank-hours" if about["device"] == "cpu" else "GPU-hours",
    )


def _steps(measurements: Sequence[Measurement], name: str) -> list[int]:
    found = next(measurement for measurement in measurements if measurement.name == name)
    return [iteration.step_ns for iteration in found.iterations]
