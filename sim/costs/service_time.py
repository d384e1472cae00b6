"""Service time of one collective, from a measured curve."""

from bisect import bisect_right

from sim.nouns.collective import CollectiveKind
from sim.nouns.hardware import Curve, Hardware
from sim.units import divide_half_even


def service_ns(curve: Curve, num_bytes: int) -> int:
    """Service time in ns of a collective of ``num_bytes``, alone on its channel.

    Linear between points, constant below the first, beyond the last with the slope of the last two
    (never negative); a single point is constant. Rounded to the nearest ns, half to even.
    """
    position = bisect_right(curve, num_bytes, key=lambda point: point.num_bytes)
    if position == 0 or len(curve) == 1:
        return curve[0].duration_ns
    beyond = position == len(curve)
    before, after = (curve[-2], curve[-1]) if beyond else (curve[position - 1], curve[position])
    rise = after.duration_ns - before.duration_ns
    if beyond and rise < 0:
        return after.duration_ns
    run = after.num_bytes - before.num_bytes
    return divide_half_even(before.duration_ns * run + rise * (num_bytes - before.num_bytes), run)


def collective_ns(hardware: Hardware, kind: CollectiveKind, num_bytes: int) -> int | None:
    """Service time in ns of one collective of all ranks; None where ``hardware`` has no curve of its kind."""
    if hardware.world_size == 1:
        return 0
    curve = hardware.curve(kind)
    return None if curve is None else service_ns(curve, num_bytes)


def all_reduce_ns(hardware: Hardware, num_bytes: int) -> int:
    """Service time in ns of one all-reduce; world size 1 costs nothing."""
    return 0 if hardware.world_size == 1 else service_ns(hardware.all_reduce, num_bytes)
