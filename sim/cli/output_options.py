"""Options that name what a command writes: looked at before anything is computed, written in one place."""

from pathlib import Path
from typing import Any

import typer

from sim.cli.printing import note
from sim.formats import files
from sim.formats.files import check_directory, check_writable, write_atomically

_OUTPUT = ("-o", "--output")


def file_option(help_text: str, *names: str) -> Any:
    """An option for a file that is written; ``names``: other than ``-o``, ``--output``."""
    return typer.Option(*(names or _OUTPUT), help=help_text, callback=_check_file)


def directory_option(help_text: str) -> Any:
    """``-o``, ``--output`` for a directory that files are written to."""
    return typer.Option(*_OUTPUT, help=help_text, callback=_check_directory)


def write(path: Path, text: str, option: str = "--output") -> None:
    """A file, and a word about it on stderr."""
    write_atomically(path, text, option)
    note(f"wrote {path}")


def write_measured(path: Path, text: str, option: str = "--output") -> None:
    """``write`` of what cannot be had again: where it fails, the error says where it is kept."""
    files.write_measured({path: text}, option)
    note(f"wrote {path}")


def _check_file(option: typer.CallbackParam, given: Path | None) -> Path | None:
    if given is not None:
        check_writable(given, _name(option))
    return given


def _check_directory(option: typer.CallbackParam, given: Path | None) -> Path | None:
    if given is not None:
        check_directory(given, _name(option))
    return given


def _name(option: typer.CallbackParam) -> str:
    return max(option.opts, key=len)
