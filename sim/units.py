"""The only conversions: time is ``int`` nanoseconds, size is ``int`` bytes."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal

from sim.errors import InputError

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
MIB = 1 << 20
_MOST_RUNS = 8  # of ranks that stand in a row, named in a sentence

_SIZE_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_RATE_UNITS = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def divide_half_even(numerator: int, denominator: int) -> int:
    """Nearest integer to ``numerator / denominator`` (denominator > 0), half to even, exactly."""
    quotient, remainder = divmod(numerator, denominator)
    twice = 2 * remainder
    if twice > denominator or (twice == denominator and quotient & 1):
        quotient += 1
    return quotient


def median_ns(times: Sequence[int]) -> int:
    """Median of ints, half to even where two middle ones are averaged."""
    ordered = sorted(times)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return divide_half_even(ordered[middle - 1] + ordered[middle], 2)


def transfer_ns(num_bytes: int, bytes_per_s: float | None) -> int:
    """Time in ns to move ``num_bytes`` at ``bytes_per_s``; ``None`` is free. Half to even."""
    if bytes_per_s is None or num_bytes == 0:
        return 0
    rate_numerator, rate_denominator = bytes_per_s.as_integer_ratio()
    return divide_half_even(num_bytes * NS_PER_S * rate_denominator, rate_numerator)


def cap_bytes(cap_mb: float) -> int:
    """DDP's own conversion of ``bucket_cap_mb`` (MiB) to bytes: ``int(mb * 2**20)`` (A2.1)."""
    if not math.isfinite(cap_mb * MIB) or cap_mb < 0:
        raise InputError(f"bucket cap: {cap_mb!r} MiB is not legal; give a finite number >= 0")
    return int(cap_mb * MIB)


def _number_and_unit(text: str, what: str, units: dict[str, int]) -> tuple[float, str]:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None or match[2].lower() not in units:
        legal = ", ".join(unit for unit in units if unit)
        raise InputError(
            f"{what}: {text!r} is not legal; give a number >= 0, alone or with a unit of {legal}"
        )
    number, unit = float(match[1]), match[2].lower()
    if not math.isfinite(number * units[unit]):
        raise InputError(f"{what}: {text!r} is not legal; it is beyond what a float can hold")
    return number, unit


def parse_cap_mb(text: str) -> float:
    """A bucket cap in MiB: a bare number means MiB (torch's ``bucket_cap_mb``), or ``25MiB``."""
    number, unit = _number_and_unit(text, "bucket cap", _SIZE_UNITS)
    return number if unit == "" else number * _SIZE_UNITS[unit] / MIB


def parse_size(text: str, what: str = "size") -> int:
    """A size in bytes: ``4096``, ``4KiB``, ``256MiB``; ``what`` is what an error calls it."""
    number, unit = _number_and_unit(text, what, _SIZE_UNITS)
    return round(number * _SIZE_UNITS[unit])


def parse_rate_bits(text: str) -> int:
    """A link rate in bit/s: ``4gbit``, ``500mbit`` (tc's own spelling)."""
    number, unit = _number_and_unit(text, "rate", _RATE_UNITS)
    rate = round(number * _RATE_UNITS[unit])
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


def format_mib_range(low: float, high: float | None) -> str:
    """A range of MiB whose ends, as they read, lie in it: to three digits, or to as many as that takes.

    ``25.015`` to ``282.4`` reads ``25.1 to 282``; one number where one is in it; ``25.1 up`` without an end.
    """
    for digits in range(3, 18):
        up = _rounded(low, digits, math.ceil)
        down = up if high is None else _rounded(high, digits, math.floor)
        if low <= up <= down <= (up if high is None else high):
            break
    else:
        up, down = low, low if high is None else high
    if high is None:
        return f"{_plain(up)} up"
    return _plain(up) if up == down else f"{_plain(up)} to {_plain(down)}"


def _rounded(value: float, digits: int, rounding: Callable[[float], int]) -> float:
    if not value:
        return value
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return round(rounding(value * 10.0**places) / 10.0**places, max(0, places))


def _plain(value: float) -> str:
    """A number as it is, without an exponent and without zeros at its end."""
    text = f"{Decimal(repr(float(value))):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


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
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    told = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    left = sum(map(len, runs[_MOST_RUNS:]))
    more = f" and {left} more" if left else ""
    is_one = len(runs) == 1 and len(runs[0]) == 1
    return f"rank{'' if is_one else 's'} {', '.join(told[:_MOST_RUNS])}{more}"
