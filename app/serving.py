"""``streamlit run``, ready before its first visitor, and quick to send what is drawn while it still computes.

Ctrl-C ends it with one word until streamlit, once it serves, hears it itself. Its threads share two heaps:
each run of a page and each search is a thread, glibc gives threads heaps of their own, up to eight a core,
and each heap keeps most of what was ever freed in it.
"""

import ctypes
import gc
import os
import platform
import runpy
import signal
import sys
import threading
from importlib import import_module

_M_ARENA_MAX, _HEAPS = -8, 2  # the option's number in glibc's malloc.h
# One thread sends what pages draw in others. Whenever it was idle it waits so long for one that computes:
# Python's own 5 ms came to a second for all messages and files of a page.
_TURN_S = 0.0005


def _leave(*_: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def _warm_up() -> None:
    """Import what needs no server that runs, as caches and components do, and tune a job: no garbage.

    After an installation that compiles every kernel, while whoever opens the page still looks at its frame.
    """
    for name in ("pandas", "plotly.graph_objects", "sim.plot", "sim.tuner.recommend"):
        import_module(name)
    import sim
    from sim.nouns.hardware import CurvePoint, Hardware
    from sim.nouns.workload import Gradient, Workload

    sizes, points = {"shape": (4,), "dtype": "float32", "num_bytes": 16}, ((1, 9), (64, 12))
    gradients = tuple(Gradient(index=k, name="any", ready_ns=32 - k, **sizes) for k in range(32))  # type: ignore[arg-type]
    workload = Workload(name="any", gradients=gradients, forward_ns=1, backward_ns=32, optimizer_ns=1)
    curve = tuple(CurvePoint(num_bytes=size, duration_ns=ns) for size, ns in points)
    hardware = Hardware(name="any", world_size=2, all_reduce=curve, comm_channels=2, channel_slowdown=2.0)
    sim.critical_path(sim.simulate(workload, hardware, sim.assign(workload), "analytic"))
    sim.tune(workload, hardware)
    gc.freeze()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _leave)
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _HEAPS)
    sys.setswitchinterval(_TURN_S)
    import_module("streamlit.web.cli")  # before another thread imports parts of it
    threading.Thread(target=_warm_up, name="warm-up", daemon=True).start()
    runpy.run_module("streamlit", run_name="__main__", alter_sys=True)
