"""Temporary directories that say whose they are, so that what a killed process left can be removed."""

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sim.errors import MachineError
from sim.machine import started_at

_PREFIX, _OWNER = "bucketsim-", ".owner"
_MOST_BYTES = 200  # of a mark
_log = logging.getLogger(__name__)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary directory of this process's own, gone with the context; those left by killed ones go first.

    Raises:
        MachineError: there is no room for one, or no right to make it.
    """
    with ExitStack() as stack:
        try:
            for left in remove_left_directories():
                _log.warning("removed %s, left by a bucketsim that was killed", left)
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
            if (owner := _owner()) is not None:
                (folder / _OWNER).write_text(owner, encoding="utf-8")
        except OSError as error:
            raise MachineError(
                f"no temporary directory can be made: {error.strerror or error}; make room, or name another "
                f"place in TMPDIR"
            ) from None
        yield folder


def remove_left_directories() -> list[Path]:
    """Remove the temporary directories whose process, by the number and start in them, runs no more.

    Nothing is removed that another user, machine or container, or an earlier start of this one, has made.
    """
    removed: list[Path] = []
    if (here := _where()) is None:
        return removed
    for mark in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError, ValueError):  # another process removes it just now, or wrote no mark of ours
            if not _is_marked(mark):
                continue
            number, start, where = mark.read_text(encoding="utf-8").split(" ", 2)
            if where == here and str(started_at(int(number))) != start:
                shutil.rmtree(mark.parent)
                removed.append(mark.parent)
    return removed


def _is_marked(mark: Path) -> bool:
    """Whether ``mark`` is a small file in a directory, both of this user: a link or a pipe is not opened."""
    folder, file = mark.parent.lstat(), mark.lstat()
    return (
        stat.S_ISDIR(folder.st_mode)
        and stat.S_ISREG(file.st_mode)
        and file.st_size < _MOST_BYTES
        and folder.st_uid == file.st_uid == os.geteuid()
    )


def _owner() -> str | None:
    """This process; None where it cannot be told from others."""
    start, where = started_at(os.getpid()), _where()
    return None if start is None or where is None else f"{os.getpid()} {start} {where}"


def _where() -> str | None:
    """What process numbers are counted in: this start of this machine, and its namespace of processes.

    None where the system does not say.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None
