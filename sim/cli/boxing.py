"""box: any command on hosts with a wire of a given rate between them."""

import shlex
from typing import Annotated

import typer

from sim.cli.placing import place_of
from sim.cli.printing import fail, note


def box(
    hosts: Annotated[
        int, typer.Argument(metavar="HOSTS", help="How many hosts, each with one rank; 2 to 64.")
    ],
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND",
            help="What runs on each, such as -- python train.py --lr 1. Rank 0 has the terminal; what other "
            "ranks say goes to stderr, marked.",
        ),
    ],
    rate: Annotated[
        str, typer.Option("--rate", help="The wire, such as 500mbit; or one a host: 4gbit,1gbit.")
    ],
) -> None:
    """Run your own command in a cluster in a box: a rank on each host, with torchrun's environment (root)."""
    from sim.validator.hosts.boxed import run_in_box

    place = place_of(hosts, hosts, rate)
    note(f"{place.describe()}: {shlex.join(command)}")
    failure = run_in_box(place, command)
    if failure is not None:
        fail(f"box: {failure.describe()}; whatever still ran was ended")
        raise typer.Exit(failure.exit_code)
