"""autotune: a training script that nobody edits tunes its own buckets."""

import os
import shlex
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from sim.autotuner.unedited import tuned_environment
from sim.cli.printing import fail, note, say
from sim.errors import InputError
from sim.formats.autotune_files import FILE_NAME, find_autotunes
from sim.formats.outputs import check_directory, check_writable, make_directory
from sim.formats.scratch import scratch_directory
from sim.nouns.autotune import AutotuneProgress, tell_undecided

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # as a launcher would send


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
    if cache is not None:
        check_writable(cache, "--cache")
    with ExitStack() as stack:
        if live is None:
            told_in = stack.enter_context(scratch_directory())
        else:
            check_directory(live, "--live")
            told_in = make_directory(live, "--live")
        before = _written(told_in)
        environment = tuned_environment(
            os.environ,
            live=str(told_in.absolute()),
            cache=None if cache is None else str(cache.absolute()),
        )
        note(f"autotune: {shlex.join(command)}")
        code = _run(command, environment)
        found, now = find_autotunes(told_in), _written(told_in)
        told = {name: one for name, one in found.items() if now.get(name) != before.get(name)}
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


def _written(folder: Path) -> dict[str, int]:
    """When each model's file was written, named as by ``find_autotunes``: some may be an earlier run's."""
    places = (folder / FILE_NAME, *folder.glob(f"*/{FILE_NAME}"))
    return {path.parent.name: path.stat().st_mtime_ns for path in places if path.exists()}


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Its exit code; 128 + N after signal N. What a scheduler sends to this process goes to the command."""
    early: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if running:
            running[0].send_signal(number)
        else:
            early.append(number)

    heard = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup
    before = {number: signal.signal(number, pass_on) for number in heard}
    try:
        try:
            started = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise InputError(
                f"COMMAND: {command[0]!r} cannot be started: {error.strerror}; give what starts the training "
                f"in a shell, such as torchrun or python"
            ) from None
        with started as process:
            running.append(process)
            for number in early:
                process.send_signal(number)
            try:
                code = process.wait()
            except KeyboardInterrupt:  # it has been told, too
                code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _sentence(told: AutotuneProgress) -> str:
    begun = f"autotune of {told.name} on {told.world_size} rank(s): "
    if told.outcome is None:
        return begun + tell_undecided(told.phase, told.steps)
    return f"{begun}{told.outcome}: {told.why} ({told.steps} steps, {told.seconds or 0:.1f} s)"
