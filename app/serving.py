"""``streamlit run``, ready before its first visitor, and quick to send what is drawn while it still computes.

Ctrl-C ends it with one word until streamlit hears it. Its threads (each run of a page, each search) share two
heaps: glibc gives them up to eight a core, and each heap keeps most of what was ever freed in it.
"""

import ctypes
import gc
import os
import platform
import runpy
import signal
import sys
import threading
from dataclasses import replace
from importlib import import_module

_M_ARENA_MAX, _HEAPS = -8, 2  # the option's number in glibc's malloc.h
# The thread that sends waits so long for one that computes: Python's 5 ms came to a second for each page.
_TURN_S = 0.0005


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def _warm_up() -> None:
    """Import what needs no server that runs, as caches and components do, and tune a job, which compiles all
    kernels after an installation: no garbage."""
    for name in ("pandas", "plotly.graph_objects", "sim.plot", "sim.tuner.recommend"):
        import_module(name)
    import sim
    from sim.nouns.hardware import CurvePoint, Hardware
    from sim.nouns.workload import Gradient, Workload

    one = Gradient(index=0, name="any", shape=(4,), dtype="float32", num_bytes=16, ready_ns=1)
    many = tuple(replace(one, index=index) for index in range(32))
    workload = Workload(name="any", gradients=many, forward_ns=1, backward_ns=1, optimizer_ns=1)
    curve = (CurvePoint(num_bytes=0, duration_ns=1), CurvePoint(num_bytes=64, duration_ns=9))
    link = Hardware(name="any", world_size=2, all_reduce=curve, comm_channels=2, channel_slowdown=2.0)
    sim.tune(workload, link)
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _leave)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
    sys.setswitchinterval(_TURN_S)
    import_module("streamlit.web.cli")  # before another thread imports parts of it
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
