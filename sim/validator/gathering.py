"""Ranks that somebody else starts, on one host or many: the job is written first, and gathered afterwards."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.errors import ReplayError
from sim.formats.documents import load, to_text
from sim.formats.files import write_files
from sim.formats.record_files import save_measurements
from sim.nouns.assignment import Assignment
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from sim.validator.candidates.candidate import Candidate, lane_count
from sim.validator.candidates.carriers import EMULATED, GLOO_ON_HOST, Carrier
from sim.validator.candidates.replay_jobs import UserModel, replay_job
from sim.validator.collecting import Collected
from sim.validator.prepared import events, place_of, read_job, why_unfinished, write_job


def prepare(
    workload: Workload,
    candidates: Sequence[Candidate],
    directory: Path,
    world_size: int,
    *,
    model: UserModel | None = None,
    carrier: Carrier = GLOO_ON_HOST,
    rounds: int = 10,
    seed: int = 0,
    probed: bool = True,
) -> Path:
    """Write job.json and the candidates' assignments into a started record; returns the job's path.

    ``probed`` as of ``replay``.

    Raises:
        NotModelledError: a candidate that cannot be run. InputError: illegal rounds.
    """
    job = replay_job(
        workload,
        candidates,
        model=model,
        carrier=carrier,
        rounds=rounds,
        warmup=None,
        seed=seed,
        probed=probed,
    )
    return write_prepared(directory, candidates, job, world_size)


def write_prepared(
    directory: Path, candidates: Sequence[Candidate], job: dict[str, Any], world_size: int
) -> Path:
    """Write the job, and beside it what ``gather_record`` needs of the candidates; returns the job's path."""
    write_files(
        {
            directory / _assignment_file(number): to_text(candidate.assignment)
            for number, candidate in enumerate(candidates)
            if candidate.assignment is not None
        }
    )
    return write_job(directory, job, world_size)


def gather_record(directory: Path) -> list[Measurement]:
    """Turn what the ranks of a prepared job wrote into the record's measurements, which are returned as well.

    Measurements of a run that failed or has not finished are written too, marked incomplete.

    Raises:
        InputError: no job or no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    job = read_job(directory)
    candidates = [
        Candidate(name=one["name"], assignment=prepared_assignment(directory, number))
        for number, one in enumerate(job["candidates"])
    ]
    collected = Collected(
        candidates,
        lanes=lane_count(candidates),
        rounds=job["rounds"],
        warmup=job["warmup"],
        progress=None,
    )
    started: dict[str, Any] = {}
    complete = False
    try:
        for event in events(directory, job):
            collected.take(event)
            started = event if event["event"] == "started" else started
            complete = complete or event["event"] == "finished"
    finally:
        measurements = collected.measurements(place_of(job, started), job["mode"], _backend(job), complete)
        save_measurements(directory, measurements)
    if not complete:
        kept = "what was measured is kept, incomplete" if measurements else "nothing was measured"
        raise ReplayError(f"{directory}: {why_unfinished(directory)}; {kept}")
    return measurements


def _backend(job: dict[str, Any]) -> str:
    if job.get("link") is not None:
        return EMULATED
    return "nccl" if "nccl" in job["backend"] else "gloo"


def _assignment_file(number: int) -> str:
    return f"assignment-{number:02d}.json"


def prepared_assignment(directory: Path, number: int) -> Assignment | None:
    """The assignment of a candidate of a prepared job; None for DDP's own buckets."""
    path = directory / _assignment_file(number)
    return load(path, Assignment) if path.exists() else None
