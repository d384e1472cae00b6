"""What a path that is to be written may be: files behind links, and what must be left alone."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

IS_ROOT = os.geteuid() == 0


def kinds_below(folder: Path) -> dict[Path, tuple[int, int]]:
    """Everything below a folder with what it is, links not followed."""
    return {
        path: (stat.S_IFMT(path.lstat().st_mode), path.lstat().st_rdev) for path in sorted(folder.rglob("*"))
    }


def _link(path: Path, to: str | Path) -> Path:
    path.symlink_to(to)
    return path


def _file(path: Path) -> Path:
    path.write_text("old")
    return path


def _node(path: Path, kind: int, major: int, minor: int) -> Path:
    if not IS_ROOT:
        pytest.skip("only root makes device nodes")
    try:
        os.mknod(path, kind | 0o666, os.makedev(major, minor))
    except PermissionError:
        pytest.skip("this container makes no device nodes")
    return path


def _pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def _socket(path: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return path


def _deep(folder: Path) -> Path:
    (folder / "deep").mkdir()
    return folder / "deep"


def _chain(folder: Path, to: str | Path) -> Path:
    """A link to a link to ``to``."""
    _link(folder / "second", to)
    return _link(folder / "first", "second")


def _loop(folder: Path) -> Path:
    _link(folder / "there", "back")
    return _link(folder / "back", "there")


# The path to write, and the file behind it.
FILES: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "missing": lambda at: (at / "w", at / "w"),
    "a file": lambda at: (_file(at / "w"), at / "w"),
    "a link to a file": lambda at: (_link(at / "w", _file(at / "to")), at / "to"),
    "a link to nothing": lambda at: (_link(at / "w", "to"), at / "to"),
    "a chain to a file": lambda at: (_chain(at, _file(at / "to")), at / "to"),
    "a chain to nothing": lambda at: (_chain(at, "to"), at / "to"),
    "a link elsewhere": lambda at: (_link(at / "w", _file(_deep(at) / "to")), at / "deep" / "to"),
    "in a linked folder": lambda at: (_link(at / "l", _deep(at)) / "w", at / "deep" / "w"),
}
# The path, and words of the refusal.
REFUSED: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "a directory": lambda at: (_deep(at), "it is no file; give a file"),
    "a link to a directory": lambda at: (_link(at / "w", _deep(at)), "it is no file; give a file"),
    "a socket": lambda at: (_socket(at / "w"), "it is no file; give a file"),
    "a link to a socket": lambda at: (_link(at / "w", _socket(at / "to")), "it is no file; give a file"),
    "a disk": lambda at: (_node(at / "w", stat.S_IFBLK, 7, 250), "it is no file; give a file"),
    "a loop of links": lambda at: (_loop(at), "Too many levels of symbolic links"),
    "no folder": lambda at: (at / "none" / "w", "give one in a directory that exists"),
    "a link to no folder": lambda at: (_link(at / "w", "none/to"), "give one in a directory that exists"),
    "a file as folder": lambda at: (_file(at / "f") / "w", "give one in a directory that exists"),
    "a pipe": lambda at: (_pipe(at / "w"), "it is no file; give a file"),
    "a chain to /dev/null": lambda at: (_chain(at, "/dev/null"), "it is no file; give a file"),
}
# The path, and the directory behind it.
DIRECTORIES: dict[str, Callable[[Path], tuple[Path, Path]]] = {
    "missing": lambda at: (at / "d", at / "d"),
    "deep": lambda at: (at / "d" / "e" / "f", at / "d" / "e" / "f"),
    "a directory": lambda at: (_deep(at), at / "deep"),
    "a link to one": lambda at: (_link(at / "d", _deep(at)), at / "deep"),
    "a link to nothing": lambda at: (_link(at / "d", "to"), at / "to"),
    "a chain to nothing": lambda at: (_chain(at, "to"), at / "to"),
}
REFUSED_AS_DIRECTORY: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "a file": lambda at: (_file(at / "w"), "it is no directory"),
    "a link to a file": lambda at: (
        _link(at / "w", _file(at / "to")),
        "it is no directory",
    ),
    "/dev/null": lambda at: (Path("/dev/null"), "it is no directory"),
    "a null of our own": lambda at: (
        _node(at / "w", stat.S_IFCHR, 1, 3),
        "it is no directory",
    ),
    "a pipe": lambda at: (_pipe(at / "w"), "it is no directory"),
    "a socket": lambda at: (_socket(at / "w"), "it is no directory"),
    "a loop of links": lambda at: (_loop(at), "Too many levels of symbolic links"),
    "below a file": lambda at: (_file(at / "f") / "d", "give one in a directory that exists"),
}
