"""``bucketsim``: the command, its error handling and its exit codes.

0 ok; 1 our error, one red line; 2 usage; 3 a validation missed its threshold.
"""

import sys
from importlib.metadata import version
from typing import Annotated

import typer

from sim.cli import (
    anchoring,
    boxing,
    clustering,
    diagnosing,
    estimating,
    importing,
    judging,
    measuring,
    ranking,
    scaling,
    sharing,
    showing,
    simulating,
    spreading,
    sweeping,
    tuning,
    validating,
)
from sim.cli.printing import fail
from sim.cli.streams import guarded_streams
from sim.errors import SimError

app = typer.Typer(
    name="bucketsim",
    help="Which gradient buckets hide all-reduce behind backward best, why, and the proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(version("bucketsim"))
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Record what backward does, predict, tune, replay on real ranks, compare on screen."""


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
    showing.dash,
    diagnosing.doctor,
):
    app.command()(command)
app.command("import")(importing.import_)


def main() -> None:
    """Entry point of ``bucketsim`` and ``python -m sim``."""
    with guarded_streams():
        _run()


def _run() -> None:
    # What follows -- is another command's.
    ours = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    debug = "--debug" in ours
    if debug:
        # Accept --debug after the command too: people add it to the end of the line that failed.
        kept = [word for word in ours[1:] if word != "--debug"]
        sys.argv = [sys.argv[0], "--debug", *kept, *sys.argv[len(ours) :]]
    try:
        _answer()
    except (SimError, OSError) as error:
        if debug:
            raise
        fail(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        fail("interrupted")
        sys.exit(130)


def _answer() -> None:
    try:
        app()
    finally:
        sys.stdout.flush()  # that it did not arrive can be told now, and not at the interpreter's end
