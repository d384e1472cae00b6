"""Ranks that somebody else starts, on one host or many: the job is written first, and gathered afterwards."""

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sim.errors import InputError, ReplayError
from sim.formats.documents import json_text, load, parse_json, to_text
from sim.formats.outputs import write_files
from sim.formats.records import save_measurement
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.validator.candidates import Candidate, lane_count
from sim.validator.carriers import EMULATED, GLOO_ON_HOST, Carrier
from sim.validator.collecting import Collected
from sim.validator.jobs import UserModel, replay_job
from sim.validator.launch import Place
from sim.validator.ranks import notices
from sim.validator.ranks.beats import Fault
from sim.validator.watch import EventFile, in_words

JOB = "job.json"


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
) -> Path:
    """Write job.json and the candidates' assignments into a started record; returns the job's path.

    The job holds no path, so the directory may lie elsewhere on every host; rank 0's copy is the one that
    the events are written to.

    Raises:
        NotModelledError: a candidate that cannot be run. InputError: illegal rounds.
    """
    job = replay_job(
        workload, candidates, model=model, carrier=carrier, rounds=rounds, warmup=None, seed=seed
    )
    texts = {
        directory / _assignment_file(number): to_text(candidate.assignment)
        for number, candidate in enumerate(candidates)
        if candidate.assignment is not None
    }
    write_files({**texts, directory / JOB: json_text({**job, "world_size": world_size})})
    return directory / JOB


def commands(job_file: Path, world_size: int) -> tuple[str, str]:
    """How to run a prepared job: by torchrun (on each host) and by srun."""
    worker = f"-m sim.validator.worker {shlex.quote(str(job_file))}"
    return (
        "torchrun --nnodes HOSTS --nproc-per-node RANKS_PER_HOST --node-rank K --master-addr HOST0 "
        f"--master-port 29500 {worker}",
        f"srun --ntasks {world_size} python {worker}",
    )


def gather_record(directory: Path) -> None:
    """Turn what the ranks of a prepared job wrote into the record's measurements.

    Measurements of a run that failed or has not finished are written too, marked incomplete.

    Raises:
        InputError: no job or no events there.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    if not (directory / JOB).is_file():
        raise InputError(f"{directory}: no {JOB} in it; give the directory of bucketsim validate --prepare")
    job = parse_json((directory / JOB).read_bytes(), str(directory / JOB))
    if not (directory / notices.EVENTS).exists():
        raise InputError(
            f"{directory}: no {notices.EVENTS} in it; run the job first: "
            f"{commands(directory / JOB, job['world_size'])[0]}"
        )
    candidates = [
        Candidate(name=one["name"], assignment=_assignment(directory, number))
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
        for event in EventFile(directory / notices.EVENTS).fresh():
            collected.take(event)
            started = event if event["event"] == "started" else started
            complete = complete or event["event"] == "finished"
    finally:
        place = Place(ranks=job["world_size"], spread=_where(started))
        measurements = collected.measurements(place, job["mode"], _backend(job), complete)
        for number, measurement in enumerate(measurements):
            save_measurement(directory, number, measurement)
    if not complete:
        kept = "what was measured is kept, incomplete" if measurements else "nothing was measured"
        raise ReplayError(f"{directory}: {_why(directory)}; {kept}")


def _backend(job: dict[str, Any]) -> str:
    if job.get("link") is not None:
        return EMULATED
    return "nccl" if "nccl" in job["backend"] else "gloo"


def _why(directory: Path) -> str:
    for rank, reason in notices.failures(directory).items():
        return in_words(Fault(ranks=(rank,), reason=reason))
    for rank, reason in notices.left_alone(directory).items():
        return f"rank {rank} lost touch with the others: {reason}"
    return "the run has not finished"


def _where(started: dict[str, Any]) -> str:
    hosts = Counter(started.get("hosts", ()))
    said = ", ".join(f"{name} x {count}" for name, count in sorted(hosts.items()))
    return f"by {started.get('launcher', 'an unknown launcher')} on {said or 'unknown hosts'}"


def _assignment_file(number: int) -> str:
    return f"assignment-{number:02d}.json"


def _assignment(directory: Path, number: int) -> Assignment | None:
    path = directory / _assignment_file(number)
    return load(path, Assignment) if path.exists() else None
