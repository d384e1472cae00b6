"""Loops that run as machine code: one decorator, so that every kernel is compiled alike."""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import config as numba_config
from numba.core import event

Kernel = TypeVar("Kernel", bound=Callable[..., object])

config: Any = numba_config  # it makes its attributes as it is read
_log = logging.getLogger(__name__)
_SIM = Path(__file__).parents[1]
# What kernels are made of. Numba notices a change of a kernel's own file alone, so that what is kept of all
# of them is in a directory that is named by what all of these hold.
SOURCES = (
    *("clock/machine_code.py", "clock/program.py", "clock/play.py", "systems/cut.py"),
    *("tuner/problem.py", "tuner/caps.py", "tuner/optimum.py"),
)
_HELD = hashlib.blake2b(b"".join((_SIM / name).read_bytes() for name in SOURCES), digest_size=8).hexdigest()


def compiled(function: Kernel) -> Kernel:
    """``function`` in numba's nopython mode, without the GIL, kept on disk between processes if it can be.

    Arguments are int64, float64 and bool arrays and scalars; integers wrap beyond 63 bits and indices out of
    range are not noticed.
    """
    theirs = config.CACHE_DIR
    config.CACHE_DIR = str(Path(theirs or _SIM / "clock" / "__pycache__") / _HELD)
    try:
        return cast(Kernel, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # no directory to keep it in: compiled anew each time
        return cast(Kernel, numba.njit(nogil=True)(function))
    finally:
        config.CACHE_DIR = theirs


class _Telling(event.Listener):
    """Logs each kernel that is compiled: that takes some seconds, in which nothing else shows progress."""

    def on_start(self, begun: Any) -> None:
        kernel = begun.data["dispatcher"].py_func
        if kernel.__module__.startswith("sim."):  # not the loops of whoever imports us
            _log.info("compiling %s", kernel.__name__)

    def on_end(self, ended: Any) -> None:
        pass


event.register("numba:compile", _Telling())  # type: ignore[no-untyped-call]
