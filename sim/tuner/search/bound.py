"""A lower bound on ``sync_end_ns`` that needs no search: the certificate."""

from fractions import Fraction
from itertools import pairwise
from math import ceil

import numpy as np

from sim.clock.arrays import Floats, Ints
from sim.clock.program import FULL_SPEED
from sim.costs.service_time import rise_beyond
from sim.nouns.hardware import CurvePoint
from sim.tuner.search.problem import Problem

Line = tuple[Fraction, Fraction]  # (ns per collective, ns per byte)
_HALF = Fraction(1, 2)  # ns, by which a service time may be rounded


def affine_minorants(curve: tuple[CurvePoint, ...]) -> list[Line]:
    """Lines alpha + beta * num_bytes that no collective beats at any size, alpha and beta >= 0.

    As alpha >= 0, buckets that hold S bytes in all cost at least alpha + beta * S, however they are
    cut. The curve need not be monotone or concave: constant below its first point, and beyond its
    last as ``rise_beyond`` says.
    """
    points = [(0, curve[0].duration_ns), *((p.num_bytes, p.duration_ns) for p in curve)]
    end_slope = Fraction(*rise_beyond(curve))
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


def least_service_ns(lines: list[Line], num_bytes: int, at_most: int) -> Fraction:
    """Least total service time in ns of any buckets that hold ``num_bytes`` in at most ``at_most`` buckets.

    A real service time is rounded to the nearest ns, so that the bound is half a ns lower for each bucket.
    """
    best = Fraction(0)
    for per_collective, per_byte in lines:
        rounding = _HALF if per_collective >= _HALF else _HALF * at_most
        best = max(best, per_collective + per_byte * num_bytes - rounding)
    return best


def least_services_ns(problem: Problem) -> Floats:
    """``least_service_ns`` of all gradients from each place on, and 0 at the end; low by a float's error."""
    rest = np.append(np.cumsum(problem.wire[::-1])[::-1], 0).astype(np.float64)
    at_most = np.arange(len(problem), -1, -1)
    best = np.zeros(len(problem) + 1)
    for per_collective, per_byte in affine_minorants(problem.curve):
        rounding = 0.5 if per_collective >= _HALF else 0.5 * at_most
        best = np.maximum(best, float(per_collective) + float(per_byte) * rest - rounding)
    best[-1] = 0.0
    return best * (1 - 1e-12)


def lower_bound_ns(problem: Problem) -> int:
    """No contiguous partition synchronises before this, in ns from the start of backward; needs no search.

    Of a machine without small messages, as a ``Scorer`` has it, and as is true of ``exact_optimum``.

    For every gradient i: what is ready from i on cannot start before i is ready and copied in, and
    must all be sent; the last of it must be copied back. And: nothing ends before the compute lane
    and all copies back. With several channels, work passes at most at the rate of all channels together.
    Where backward and collectives slow each other down, what is sent beside backward makes it longer and
    takes longer: the bound takes the best share of both. Other slow-downs only add, and are left out; so do
    ends that are rounded up.
    """
    machine, count, keys = problem.machine, len(problem), int(problem.run.max()) + 1
    copy_out = int(problem.copy_back.sum())
    lane_end = problem.lane_end + (machine.launch_cost_ns * keys if machine.launch_blocks_compute else 0)
    bound = lane_end + copy_out
    if problem.curve_ns.any():
        # Copies are in bucket order: with a single run, the last follows every collective.
        last = np.zeros(count) if keys > 1 else np.full(count, float(problem.copy_back[-1]))
        last[-1] = float(problem.copy_back[-1])
        start = problem.ready + machine.launch_cost_ns
        ends = _shared(problem, start, least_services_ns(problem)[:-1], lane_end, last, copy_out)
        bound = max(bound, ceil(float(np.max(ends)) - 1e-3))
    return bound


def _shared(
    problem: Problem, start: Ints, work: Floats, lane_end: int, last: Floats, copy_out: int
) -> Floats:
    """When ``work`` ns of collectives that begin at ``start`` can at the earliest be over and copied back.

    Some of them run beside what is left of the lane, which may slow both down.

    In ``beside`` ns of the lane's time with a collective under way ``beside * slow`` of the work is done, and
    of the lane's ``beside * own``. Between its corners the end is linear in ``beside``.
    """
    rates = problem.machine.computing
    free = problem.together / FULL_SPEED
    slow = max(rates.alone, problem.machine.channels * rates.shared) / FULL_SPEED
    own = rates.lane / FULL_SPEED
    lane = np.maximum(0.0, lane_end - start)
    most = np.minimum(lane / own, work / slow)

    def over(beside: Floats) -> Floats:
        longer = beside * (1 - own)
        left = work - beside * slow
        sent = np.where(left > 1e-9 * work, start + lane + longer + left / free, start + beside)
        return np.maximum(sent + last, lane_end + longer + copy_out)

    # Where the two lines of the maximum cross, as far as that is within reach.
    cross = np.clip((start + lane + work / free + last - lane_end - copy_out) * free / slow, 0.0, most)
    corners = [over(beside) for beside in (np.zeros_like(most), most, cross)]
    return np.asarray(np.min(corners, axis=0))
