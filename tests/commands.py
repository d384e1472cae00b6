"""``bucketsim`` as a test calls it: in this process, for speed, or as a real one."""

import io
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from sim.cli.main import main
from tests.effort import PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """stderr on one line, without the frame that typer draws around what is wrong with a usage."""
        return " ".join(self.err.translate(dict.fromkeys(map(ord, "│╭╮╰╯─"), " ")).split())


def bucketsim(*words: object) -> Said:
    """Run the command line in this process, through the same ``main`` as the installed script."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["bucketsim", *map(str, words)]
    code = 0
    with mock.patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return Said(code=code, out=out.getvalue(), err=err.getvalue())


def process(*words: object, cwd: Path | None = None, env: dict[str, str] | None = None) -> Said:
    """Run a real process of this Python."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=env,
        timeout=PATIENCE_S,
        check=False,
    )
    return Said(code=done.returncode, out=done.stdout, err=done.stderr)


def script() -> Path:
    """The installed ``bucketsim`` beside this Python."""
    return Path(sys.executable).parent / "bucketsim"
