"""Whether a measured curve can be what the link carries: points that fall, jump or scatter."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import Any

from sim.nouns.hardware import Curve, CurvePoint
from sim.units import format_ms, format_size

# An interval to either side that is narrow enough. Small messages over gloo scatter by some tenths of a
# millisecond on any machine; that is in the tuner's intervals, and no reason to measure again.
_WITHIN, _WITHIN_NS = 0.03, 500_000
_JUMP = 1.25  # times what the points on both sides lead to


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulPoint:
    """A point of a curve that is not to be relied on, and why, in words without its size."""

    num_bytes: int
    why: str


def doubtful_points(curve: Curve, spread: Mapping[str, Any]) -> tuple[DoubtfulPoint, ...]:
    """Points whose 95 % interval is wide (``spread`` has ``low_ns`` and ``high_ns``, by size), that take less
    than a smaller message, or far more than the points on both sides lead to; one reason each, by size.
    """
    found: dict[int, str] = {}
    for before, after in pairwise(curve):
        if after.duration_ns < (1 - _WITHIN) * before.duration_ns - _WITHIN_NS:
            found[before.num_bytes] = (
                f"takes {format_ms(before.duration_ns)}, and {format_size(after.num_bytes)} take "
                f"{format_ms(after.duration_ns)}"
            )
    for before, point, after in zip(curve, curve[1:], curve[2:], strict=False):
        expected = _between(before, point, after)
        if expected and point.duration_ns > _JUMP * expected + _WITHIN_NS:
            found.setdefault(
                point.num_bytes,
                f"takes {format_ms(point.duration_ns)}, where the points on both sides lead to "
                f"{format_ms(expected)}",
            )
    for point in curve:
        known = spread.get(str(point.num_bytes))
        if not isinstance(known, dict) or not {"low_ns", "high_ns"} <= set(known):
            continue
        low, high = known["low_ns"], known["high_ns"]
        if max(point.duration_ns - low, high - point.duration_ns) > max(
            _WITHIN * point.duration_ns, _WITHIN_NS
        ):
            found[point.num_bytes] = (
                f"scatters: {format_ms(low)} to {format_ms(high)} with 95 % confidence" + _stalls(known)
            )
    return tuple(DoubtfulPoint(num_bytes=size, why=found[size]) for size in sorted(found))


def _stalls(known: Mapping[str, Any]) -> str:
    if not known.get("stalled_share"):
        return ""
    return (
        f"; {known['stalled_share']:.0%} of its messages were held up, for {format_ms(known['stalled_ns'])} "
        f"instead of {format_ms(known['clean_ns'])}"
    )


def _between(before: CurvePoint, point: CurvePoint, after: CurvePoint) -> float:
    """What the points on both sides lead to, straight between logarithms; 0 where one takes no time."""
    if not (before.num_bytes and before.duration_ns and after.duration_ns):
        return 0.0
    share = log(point.num_bytes / before.num_bytes) / log(after.num_bytes / before.num_bytes)
    return exp((1 - share) * log(before.duration_ns) + share * log(after.duration_ns))
