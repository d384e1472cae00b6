"""``streamlit run``, ready before its first visitor, and quick to send what is drawn while it still computes.

Ctrl-C ends it with one word until streamlit, once it serves, hears it itself. Its threads share two heaps:
each run of a page and each search is a thread, glibc gives threads heaps of their own, up to eight a core,
and each heap keeps most of what was ever freed in it.
"""

import ctypes
import os
import platform
import runpy
import signal
import sys
import threading
from importlib import import_module
from types import FrameType

_M_ARENA_MAX, _HEAPS = -8, 2  # the option's number in glibc's malloc.h
# One thread sends what pages draw in others. Whenever it was idle it waits so long for one that computes:
# Python's own 5 ms came to a second for all messages and files of a page.
_TURN_S = 0.0005


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def share_heaps() -> None:
    """Let all threads that are started from now on share ``_HEAPS`` heaps, where malloc is glibc's."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)


def _warm_up() -> None:
    import_module("app.warming").warm_up()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _leave)
    share_heaps()
    sys.setswitchinterval(_TURN_S)
    import_module("streamlit.web.cli")  # before another thread imports parts of it
    import_module("app.one_lock").share()
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
