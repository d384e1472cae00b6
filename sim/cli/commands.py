"""The commands of ``bucketsim``."""

from importlib.metadata import version
from typing import Annotated

import typer

from sim.cli import (
    anchoring,
    autotuning,
    boxing,
    clustering,
    diagnosing,
    estimating,
    importing,
    judging,
    measuring,
    ranking,
    scaling,
    showing,
    simulating,
    spreading,
    sweeping,
    tuning,
    validating,
)
from sim.cli import job_mix as sharing
from sim.cli.greeting import the_loop

app = typer.Typer(
    name="bucketsim",
    help="Which gradient buckets hide all-reduce behind backward best, why, and the proof.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(version("bucketsim"))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Record what backward does, predict, tune, replay on real ranks, compare on screen."""
    if context.invoked_subcommand is None:
        print(the_loop())
        raise typer.Exit(2)  # as for any command line that asks for nothing that there is


for command in (
    measuring.record,
    estimating.estimate,
    measuring.calibrate,
    clustering.cluster,
    ranking.ranks,
    sharing.jobs,
    simulating.simulate,
    simulating.explain,
    sweeping.sweep,
    scaling.scaling,
    anchoring.anchor,
    tuning.tune,
    simulating.export,
    validating.validate,
    spreading.gather,
    judging.agree,
    boxing.box,
    autotuning.autotune,
    showing.dash,
    diagnosing.doctor,
):
    app.command()(command)
app.command("import")(importing.import_)
