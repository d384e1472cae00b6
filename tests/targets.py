"""What a path that is to be written may be: files behind links, and what must be left alone."""

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this ``size`` at ``folder``; the test is skipped where none may be mounted."""
    folder.mkdir()
    mounted = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("needs root that may mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


def kinds_below(folder: Path) -> dict[Path, tuple[int, int]]:
    """Everything below a folder with what it is, links not followed."""
    found = {path: path.lstat() for path in sorted(folder.rglob("*"))}
    return {path: (stat.S_IFMT(one.st_mode), one.st_rdev) for path, one in found.items()}


def _link(path: Path, to: str | Path) -> Path:
    path.symlink_to(to)
    return path


def _file(path: Path) -> Path:
    path.write_text("old")
    return path


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _deep(folder: Path) -> Path:
    (folder / "deep").mkdir()
    return folder / "deep"


def _loop(folder: Path) -> Path:
    _link(folder / "there", "back")
    return _link(folder / "back", "there")


# The path to write, and the file behind it.
FILES: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "missing": lambda at: (at / "w", at / "w"),
    "a file": lambda at: (_file(at / "w"), at / "w"),
    "a link elsewhere": lambda at: (_link(at / "w", _file(_deep(at) / "to")), at / "deep" / "to"),
    "a link to a link to nothing": lambda at: (_link(at / "w", _link(at / "v", "to")), at / "to"),
    "in a linked folder": lambda at: (_link(at / "l", _deep(at)) / "w", at / "deep" / "w"),
}
# The path, and words of the refusal.
REFUSED: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "a link to a directory": lambda at: (_link(at / "w", _deep(at)), "it is no file; give a file"),
    "a pipe": lambda at: (_pipe(at / "w"), "it is no file; give a file"),
    "a loop of links": lambda at: (_loop(at), "Too many levels of symbolic links"),
    "a link to no folder": lambda at: (_link(at / "w", "none/to"), "give one in a directory that exists"),
    "a file as folder": lambda at: (_file(at / "f") / "w", "give one in a directory that exists"),
}
# The path, and the directory behind it.
DIRECTORIES: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "deep": lambda at: (at / "d" / "e" / "f", at / "d" / "e" / "f"),
    "a link to one": lambda at: (_link(at / "d", _deep(at)), at / "deep"),
    "a link to nothing": lambda at: (_link(at / "d", "to"), at / "to"),
}
REFUSED_AS_DIRECTORY: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "a link to a file": lambda at: (_link(at / "w", _file(at / "to")), "it is no directory"),
    "/dev/null": lambda at: (Path("/dev/null"), "it is no directory"),
    "a loop of links": lambda at: (_loop(at), "Too many levels of symbolic links"),
    "below a file": lambda at: (_file(at / "f") / "d", "give one in a directory that exists"),
}
