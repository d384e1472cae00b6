"""Loops that run as machine code: one decorator, so that every kernel is compiled alike."""

import functools
import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

Kernel = TypeVar("Kernel", bound=Callable[..., object])

_log = logging.getLogger(__name__)


def compiled(function: Kernel) -> Kernel:
    """``function`` in numba's nopython mode, without the GIL, kept on disk between processes if it can be.

    Arguments are int64, float64 and bool arrays and scalars; integers wrap beyond 63 bits and indices out of
    range are not noticed. Numba by itself compiles anew only if the file of ``function`` has changed; here it
    does so, too, if kernels or numbers have changed that the file imports before ``function``.
    """
    digest = _digest(function)
    try:
        made: Any = numba.njit(cache=True, nogil=True)(function)
        kept = made._cache._cache_file
        kept._source_stamp = (kept._source_stamp, digest)
        kept._load_index = functools.partial(_read_index, kept._load_index)
    except (RuntimeError, AttributeError):
        # No directory to keep it in, or another numba, that keeps it otherwise: compiled anew each time.
        made = numba.njit(nogil=True)(function)
    made.bucketsim_digest = digest
    return cast(Kernel, made)


def _read_index(read: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What is kept of a kernel; nothing where it was compiled for a type that has moved to another module."""
    try:
        return read()
    except (ImportError, AttributeError):
        return {}


def _digest(function: Callable[..., object]) -> str:
    """A digest of what makes the machine code of ``function``: its file, and what it has from other files."""
    parts = [_text(function.__code__.co_filename)]
    for name, value in sorted(function.__globals__.items(), key=lambda item: item[0]):
        if isinstance(value, (bool, int, float, tuple)):
            parts.append(f"{name}={value!r}")
        elif isinstance(value, type) and hasattr(value, "_fields"):
            parts.append(f"{name}={cast(Any, value)._fields}")
        elif hasattr(value, "bucketsim_digest"):
            parts.append(f"{name}={cast(Any, value).bucketsim_digest}")
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


@functools.cache
def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8") if Path(path).exists() else ""


class _Telling(event.Listener):
    """Logs each kernel that is compiled: that takes some seconds, in which nothing else shows progress."""

    def on_start(self, begun: Any) -> None:
        dispatcher = begun.data["dispatcher"]
        if hasattr(dispatcher, "bucketsim_digest"):  # not the loops of whoever imports us
            _log.info("compiling %s", dispatcher.py_func.__name__)

    def on_end(self, ended: Any) -> None:
        pass


event.register("numba:compile", _Telling())  # type: ignore[no-untyped-call]
