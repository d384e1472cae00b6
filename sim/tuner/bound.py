"""A lower bound on ``sync_end_ns`` that needs no search: the certificate."""

from fractions import Fraction
from itertools import pairwise
from math import ceil

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.tuner.partitions import runs
from sim.tuner.prefixes import Prefixes
from sim.units import transfer_ns

Line = tuple[Fraction, Fraction]  # (ns per collective, ns per byte)


def affine_minorants(curve: tuple[CurvePoint, ...]) -> list[Line]:
    """Lines alpha + beta * num_bytes that no collective beats at any size, alpha and beta >= 0.

    As alpha >= 0, buckets that hold S bytes in all cost at least alpha + beta * S, however they are
    cut. The curve need not be monotone or concave: constant below its first point, and beyond its
    last with the slope of the last two, never negative.
    """
    points = [(0, curve[0].duration_ns), *((p.num_bytes, p.duration_ns) for p in curve)]
    end_slope = Fraction(0)
    if len(curve) > 1:
        rise = curve[-1].duration_ns - curve[-2].duration_ns
        end_slope = max(Fraction(0), Fraction(rise, curve[-1].num_bytes - curve[-2].num_bytes))
    slopes = {Fraction(0), end_slope}
    for (x0, y0), (x1, y1) in pairwise(_lower_hull(points)):
        slopes.add(min(end_slope, max(Fraction(0), Fraction(y1 - y0, x1 - x0))))
    lines = []
    for slope in slopes:
        intercept = min(y - slope * x for x, y in points)
        if intercept >= 0:
            lines.append((intercept, slope))
    ratios = [Fraction(y, x) for x, y in points if x > 0]
    lines.append((Fraction(0), min([*ratios, end_slope])))
    return lines


def _lower_hull(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    hull: list[tuple[int, int]] = []
    for x, y in sorted(set(points)):
        if hull and hull[-1][0] == x:
            continue  # sorted: the lower one came first
        while len(hull) >= 2:
            (x0, y0), (x1, y1) = hull[-2], hull[-1]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    return hull


def least_service_ns(
    lines: list[Line], num_bytes: int, at_most: int, rounded: Fraction = Fraction(1, 2)
) -> Fraction:
    """Least total service time in ns of any buckets that hold ``num_bytes`` in at most ``at_most`` buckets.

    Each real service time is rounded to the nearest ns: up to half a ns a bucket is given away, and
    ``rounded`` ns in all where what is stretched is rounded again at its end.
    """
    best = Fraction(0)
    for per_collective, per_byte in lines:
        rounding = rounded if per_collective >= rounded else rounded * at_most
        best = max(best, per_collective + per_byte * num_bytes - rounding)
    return best


def lower_bound_ns(workload: Workload, hardware: Hardware) -> int:
    """No contiguous partition synchronises before this, in ns from the start of backward.

    For every gradient i: what is ready from i on cannot start before i is ready and copied in, and
    must all be sent; the last of it must be copied back. And: nothing ends before the compute lane
    and all copies back. Slow-downs only add; with several channels, work passes at most at the rate
    of all channels together.
    """
    prefixes = Prefixes(workload, hardware)
    count, copied, wire = len(prefixes.order), prefixes.copied, prefixes.wire
    keys = len(runs(workload))
    launch = hardware.launch_cost_ns
    compute_end = prefixes.compute_end + (launch * keys if prefixes.launches_block else 0)
    rate = hardware.copy_out_bytes_per_s
    copy_out = Fraction(0)
    if rate is not None:
        copy_out = copied[-1] * 10**9 / Fraction(rate) - Fraction(count, 2)
    bound = Fraction(compute_end) + max(Fraction(0), copy_out)
    if hardware.world_size > 1:
        lines = affine_minorants(hardware.all_reduce)
        together = max(Fraction(1), hardware.comm_channels / Fraction(hardware.channel_slowdown))
        rounded = Fraction(1 if hardware.comm_channels > 1 and hardware.channel_slowdown != 1 else 0.5)
        # Copies are in bucket order: with a single run, the last follows every collective.
        last_copy = transfer_ns(copied[-1] - copied[-2], rate)
        for place in range(count):
            service = least_service_ns(lines, wire[-1] - wire[place], count - place, rounded) / together
            tail = last_copy if keys == 1 or place == count - 1 else 0
            bound = max(bound, prefixes.ready[place] + launch + service + tail)
    return ceil(bound)
