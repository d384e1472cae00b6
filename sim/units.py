"""The only conversions: time is ``int`` nanoseconds, size is ``int`` bytes."""

import math
import re
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import lru_cache
from itertools import groupby
from numbers import Real

from sim.errors import InputError

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MIB = 1 << 20
_MOST_RUNS = 8  # of ranks that stand in a row, named in a sentence

_SIZE_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": MIB, "gib": 1 << 30}
_RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def divide_half_even(numerator: int, denominator: int) -> int:
    """Nearest integer to ``numerator / denominator`` (denominator > 0), half to even, exactly."""
    quotient, remainder = divmod(numerator, denominator)
    return quotient + (2 * remainder + (quotient & 1) > denominator)


def median_ns(times: Sequence[int]) -> int:
    """Median of ints, half to even where two middle ones are averaged."""
    ordered = sorted(times)
    return divide_half_even(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2], 2)


@lru_cache(maxsize=4096)
def transfer_ns(num_bytes: int, bytes_per_s: float | None) -> int:
    """Time in ns to move ``num_bytes`` at ``bytes_per_s``; ``None`` is free. Half to even."""
    if bytes_per_s is None or num_bytes == 0:
        return 0
    rate_numerator, rate_denominator = bytes_per_s.as_integer_ratio()
    return divide_half_even(num_bytes * NS_PER_S * rate_denominator, rate_numerator)


def cap_bytes(cap_mb: float) -> int:
    """DDP's own conversion of ``bucket_cap_mb`` (MiB) to bytes: ``int(mb * 2**20)`` (A2.1)."""
    is_number = isinstance(cap_mb, Real) and not isinstance(cap_mb, bool)  # files and --set may hold anything
    if not is_number or not math.isfinite(cap_mb * MIB) or cap_mb < 0:
        raise InputError(f"bucket cap: {cap_mb!r} MiB is not legal; give a finite number >= 0")
    return int(cap_mb * MIB)


def _number_and_unit(text: str, what: str, units: dict[str, int]) -> tuple[float, int]:
    """A number, and what its unit stands for; 1 where it has none."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = {"": 1, **units}.get(match[2].lower(), 0) if match else 0
    if match is None or not unit or not math.isfinite(float(match[1]) * unit):
        legal = ", ".join(filter(None, units))
        raise InputError(
            f"{what}: {text!r} is not legal; give a finite number >= 0, alone or with a unit of {legal}"
        )
    return float(match[1]), unit


def parse_cap_mb(text: str) -> float:
    """A bucket cap in MiB: a bare number means MiB (torch's ``bucket_cap_mb``), or ``25MiB``."""
    number, unit = _number_and_unit(text, "bucket cap", {"": MIB, **_SIZE_UNITS})
    return number * unit / MIB


def parse_size(text: str, what: str = "size") -> int:
    """A size in bytes: ``4096``, ``4KiB``, ``256MiB``; ``what`` is what an error calls it."""
    return round(math.prod(_number_and_unit(text, what, _SIZE_UNITS)))


def parse_rate_bits(text: str) -> int:
    """A link rate in bit/s: ``4gbit``, ``500mbit`` (tc's own spelling)."""
    rate = round(math.prod(_number_and_unit(text, "rate", _RATE_UNITS)))
    if rate <= 0:
        raise InputError(f"rate: {text!r} is not legal; give a rate above 0, such as 4gbit")
    return rate


def in_ms(ns: float, spec: str = ".2f") -> str:
    """Nanoseconds as milliseconds under a heading that names the unit: ``12.34``; ``spec`` is a format's."""
    return f"{ns / NS_PER_MS:{spec}}"


def format_ms(ns: float) -> str:
    """Nanoseconds as milliseconds for people: ``12.34 ms``."""
    return f"{in_ms(ns)} ms"


def format_time(ns: float) -> str:
    """Microseconds up to a millisecond, else milliseconds: ``12.3 us``, ``12.34 ms``."""
    return f"{ns / 1000:.1f} us" if round(ns / 1000, 1) < 1000 else format_ms(ns)


def format_number(value: float, digits: int = 3) -> str:
    """A number for people, to so many digits and all of those before its point; never in powers of ten."""
    if not math.isfinite(value):
        return str(value)
    rounded = f"{value:.{digits}g}" if abs(value) < 10**digits - 0.5 else f"{value:.0f}"
    return f"{Decimal(rounded):f}"


def format_percent(share: float, digits: int = 1, *, sign: bool = False) -> str:
    """A share for people: ``12.5%``; with ``sign`` a plus, too.

    What is not quite 0 or 1 does not read so: it has up to four digits more.
    """
    for places in range(digits, digits + 5):
        text = f"{share + 0.0:{'+' if sign else ''}.{places}%}"
        if share in (-1, 0, 1) or abs(float(text[:-1])) not in (0, 100):
            return text
    if abs(share) > 1:
        return f"more than {round(share):.0%}"
    least = 10.0**-places
    return f"more than {100 - least:.{places}f}%" if abs(share) > 0.5 else f"less than {least:.{places}f}%"


def count_of(number: int, noun: str) -> str:
    """``1 bucket``, ``2 buckets``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_mib_range(low: float, high: float | None) -> str:
    """A range of MiB whose ends, as they read, lie in it: to three digits, or to as many as that takes.

    ``25.015`` to ``282.4`` reads ``25.1 to 282``; one number where one is in it; ``25.1 up`` without an end.
    """
    exact = [Decimal(repr(float(end))) for end in (low, low if high is None else high)]
    for digits in range(3, 18):  # which is all that a float has
        up, down = Context(digits, ROUND_CEILING).plus(exact[0]), Context(digits, ROUND_FLOOR).plus(exact[1])
        if high is None or up <= down:
            break
    least, most = f"{up.normalize():f}", f"{down.normalize():f}"
    if high is None:
        return f"{least} up"
    return least if least == most else f"{least} to {most}"


def format_sizes(sizes: Iterable[int]) -> str:
    """The least and the greatest of ``sizes``; one where both read alike: ``1 MiB to 25 MiB``, ``4 MiB``."""
    told = sorted(sizes)
    least, most = format_size(told[0]), format_size(told[-1])
    return least if least == most else f"{least} to {most}"


def format_size(num_bytes: float) -> str:
    """Bytes for people, in binary units: ``25.0 MiB``."""
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(round(value)) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{format_number(value)} {unit}"
        value /= 1024
    return f"{format_number(value)} GiB"


def format_ranks(ranks: Iterable[int]) -> str:
    """``rank 3``, of several ``ranks 0 to 7, 12``: neighbours by their ends, and of many the first few."""
    all_ranks = sorted(set(ranks))
    in_rows = groupby(enumerate(all_ranks), key=lambda pair: pair[1] - pair[0])  # neighbours differ alike
    runs = [[rank for _, rank in row] for _, row in in_rows]
    told = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    left = sum(map(len, runs[_MOST_RUNS:]))
    more = f" and {left} more" if left else ""
    return f"rank{'s' * (len(all_ranks) != 1)} {', '.join(told[:_MOST_RUNS])}{more}"
