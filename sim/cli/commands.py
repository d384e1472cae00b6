"""The commands of ``bucketsim``."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from sim.cli import (
    anchoring,
    diagnosing,
    estimating,
    exporting,
    importing,
    judging,
    machines,
    measuring,
    predicting,
    running,
    scaling,
    spreading,
    tuning,
    validating,
)
from sim.cli.diagnosing import CALIBRATE, RECORD, REPLAY, TUNE

EXPORT = "bucketsim export workload.json --assignment assignment.json --as snippet"
_LOOP = (
    ("when is each gradient ready?", RECORD),
    ("what does the link carry?", CALIBRATE),
    ("which buckets are best, and is it worth it?", TUNE),
    ("what goes into the training script?", EXPORT),
    ("is it true, on real ranks?", REPLAY),
)


def _flags_without_type(parameters: list[Any]) -> list[Any]:
    """For ``--help``: a flag takes no value, so none is shown."""
    for one in parameters:
        if isinstance(one, TyperOption) and one.is_flag:
            one.metavar = ""
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _flags_without_type(super().get_params(ctx))


app = typer.Typer(
    name="bucketsim",
    cls=_Group,
    help="Finds the gradient buckets that make a DistributedDataParallel job fastest, and says why.",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _the_loop() -> str:
    """The loop in five lines, each a question and the command that answers it; then what comes next."""
    width = max(len(question) for question, _ in _LOOP)
    lines = [f"{number} {ask:{width}}  {run}" for number, (ask, run) in enumerate(_LOOP, 1)]
    return "\n".join(
        (
            "bucketsim finds the gradient buckets that make a DistributedDataParallel job fastest.",
            *lines,
            "next: bucketsim demo (all of it on a bundled recording), bucketsim doctor (what this machine "
            "can run), bucketsim dash (the dashboard, with a manual), bucketsim --help (all commands)",
        )
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
        print(_the_loop())
        raise typer.Exit(2)  # as for any command line that asks for nothing that there is


_PANELS = {
    "Start": (running.demo, diagnosing.doctor, running.dash),
    "The loop": (measuring.record, measuring.calibrate, tuning.tune, exporting.export, validating.validate),
    "Instead of measuring": (importing.import_, estimating.estimate, machines.cluster, anchoring.anchor),
    "What if": (
        predicting.simulate,
        predicting.explain,
        predicting.sweep,
        scaling.scaling,
        scaling.ranks,
    ),
    "Real ranks": (judging.agree, spreading.gather, running.box),
}
for panel, commands in _PANELS.items():
    for command in commands:
        app.command(command.__name__.rstrip("_"), cls=_Command, rich_help_panel=panel)(command)
