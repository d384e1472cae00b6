"""Loops that run as machine code: one decorator, so that every kernel is compiled alike."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """``function`` in numba's nopython mode, without the GIL, kept on disk between processes if it can be.

    Arguments are int64, float64 and bool arrays and scalars; integers wrap beyond 63 bits and indices out of
    range are not noticed. Numba notices a change of the file that holds ``function``, not of the kernels that
    it calls from other files: kernels that call each other belong into one file.
    """
    try:
        made = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # no directory that it could be kept in: compiled anew in every process
        made = numba.njit(nogil=True)(function)
    return cast(Kernel, made)
