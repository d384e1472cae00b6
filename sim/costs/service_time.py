"""Service time of one collective, from a measured curve."""

from bisect import bisect_right

from sim.nouns.collective import CollectiveKind
from sim.nouns.hardware import Curve, Hardware
from sim.units import divide_half_even


def service_ns(curve: Curve, num_bytes: int) -> int:
    """Service time in ns of a collective of ``num_bytes``, alone on its channel.

    Linear between points, constant below the first, beyond the last as ``rise_beyond`` says. Rounded to the
    nearest ns, half to even.
    """
    position = bisect_right(curve, num_bytes, key=lambda point: point.num_bytes)
    if position == 0:
        return curve[0].duration_ns
    before = curve[position - 1]
    if position == len(curve):
        rise, run = rise_beyond(curve)
    else:
        after = curve[position]
        rise, run = after.duration_ns - before.duration_ns, after.num_bytes - before.num_bytes
    return divide_half_even(before.duration_ns * run + rise * (num_bytes - before.num_bytes), run)


def rise_beyond(curve: Curve) -> tuple[int, int]:
    """By how many ns time rises in how many bytes beyond the last point of ``curve``.

    With the slope of the last two points, and at least with its bytes: no further byte is faster than those
    of the last point were. What a message without bytes takes, where that is a point, is not theirs.
    """
    last = curve[-1]
    empty_ns = curve[0].duration_ns if curve[0].num_bytes == 0 else 0
    rise, run = max(0, last.duration_ns - empty_ns), max(1, last.num_bytes)
    if len(curve) > 1:
        step_ns, step = last.duration_ns - curve[-2].duration_ns, last.num_bytes - curve[-2].num_bytes
        if step_ns / step >= rise / run:
            return step_ns, step
    return rise, run


def collective_ns(hardware: Hardware, kind: CollectiveKind, num_bytes: int) -> int | None:
    """Service time in ns of one collective of all ranks; None where ``hardware`` has no curve of its kind."""
    if hardware.world_size == 1:
        return 0
    curve = hardware.curve(kind)
    return None if curve is None else service_ns(curve, num_bytes)


def all_reduce_ns(hardware: Hardware, num_bytes: int) -> int:
    """Service time in ns of one all-reduce; world size 1 costs nothing."""
    return 0 if hardware.world_size == 1 else service_ns(hardware.all_reduce, num_bytes)
