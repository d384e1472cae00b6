"""Small checks that the nouns share; every message names the field, the value and what is legal."""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from sim.errors import InputError

_RISING = ("min_ns", "p10_ns", "median_ns", "p90_ns", "max_ns"), ("low_ns", "high_ns")
MAX_INT = 2**62  # ns: 146 years; bytes: 4 EiB. Beyond it a number is a mistake, not a measurement.


def at_least(field: str, value: int | None, least: int) -> None:
    """``value`` is None or an int in [least, 2**62]."""
    if value is not None and not (type(value) is int and least <= value <= MAX_INT):
        integer(field, value, least)


def are_at_least(values: Collection[int], least: int) -> bool:
    """Whether each of ``values`` is an int in [least, 2**62], and none None."""
    if not set(map(type, values)) <= {int}:
        return False
    return not values or (least <= min(values) and max(values) <= MAX_INT)


def all_at_least(field: str, values: Collection[int], least: int) -> None:
    """``at_least`` of each."""
    if not are_at_least(values, least):
        for value in values:
            at_least(field, value, least)


def integer(field: str, value: Any, least: int) -> None:
    """``value`` is an int in [least, 2**62]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{field}: {value!r} is not legal; give an integer >= {least}")
    if not least <= value <= MAX_INT:
        raise InputError(f"{field}: {value} is not legal; give an integer >= {least} (at most 2**62)")


def number(field: str, value: Any) -> int | float:
    """``value`` is a finite number, and no truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{field}: {value!r:.60} is not legal; give a number")
    return value


def factor(field: str, value: float, least: float) -> None:
    """``value`` is a finite float in [least, 2**62]."""
    if not (math.isfinite(value) and least <= value <= MAX_INT):
        raise InputError(f"{field}: {value} is not legal; give a finite number >= {least} (at most 2**62)")


def rate(field: str, value: float | None) -> None:
    """``value`` is None or a finite float >= 1: slower than a byte a second is a mistake."""
    if value is not None and not (math.isfinite(value) and value >= 1):
        raise InputError(f"{field}: {value} is not legal; give a finite number >= 1, or null for free")


def one_of(field: str, value: object, legal: Collection[str]) -> None:
    """``value`` is one of these words."""
    if value not in legal:
        raise InputError(f"{field}: {value!r} is not legal; give one of {', '.join(legal)}")


def no_duplicates(field: str, values: Sequence[int]) -> None:
    """No value twice."""
    seen: set[int] = set()
    for value in values:
        if value in seen:
            raise InputError(f"{field}: {value} occurs twice; each may occur once")
        seen.add(value)


def scatter(field: str, known: Any) -> None:
    """Quantiles in ``known``, and in the objects in it, are numbers that do not fall."""
    if not isinstance(known, dict):
        return
    for name, value in known.items():
        scatter(f"{field}.{name}", value)
    for names in _RISING:
        told = [(name, known[name]) for name in names if name in known]
        for name, value in told:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"{field}.{name}: {value!r} is not legal; give a number")
        for (below, low), (above, high) in pairwise(told):
            if low > high:
                raise InputError(
                    f"{field}.{below}: {low} is not legal; {above} is {high}, and must not be less"
                )


def curve_scatter(field: str, known: Any) -> None:
    """``known`` is an object of objects, one a size: what is counted or a time is an integer >= 0."""
    if not isinstance(known, dict):
        raise InputError(f"{field}: {known!r} is not legal; give an object, one member a size")
    for size, point in known.items():
        if not isinstance(point, dict):
            raise InputError(
                f"{field}.{size}: {point!r} is not legal; give an object with count, p10_ns and p90_ns"
            )
        for name, value in point.items():
            if name == "count" or name.endswith("_ns"):
                integer(f"{field}.{size}.{name}", value, 0)
