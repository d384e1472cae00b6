"""Where ranks run, and beside what: what calibrate and validate share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sim
from sim.cli.panels import WHERE
from sim.cli.printing import emit, note
from sim.cli.simulating import key_values
from sim.errors import InputError
from sim.formats.record_files import box_in
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.records import Record
from sim.nouns.workload import Workload
from sim.units import parse_rate_bits

if TYPE_CHECKING:
    from sim.validator.candidates.paced_neighbour import PacedNeighbour
    from sim.validator.hosts.launch import Place

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
Uplink = Annotated[
    str | None,
    typer.Option(
        "--uplink", help="A wire that the two halves of the box share, such as 2gbit.", rich_help_panel=WHERE
    ),
]
On = Annotated[
    str | None,
    typer.Option("--on", help="The hosts of the box that have a rank, such as 0,2.", rich_help_panel=WHERE),
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


def place_of(ranks: int, box: int | None, rate: str | None, uplink: str | None, on: str | None) -> "Place":
    """Where the ranks run, by the options above."""
    from sim.validator.hosts.launch import Place

    rates = None if rate is None else tuple(parse_rate_bits(word) for word in rate.split(","))
    return Place(
        ranks=ranks,
        box=box,
        rate_bits=rates[0] if rates is not None and len(rates) == 1 else rates,
        uplink_bits=None if uplink is None else parse_rate_bits(uplink),
        on=None if on is None else _hosts(on),
    )


def _hosts(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise InputError(f"--on: {text!r} is not legal; give numbers of hosts, such as 0,2")
    return tuple(int(word) for word in words)


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


def slow_ranks(pairs: list[str], world_size: int) -> dict[int, float]:
    """Factors on the backward of ranks, from ``rank=factor`` words."""
    found: dict[int, float] = {}
    for pair in pairs:
        rank, _, factor = (part.strip() for part in pair.partition("="))
        try:
            number, times = int(rank), float(factor)
        except ValueError:
            raise InputError(f"--slow: {pair!r} is not legal; give rank=factor, such as 3=1.3") from None
        if not (0 <= number < world_size and 1 <= times < 1e6) or number in found:
            raise InputError(
                f"--slow: {pair!r} is not legal; give each rank of 0 to {world_size - 1} once, with a factor "
                f"of 1 or more"
            )
        found[number] = times
    return found


def neighbour_of(text: str, workload: Workload, place: "Place") -> "tuple[Place, PacedNeighbour]":
    """Where the job measured is, and its neighbour: the same workload under what ``--neighbour`` says."""
    from sim.validator.candidates.paced_neighbour import paced_neighbour, place_two

    ours, hosts = place_two(place)
    if len(hosts) != ours.world_size:
        raise InputError(
            f"neighbour: {len(hosts)} hosts beside {ours.world_size} are not legal; both jobs are "
            f"predicted from one hardware file, so give them equally many hosts"
        )
    options: dict[str, Any] = key_values([word.strip() for word in text.split(",")], "--neighbour")
    if {"workload", "iteration"} & options.keys():
        raise InputError(f"--neighbour: {text!r} is not legal; workload and iteration are no switches")
    return ours, paced_neighbour(workload, sim.assign(workload, **options), hosts)


def hardware_there(
    hardware: Hardware,
    workload: Workload,
    place: "Place",
    neighbour: "PacedNeighbour | None",
) -> Hardware:
    """``hardware`` as predicted for ``place``: what cannot be predicted is told before it is measured."""
    from sim.truth.in_box import as_measured

    record = Record(
        name=place.describe(),
        workload=workload,
        hardware=hardware,
        measurements=(),
        neighbour=None if neighbour is None else neighbour.noun(),
        box=box_in(place.document(), "place"),
        calibrated_in=box_in(hardware.provenance, f"{hardware.name}: provenance"),
    )
    return as_measured(record).hardware
