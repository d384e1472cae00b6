"""The commands of ``bucketsim``."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sim.cli import importing, judging, machines, measuring, predicting, starting, tuning, validating

_LOOP = (
    ("when is each gradient ready?", starting.RECORD),
    ("what does the link carry?", starting.CALIBRATE),
    ("which buckets are best, and is it worth it?", starting.TUNE),
    (
        "what goes into the training script?",
        "bucketsim export workload.json --assignment assignment.json --as snippet",
    ),
    ("is it true, on real ranks?", starting.REPLAY),
)
_NEXT = (
    "next: bucketsim demo (all of it on a bundled recording), bucketsim doctor (what this machine can run), "
    "bucketsim dash (the dashboard, with a manual), bucketsim --help (all commands)"
)
_PANELS: dict[str, tuple[Any, ...]] = {
    "Start": (starting.demo, starting.doctor, starting.dash),
    "The loop": (measuring.record, measuring.calibrate, tuning.tune, tuning.export, validating.validate),
    "Instead of measuring": (importing.import_, measuring.estimate, machines.cluster, tuning.anchor),
    "What if": (
        *(predicting.simulate, predicting.explain, predicting.sweep, machines.scaling, machines.ranks),
    ),
    "Real ranks": (validating.ab, judging.agree, measuring.gather, starting.box),
}


def _without_values(parameters: list[Any]) -> list[Any]:
    """Flags, ``--help`` among them, take no value in their help."""
    for one in parameters:
        one.metavar = "" if getattr(one, "is_flag", False) else one.metavar
    return parameters


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


class _Commands(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_values(super().get_params(ctx))


_typer = typer.Typer(
    cls=_Commands,
    help="Finds the gradient buckets that make a DistributedDataParallel job fastest, and says why.",
    add_completion=False,
)
for panel, commands in _PANELS.items():
    for command in commands:
        _typer.command(command.__name__.rstrip("_"), cls=_Command, rich_help_panel=panel)(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(version("bucketsim"))
        raise typer.Exit


@_typer.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Record what backward does, predict, tune, replay on real ranks, compare on screen."""
    if context.invoked_subcommand is not None:
        return
    print("bucketsim finds the gradient buckets that make a DistributedDataParallel job fastest.")
    width = max(len(question) for question, _ in _LOOP)
    for number, (ask, run) in enumerate(_LOOP, 1):
        print(f"{number} {ask:{width}}  {run}")
    print(_NEXT)
    raise typer.Exit(2)  # as for any command line that asks for nothing that there is


app: Any = typer.main.get_command(_typer)  # once: to call the other would make all commands anew
