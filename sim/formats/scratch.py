"""Temporary directories that say whose they are, so that what a killed process left can be removed."""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sim.errors import MachineError
from sim.machine import started_at

_PREFIX, _OWNER = "bucketsim-", ".owner"
_log = logging.getLogger(__name__)


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A temporary directory of this process's own, gone with the context; those left by killed ones go first.

    Raises:
        MachineError: there is no room for one, or no right to make it.
    """
    for left in remove_left_directories():
        _log.warning("removed %s, left by a bucketsim that was killed", left)
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
            if started_at(os.getpid()) is not None:
                (folder / _OWNER).write_text(_owner(), encoding="utf-8")
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
    removed = []
    for mark in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_OWNER}"):
        with suppress(OSError, ValueError):  # another process removes it just now, or wrote no mark of ours
            number, start, where = mark.read_text(encoding="utf-8").split(" ", 2)
            is_ours = mark.stat().st_uid == os.geteuid() and where == _where()
            if is_ours and str(started_at(int(number))) != start:
                shutil.rmtree(mark.parent)
                removed.append(mark.parent)
    return removed


def _owner() -> str:
    return f"{os.getpid()} {started_at(os.getpid())} {_where()}"


def _where() -> str:
    """What process numbers are counted in: this start of this machine, and its namespace of processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"
