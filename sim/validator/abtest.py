"""The user's own model under DDP's default and under a recommended assignment, in turns."""

from collections.abc import Sequence
from pathlib import Path

from sim.errors import InputError
from sim.formats.record_files import save_measurements
from sim.nouns.ab import AbTest
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Gain
from sim.nouns.workload import Workload
from sim.truth.turns import Turns, judge_turns
from sim.validator.candidates.candidate import Candidate
from sim.validator.candidates.carriers import Carrier
from sim.validator.candidates.replay_jobs import (
    MIN_WARMUP,
    MODEL_TIMEOUT_S,
    UserModel,
    check_rounds,
    model_job,
)
from sim.validator.candidates.replayable import check_replayable
from sim.validator.collecting import Collected, Progress
from sim.validator.hosts.launch import Place, run_ranks

_DEFAULT, _RECOMMENDED = "DDP default", "recommended"


def run_ab(
    model: UserModel,
    recommended: Assignment,
    place: Place,
    *,
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
    warmup = MIN_WARMUP[model.device] if warmup is None else warmup
    check_rounds(rounds, warmup, model.device)
    if samples_per_rank is not None and samples_per_rank < 1:
        raise InputError(f"samples: {samples_per_rank} is not legal; give at least 1")
    candidates = [
        Candidate(name=_DEFAULT, assignment=None),
        Candidate(name=_RECOMMENDED, assignment=recommended),
    ]
    if workload is not None:
        check_replayable(workload, candidates, "model", Carrier(device=model.device))
    job = model_job(model, candidates, rounds, warmup, seed, workload=workload, probed=False)
    collected = Collected(candidates, lanes=3, rounds=rounds, warmup=warmup, progress=progress)
    complete = False
    try:
        run_ranks(place, job, collected.take, MODEL_TIMEOUT_S)
        complete = True
    finally:
        measurements = collected.measurements(place, "model", model.backend, complete)
        if directory is not None:
            save_measurements(directory, measurements)
    return judge_turns(
        Turns(
            default=_steps(measurements, _DEFAULT),
            recommended=_steps(measurements, _RECOMMENDED),
            plain=_steps(measurements, "plain"),
        ),
        name=model.factory,
        world_size=place.world_size,
        samples_per_rank=samples_per_rank or collected.about_model.get("samples"),
        predicted=predicted,
        environment=measurements[0].environment,
        hours="rank-hours" if model.device == "cpu" else "GPU-hours",
    )


def _steps(measurements: Sequence[Measurement], name: str) -> list[int]:
    found = next(measurement for measurement in measurements if measurement.name == name)
    return [iteration.step_ns for iteration in found.iterations]
