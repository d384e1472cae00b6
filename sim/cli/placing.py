"""Where ranks run: what calibrate and validate share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sim.cli.options import WHERE
from sim.cli.printing import emit, note
from sim.formats.record_files import box_in
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Record
from sim.nouns.workload import Workload
from sim.units import parse_rate_bits

if TYPE_CHECKING:
    from sim.validator.launch import Place

Box = Annotated[
    int | None,
    typer.Option(
        "--box", help="Ranks in a cluster in a box: so many network namespaces, a rank each (root)."
    ),
]
Rate = Annotated[
    str | None,
    typer.Option("--rate", help="The box's wire, such as 4gbit; or a rate for each host: 4gbit,1gbit."),
]
Ranks = Annotated[
    int,
    typer.Option(
        "--ranks",
        help="Local ranks over loopback; with --prepare the ranks that torchrun or srun will start.",
    ),
]
Prepare = Annotated[
    bool,
    typer.Option(
        "--prepare",
        help="Only write the job, to be run by torchrun or srun and read by bucketsim gather.",
        rich_help_panel=WHERE,
    ),
]


def place_of(ranks: int, box: int | None, rate: str | None) -> "Place":
    """Where the ranks run, by the options above."""
    from sim.validator.launch import Place

    rates = None if rate is None else tuple(parse_rate_bits(word) for word in rate.split(","))
    return Place(
        ranks=ranks,
        box=box,
        rate_bits=rates[0] if rates is not None and len(rates) == 1 else rates,
    )


def tell_commands(job_file: Path, then: str) -> None:
    """How to run a prepared job on stdout, and on stderr what comes ``then``."""
    from sim.validator.prepared import commands, read_job

    job = read_job(job_file.parent)
    note(f"wrote {job_file}; run one of these on {job['world_size']} ranks, then: {then}")
    for line in commands(job_file, job):
        emit(line)


def tell_other_ranks(assignments: dict[str, Assignment], world_size: int) -> None:
    """Say of which assignments another number of ranks was asked for when they were made."""
    for name, one in assignments.items():
        if one.made_for is not None and one.made_for.world_size not in (None, world_size):
            note(
                f"{name}: made for {one.made_for.world_size} ranks, and run on {world_size}: what it "
                f"gains on so many is not shown by this"
            )


def hardware_there(hardware: Hardware, workload: Workload, place: "Place") -> Hardware:
    """``hardware`` as predicted for ``place``: what cannot be predicted is told before it is measured."""
    from sim.truth.scoring import as_measured

    record = Record(
        name=place.describe(),
        workload=workload,
        hardware=hardware,
        measurements=(),
        box=box_in(place.document(), "place"),
        calibrated_in=box_in(hardware.provenance, f"{hardware.name}: provenance"),
    )
    return as_measured(record).hardware
