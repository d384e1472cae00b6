"""SIGTERM ends this process as Ctrl-C does: through ``finally``, so that ranks and namespaces are removed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into ``SystemExit`` meanwhile; outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
