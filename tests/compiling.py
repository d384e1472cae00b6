"""A kernel is compiled by one worker of several, and read from the disk by the others.

In a fresh clone all workers would compile the same kernels: half a minute of processor time each.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from numba.core.dispatcher import Dispatcher

_COMPILE = Dispatcher.compile
_LOCKS = tempfile.gettempdir()  # of all workers, also while a test has a temporary directory of its own
_mine = threading.RLock()
_held: set[str] = set()  # several: those that a kernel calls are compiled while it is


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While this lasts, no two processes that are in it compile the same kernel at the same time."""

    def compile_alone(dispatcher: Any, signature: Any) -> Any:
        name = f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}"
        if not hasattr(dispatcher, "bucketsim_digest"):  # numba's own, a part of one of ours
            return _COMPILE(dispatcher, signature)
        with _mine:
            if name in _held:
                return _COMPILE(dispatcher, signature)
            # Who waits for a kernel holds only those that call it, so that no two wait for each other.
            with open(Path(_LOCKS, f"compiling-bucketsim-{os.getuid()}-{name}"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                _held.add(name)
                try:
                    return _COMPILE(dispatcher, signature)
                finally:
                    _held.remove(name)

    with mock.patch.object(Dispatcher, "compile", compile_alone):
        yield
