"""Ranks that torchrun or srun starts, on one host or many: validate --prepare before, gather after."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.judging import check_threshold, judge
from sim.cli.outputs import directory_option
from sim.cli.printing import emit, note
from sim.cli.simulating import AsJson
from sim.errors import ReplayError
from sim.formats.records import start_record
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

if TYPE_CHECKING:
    from sim.validator.candidates import Candidate
    from sim.validator.carriers import Carrier
    from sim.validator.jobs import UserModel


def prepare_job(
    workload: Workload,
    hardware: Hardware,
    candidates: "list[Candidate]",
    output: Path,
    model: "UserModel | None",
    carrier: "Carrier",
    rounds: int,
    seed: int,
) -> None:
    """Write a record's inputs and its job, and say how to run it: the commands on stdout."""
    from sim.validator.gathering import commands, prepare

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
    )
    note(f"wrote {job_file}; run one of these on {world_size} ranks, then: bucketsim gather {directory}")
    for line in commands(job_file, world_size):
        emit(line)


def gather(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", help="Of validate --prepare, run; or of make gpu-battery."),
    ],
    output: Annotated[Path | None, directory_option("Where a battery's records go; needed for one.")] = None,
    max_error: Annotated[
        float | None, typer.Option(help="Largest step error in percent; beyond it exit 3.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn what torchrun's or srun's ranks, or a GPU battery, measured into records, and judge them."""
    from sim.validator.gathering import gather_record
    from sim.validator.unpacking import is_battery, unpack_battery

    check_threshold(max_error)
    if is_battery(directory) != (output is not None):
        raise typer.BadParameter("--output goes with the output of make gpu-battery, and it with --output")
    if output is None:
        gather_record(directory)
        judge([directory], max_error, as_json)
        return
    records, missing = unpack_battery(directory, output)
    for line in missing:
        note(line)
    if not records:
        raise ReplayError(f"{directory}: nothing was measured")
    note(f"wrote {len(records)} records below {output}")
    judge(records, max_error, as_json)
