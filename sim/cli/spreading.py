"""Ranks that torchrun or srun starts, on one host or many: --prepare before, gather after."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sim.cli.ab_testing import gather_ab_test
from sim.cli.judging import MaxError, check_threshold, judge
from sim.cli.measuring import tell_hardware
from sim.cli.options import AsJson, argument, option
from sim.cli.placing import tell_commands
from sim.formats.files import check_writable
from sim.formats.record_files import start_record
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

if TYPE_CHECKING:
    from sim.validator.candidates.candidate import Candidate
    from sim.validator.candidates.carriers import Carrier
    from sim.validator.candidates.replay_jobs import UserModel


def prepare_job(
    workload: Workload,
    hardware: Hardware,
    candidates: "list[Candidate]",
    output: Path,
    model: "UserModel | None",
    carrier: "Carrier",
    rounds: int,
    seed: int,
    probed: bool,
) -> None:
    """Write a record's inputs and its job, and say how to run it."""
    from sim.validator.gathering import prepare

    directory = start_record(output, workload, hardware)
    world_size = hardware.world_size
    job_file = prepare(
        workload,
        candidates,
        directory,
        world_size,
        model=model,
        carrier=carrier,
        rounds=rounds,
        seed=seed,
        probed=probed,
    )
    tell_commands(job_file, f"bucketsim gather {directory}")


def gather(
    directory: Path = argument(
        "What validate or calibrate --prepare wrote, after it ran.", "DIRECTORY", default=...
    ),
    output: Path | None = option(
        "Write the hardware that calibrate's ranks measured here.", "-o", "--output"
    ),
    max_error: MaxError = None,
    as_json: AsJson = False,
) -> None:
    """Read what ranks of torchrun or srun measured: a hardware file, or a scored record."""
    from sim.validator.abtest import is_ab
    from sim.validator.calibrate import gather_calibration, is_calibration
    from sim.validator.gathering import gather_record

    check_threshold(max_error)
    measures = is_calibration(directory)
    if measures != (output is not None):
        raise typer.BadParameter("--output: give it for what calibrate --prepare left, and only for that")
    if output is not None:
        if max_error is not None:
            raise typer.BadParameter("--max-error belongs to records; a calibration is compared with nothing")
        check_writable(output, "--output")
        tell_hardware(gather_calibration(directory), output, as_json)
        return
    if is_ab(directory):
        if max_error is not None:
            raise typer.BadParameter("--max-error belongs to records, not to an A/B")
        gather_ab_test(directory, as_json)
        return
    gather_record(directory)
    judge([directory], max_error, as_json)
