"""autotune: a training script that nobody edits tunes its own buckets."""

import os
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sim.autotuner.unedited import tuned_environment
from sim.cli.printing import fail, note, say
from sim.formats.autotune_files import find_autotunes
from sim.nouns.autotune import AutotuneProgress


def autotune(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND", help="What trains, such as -- torchrun --nproc-per-node 2 train.py --lr 1."
        ),
    ],
    cache: Annotated[
        Path | None, typer.Option(help="A file for what was kept, from which the next run begins.")
    ] = None,
    live: Annotated[
        Path | None, typer.Option(help="A directory for what it is doing; dash --watch shows it.")
    ] = None,
) -> None:
    """Run your own training, unedited: it tunes its buckets, proves the gain, and keeps it or goes back."""
    with ExitStack() as stack:
        told_in = live
        if told_in is None:
            told_in = Path(stack.enter_context(TemporaryDirectory(prefix="bucketsim-autotune-")))
        environment = tuned_environment(
            os.environ,
            live=str(told_in.absolute()),
            cache=None if cache is None else str(cache.absolute()),
        )
        note(f"autotune: {shlex.join(command)}")
        code = _run(command, environment)
        told = find_autotunes(told_in)
    if not told:
        say(
            "autotune: nothing was tuned: no process of this command told that it made a "
            "DistributedDataParallel (on several hosts give --live a directory that all of them see)"
        )
    for one in told.values():
        say(_sentence(one))
    if code:
        fail(f"autotune: the command ended with exit code {code}")
        raise typer.Exit(code)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Its exit code; 128 + N after signal N."""
    with subprocess.Popen(command, env=environment) as process:
        try:
            code = process.wait()
        except KeyboardInterrupt:  # it has been told, too
            code = process.wait()
    return code if code >= 0 else 128 - code


def _sentence(told: AutotuneProgress) -> str:
    begun = f"autotune of {told.name} on {told.world_size} rank(s): "
    if told.outcome is None:
        return f"{begun}not decided; {told.phase} after {told.steps} steps, when the training ended"
    return f"{begun}{told.outcome}: {told.why} ({told.steps} steps, {told.seconds or 0:.1f} s)"
