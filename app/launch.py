"""How the dashboard is started, and what its command line says."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAIN = Path(__file__).with_name("main.py")
_SERVING = MAIN.with_name("serving.py")
ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What stands after ``--``: bundled files, the directory that a job writes to, and its machine."""

    traces: Path | None
    watch: Path | None = None
    hardware: Path | None = None


def command(
    port: int | None = None,
    traces: Path | None = None,
    watch: Path | None = None,
    hardware: Path | None = None,
) -> list[str]:
    """The argv that starts the dashboard on this machine alone.

    ``port`` None leaves the choice to streamlit (8501, or the next that is free); of ``traces`` (None: the
    bundled ones), the directory that a running job writes to, and its machine, see ``Settings``.
    """
    # -P: a click.py or numpy.py where the dashboard is started from is not imported in place of the real one.
    argv = [sys.executable, "-P", str(_SERVING), "run", str(MAIN), "--server.address", ADDRESS]
    if port is not None:
        argv += ["--server.port", str(port)]
    given = {"--traces": traces, "--watch": watch, "--hardware": hardware}
    own = [word for name, path in given.items() if path is not None for word in (name, str(path.absolute()))]
    return [*argv, "--", *own] if own else argv


def default_traces() -> Path | None:
    """The bundled recordings: ``app/traces``, in a checkout a link to its ``traces/``; None without them."""
    folder = MAIN.with_name("traces")
    return folder if folder.is_dir() else None


def settings(argv: Sequence[str]) -> Settings:
    """The settings in a command line; what is not ours is left alone."""
    parser = argparse.ArgumentParser(prog="bucketsim dash", add_help=False, allow_abbrev=False)
    for name in ("--traces", "--watch", "--hardware"):
        parser.add_argument(name, type=Path)
    found, _ = parser.parse_known_args(list(argv))
    return Settings(traces=found.traces or default_traces(), watch=found.watch, hardware=found.hardware)
