"""Processes of this machine: which belong to a job, dying with one's parent, and the memory they keep."""

import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
# Loaded before any fork: a child between fork and exec must not load libraries.
_LIBC = ctypes.CDLL(None, use_errno=True)


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory, as a GPU's caching allocator does, if it can.

    gloo and FSDP2 allocate buffers for each collective, and pages that were never touched are slow to write.
    """
    if hasattr(_LIBC, "mallopt"):
        _LIBC.mallopt(_M_MMAP_MAX, 0)
        _LIBC.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def holding(word: str) -> list[int]:
    """Processes with ``word`` in their command line, this one excepted; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in command:
            found.append(int(entry.name))
    return found


def kill(pids: list[int]) -> None:
    """SIGKILL to each that still runs; it reaches stopped processes too."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the thread that started it ends, even by SIGKILL."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
