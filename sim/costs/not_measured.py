"""What of a machine is not measured: ranges, readings of one step, and where times of a curve are guesses.

A time is a guess far outside of the curve's sizes, far between two of them, and where the curve bends.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isqrt, log
from typing import Any, Literal, NamedTuple

from sim.costs.service_time import rise_beyond, service_ns
from sim.nouns.hardware import SCALARS, Curve, CurvePoint, Hardware
from sim.units import format_number, format_size

FAR = 4  # within so many times of a measured size a time is taken as it is
_KINK = 0.3  # by how much less time grows with size than it did before, as powers
_STRAIGHT = 0.1  # a stretch of the curve whose slope a neighbour has, to this share, is a line
_WORTH = 1.1  # a guess that is open by less is none
_LEAST = 0.1  # of a time that is a guess: less nobody would believe
# A line through the last two points that agrees with the last point's rate goes on, but for what messages
# that do not fit into caches any more may lose; where the two disagree either may be true.
_GOES_ON, _LOSES, _DISAGREES = 0.9, 0.8, 0.5


class Guess(NamedTuple):
    """At ``num_bytes`` a time is ``low`` to ``high`` times what the curve says; elsewhere straight to it."""

    where: Literal["below", "between", "beyond"]
    num_bytes: int
    low: float
    high: float
    words: str


def guesses(curve: Curve, least: int, most: int) -> tuple[Guess, ...]:
    """Where times of messages of ``least`` to ``most`` bytes are guesses; a time of 0 is none."""
    return tuple(
        guess
        for guess in _guesses(curve, least, most)
        if guess.high > _WORTH * guess.low and service_ns(curve, guess.num_bytes)
    )


def open_ranges(ranges: dict[str, Any]) -> dict[str, Any]:
    """Those of ``spread.ranges`` that leave something open: between equal ends a value is known exactly."""
    return {name: known for name, known in ranges.items() if known["low"] < known["high"]}


def _guesses(curve: Curve, least: int, most: int) -> Iterator[Guess]:
    first, last = curve[0], curve[-1]
    far = FAR if len(curve) > 1 else 1
    if least * far < first.num_bytes:
        low = max(_LEAST, least / first.num_bytes)
        yield Guess("below", least, low, 1.0, f"below {format_size(first.num_bytes)}")
    before = 0.0
    rates = [(b.duration_ns - a.duration_ns) / (b.num_bytes - a.num_bytes) for a, b in pairwise(curve)]
    for at, (a, b) in enumerate(pairwise(curve)):
        if not a.num_bytes or not a.duration_ns or not b.duration_ns:
            continue
        power = log(b.duration_ns / a.duration_ns) / log(b.num_bytes / a.num_bytes)
        beside = rates[max(0, at - 1) : at] + rates[at + 1 : at + 2]
        is_straight = any(abs(one - rates[at]) <= _STRAIGHT * abs(rates[at]) for one in beside)
        if most > a.num_bytes and least < b.num_bytes and not is_straight:
            yield from _between(a, b, bends=before - power > _KINK)
        before = power
    if most > far * last.num_bytes > 0:
        rise, run = rise_beyond(curve)
        rises = rates[-1] / (rise / run) if rates and rise else 0.0
        whole = service_ns(curve, most)
        share = (whole - last.duration_ns) / whole if whole else 0.0
        low, high = min(_GOES_ON, max(_LEAST, rises)), 1 / min(_LOSES, max(_DISAGREES, rises))
        words = f"above {format_size(last.num_bytes)}"
        yield Guess("beyond", most, 1 - share * (1 - low), 1 + share * (high - 1), words)


def _between(a: CurvePoint, b: CurvePoint, *, bends: bool) -> Iterator[Guess]:
    """In the middle of a gap it takes at least as long as at the rate of its end, and at most as long as at
    the rate of its begin; where nothing bends also not less than its begin, and not more than its end."""
    middle = isqrt(a.num_bytes * b.num_bytes)
    if not a.num_bytes < middle < b.num_bytes or not (bends or b.num_bytes > FAR * a.num_bytes):
        return
    straight = service_ns((a, b), middle)
    low, high = b.duration_ns * middle / b.num_bytes, a.duration_ns * middle / a.num_bytes
    if not bends:
        low, high = max(low, min(a.duration_ns, b.duration_ns)), min(high, max(a.duration_ns, b.duration_ns))
    words = f"between {format_size(a.num_bytes)} and {format_size(b.num_bytes)}"
    yield Guess("between", middle, min(1.0, low / straight), max(1.0, high / straight), words)


def not_measured(hardware: Hardware, sizes: Sequence[int]) -> tuple[str, ...]:
    """In words, what is not measured of a machine that all-reduces messages of ``sizes`` bytes."""
    sent = [size for size in sizes if size > 0]
    if hardware.world_size == 1 or not sent:
        return ()
    spread = hardware.spread
    return words_of(
        open_ranges(spread.get("ranges", {})),
        spread.get("readings", ()),
        guesses(hardware.all_reduce, min(sent), max(sent)),
    )


def words_of(
    ranges: dict[str, Any], readings: Sequence[dict[str, Any]], sizes: Sequence[Guess]
) -> tuple[str, ...]:
    """Ranges, readings and guesses in words."""
    curves = (known for name, known in ranges.items() if name in ("all_reduce", "in_step"))
    ends = ((format_number(known["low"]), format_number(known["high"])) for known in curves)
    said = [f"all-reduces of {low} to {high} times their time" for low, high in ends]
    if any(name in SCALARS for name in ranges):  # ``own_costs.told_unmeasured`` has their figures
        said.append("what DDP itself costs here (see the notes)")
    if sizes:
        more = f" and in {len(sizes) - 1} more gaps of the curve" if len(sizes) > 1 else ""
        said.append(f"times of messages {sizes[0].words}{more}")
    if len(readings) > 1:
        said.append(f"the measured step read as {' or '.join(one['what'] for one in readings)}")
    return tuple(said)
