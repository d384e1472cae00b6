"""A calibration whose ranks somebody else starts, on real hosts: its job first, its Hardware afterwards."""

from pathlib import Path
from typing import Any

from sim.errors import InputError, ReplayError
from sim.formats.files import make_directory
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Mode
from sim.units import MIB
from sim.validator.calibrate import BUDGET_S, CalibrationStory, calibration_job
from sim.validator.candidates.carriers import GLOO_ON_HOST, Carrier
from sim.validator.prepared import JOB, events, place_of, read_job, why_unfinished, write_job
from sim.validator.ranks.probes.settling import FEWEST_ROUNDS

TASK = "calibrate"


def prepare_calibration(
    directory: Path,
    world_size: int,
    *,
    largest: int = 256 * MIB,
    rounds: int = FEWEST_ROUNDS,
    budget_s: float = BUDGET_S,
    mode: Mode = "paced",
    carrier: Carrier = GLOO_ON_HOST,
) -> Path:
    """Write the job of ``world_size`` ranks into ``directory``, which is made; returns the job's path.

    They measure what ``calibrate`` measures on local ranks. ``largest`` is the largest message in bytes.

    Raises:
        InputError: fewer than two ranks, an illegal argument, or a directory that holds a job already.
    """
    job = calibration_job(
        world_size, largest=largest, rounds=rounds, budget_s=budget_s, mode=mode, carrier=carrier
    )
    make_directory(directory)
    if (directory / JOB).exists():
        raise InputError(f"{directory}: holds a job already; give a new or empty directory")
    return write_job(directory, job, world_size)


def gather_calibration(directory: Path) -> Hardware:
    """The Hardware that the ranks of a prepared calibration measured.

    Raises:
        InputError: no job or no events there, or those of another number of ranks.
        ReplayError: a rank failed (named), or the run has not finished.
    """
    job = read_job(directory)
    told = CalibrationStory(job)
    last: dict[str, dict[str, Any]] = {}
    for event in events(directory, job):
        told.take(event)
        last[event["event"]] = event
    if "finished" not in last:
        raise ReplayError(f"{directory}: {why_unfinished(directory)}{_how_far(last)}; no hardware is written")
    return told.hardware(place_of(job, last["started"]))


def is_calibration(directory: Path) -> bool:
    """Whether ``directory`` holds a job that measures a machine."""
    return (directory / JOB).is_file() and read_job(directory)["task"] == TASK


def _how_far(last: dict[str, dict[str, Any]]) -> str:
    if "progress" not in last:
        return ""
    at = last["progress"]
    return f" (at {at['what']}, {at['done']} of {at['total']} parts done)"
