"""Kernels are compiled by one worker of several, and read from the disk by the others.

In a fresh clone all workers would compile the same kernels at once: half a minute of processor time each.
"""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from numba.core.dispatcher import Dispatcher

_COMPILE = Dispatcher.compile
_mine = threading.RLock()
_depth = 0  # a kernel that calls others compiles them while it is compiled


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """While this lasts, no two processes that are in it compile at the same time."""
    path = os.path.join(tempfile.gettempdir(), f"compiling-bucketsim-{os.getuid()}")
    with open(path, "w") as lock:

        def compile_alone(dispatcher: Any, signature: Any) -> Any:
            global _depth
            with _mine:
                if _depth == 0:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                _depth += 1
                try:
                    return _COMPILE(dispatcher, signature)
                finally:
                    _depth -= 1
                    if _depth == 0:
                        fcntl.flock(lock, fcntl.LOCK_UN)

        with mock.patch.object(Dispatcher, "compile", compile_alone):
            yield
