"""Small checks that the nouns share; every message names the field, the value and what is legal."""

import math
from collections.abc import Sequence

from sim.errors import InputError

MAX_INT = 2**62  # ns: 146 years; bytes: 4 EiB. Beyond it a number is a mistake, not a measurement.


def at_least(field: str, value: int | None, least: int) -> None:
    """``value`` is None or an int in [least, 2**62]."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{field}: {value!r} is not legal; give an integer >= {least}")
    if not least <= value <= MAX_INT:
        raise InputError(f"{field}: {value} is not legal; give an integer >= {least} (at most 2**62)")


def factor(field: str, value: float, least: float) -> None:
    """``value`` is a finite float in [least, 2**62]."""
    if not (math.isfinite(value) and least <= value <= MAX_INT):
        raise InputError(f"{field}: {value} is not legal; give a finite number >= {least} (at most 2**62)")


def rate(field: str, value: float | None) -> None:
    """``value`` is None or a finite float >= 1: slower than a byte a second is a mistake."""
    if value is not None and not (math.isfinite(value) and value >= 1):
        raise InputError(f"{field}: {value} is not legal; give a finite number >= 1, or null for free")


def no_duplicates(field: str, values: Sequence[int]) -> None:
    """No value twice."""
    seen: set[int] = set()
    for value in values:
        if value in seen:
            raise InputError(f"{field}: {value} occurs twice; each may occur once")
        seen.add(value)
