"""The folder of a job whose ranks somebody else starts: its job file, and what the ranks left in it."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sim.errors import InputError, ReplayError
from sim.formats.documents import json_text, parse_json
from sim.formats.files import read_bytes, write_atomically
from sim.validator.launch import EVENTS, FAILED, Place, events_in, named

JOB = "job.json"


def write_job(directory: Path, job: dict[str, Any], world_size: int) -> Path:
    """Write the job file of ``world_size`` ranks; returns its path.

    It holds no path, so the directory may lie elsewhere on every host; rank 0's copy is the one that the
    events are written to.
    """
    write_atomically(directory / JOB, json_text({**job, "world_size": world_size}))
    return directory / JOB


def commands(job_file: Path, job: dict[str, Any]) -> tuple[str, str]:
    """How to run a prepared job: by torchrun (on each host) and by srun.

    Where ranks need a GPU each SLURM has to give them, all of a host's to each of its ranks: over GPUs that
    ranks cannot see NCCL takes another way than in training.
    """
    worker = f"-m sim.validator.worker {shlex.quote(str(job_file))}"
    ranks = f"--ntasks {job['world_size']}"
    if job.get("device") == "cuda":
        ranks = f"{ranks} --nodes HOSTS --ntasks-per-node RANKS_PER_HOST --gpus-per-node RANKS_PER_HOST"
    return (
        "torchrun --nnodes HOSTS --nproc-per-node RANKS_PER_HOST --node-rank K --master-addr HOST0 "
        f"--master-port 29500 {worker}",
        f"srun {ranks} python {worker}",
    )


def read_job(directory: Path) -> dict[str, Any]:
    """The job of a folder. Raises ``InputError`` where there is none."""
    path = directory / JOB
    if not path.is_file():
        raise InputError(
            f"{directory}: no {JOB} in it; give the directory of bucketsim validate or calibrate --prepare"
        )
    job = parse_json(read_bytes(path), str(path))
    if not isinstance(job, dict) or not {"task", "world_size"} <= job.keys():
        raise InputError(f"{path}: no job; give the directory of bucketsim validate or calibrate --prepare")
    return job


def events(directory: Path, job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What rank 0 wrote while it ran ``job``.

    Raises:
        InputError: the job has not been run, or by another number of ranks.
        ReplayError: the ranks failed before they could begin.
    """
    path = directory / EVENTS
    if not path.exists():
        if failure := _failure(directory):
            raise ReplayError(f"{directory}: {failure}; nothing was measured")
        raise InputError(
            f"{directory}: no {EVENTS} in it; run the job first: {commands(directory / JOB, job)[0]}"
        )
    with open(path, "rb") as stream:
        for event in events_in(stream):
            if event["event"] == "started" and len(event["hosts"]) != job["world_size"]:
                raise InputError(
                    f"{path}: written by {len(event['hosts'])} ranks, but {directory / JOB} is for "
                    f"{job['world_size']}; run the job again"
                )
            yield event


def why_unfinished(directory: Path) -> str:
    """Who failed and why, as the ranks left it; else that the run has not finished."""
    return _failure(directory) or "the run has not finished"


def place_of(job: dict[str, Any], started: dict[str, Any]) -> Place:
    """Where the ranks ran, by the event that they started with."""
    hosts = Counter(started.get("hosts", ()))
    said = ", ".join(f"{name} x {count}" for name, count in sorted(hosts.items()))
    launcher = started.get("launcher", "an unknown launcher")
    return Place(ranks=job["world_size"], spread=f"by {launcher} on {said or 'unknown hosts'}")


def _failure(directory: Path) -> str | None:
    told = [parse_json(read_bytes(path), str(path)) for path in directory.glob(FAILED.format("*"))]
    return named(sorted(told, key=lambda one: one["at"]))
