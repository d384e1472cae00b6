"""Measured curves taken to other sizes and numbers of ranks: a model gives the shape, the points correct it.

At a measured point nothing is changed. Between points the ratio of measured to computed times is
interpolated, in the logarithms of ratio and size (``ratios``); beyond them it stays as it is. Measurements on
several numbers of ranks tell how it changes with them (``across_ranks``). What is not known grows with the
distance. No line is fitted: if the model is wrong by the same factor everywhere, a single point mends it. The
model is NCCL's own; that links give less than it assumes (``paths``) is in the points.

The fast end of a range is never faster than a host's ports at line rate, through which all that other hosts
need must go; links within a host set no such limit, since NCCL counts less than their data sheets. Between
two points the range covers the ratios of both. Beyond the last measured point only the time that is added to
that point's is in doubt, so that the range begins there without a step.

The shape is NCCL's, and so is how far it was seen to miss. Small messages of gloo are outside of what is
known: from two hosts to four up to 128 KiB they take 3 to 9 times as long as extrapolated, beyond the range.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sim.clusters.extrapolation.across_ranks import carried, drift_of
from sim.clusters.extrapolation.ratios import MeasuredCurve, Ratios, octave_of, ratios_of
from sim.clusters.nccl.fabric import Fabric
from sim.clusters.nccl.model import nccl_ns
from sim.clusters.neighbours import wire_bytes
from sim.errors import InputError
from sim.nouns.hardware import CurvePoint
from sim.units import NS_PER_S

# The line rate of a port over what is counted of it, at most: frames of 1538 bytes carry 1448 of TCP's data
# (sim.clusters.machines.tcp_port); NCCL counts 12 of 12.5 GB/s (src/graph/topo.h).
LINE_RATE = 1538 / 1448


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedPoint:
    """A time at a size, and the range in which a measurement may be expected."""

    num_bytes: int
    duration_ns: int
    least_ns: int
    greatest_ns: int


def extrapolate(
    measured: Sequence[MeasuredCurve], fabric: Fabric, sizes: Iterable[int], collective: str = "all_reduce"
) -> tuple[EstimatedPoint, ...]:
    """Times of ``collective`` on ``fabric`` at ``sizes`` in bytes, ascending, from what was measured.

    A curve of the very same fabric is taken as it is. Otherwise curves of one host are used for one host and
    those of several for several, if there are such. Between two measured numbers of ranks the ratios of
    measured to computed times are interpolated; beyond them they go on changing as they did between them. If
    only one number of ranks was measured, its ratios are carried as they are.

    The range comes from leaving points out, one at a time, and is at least that of other machines while few
    can be left out; with fewer than three points it is the model's own. For other numbers of ranks it leaves
    out points where the protocol changes. It widens with every doubling of ranks: by the scatter, over sizes,
    of how the ratio changed; with a single measured number of ranks by the model's own range. Apart from the
    doubt in the nearest ratio it is never wider than the model's without any measurement.

    Raises:
        InputError: nothing measured, no size, or two curves of as many ranks and hosts.
    """
    wanted = sorted(set(sizes))
    if not wanted:
        raise InputError("sizes: none; give at least one size in bytes")
    if fabric.world_size == 1:
        return tuple(
            EstimatedPoint(num_bytes=size, duration_ns=0, least_ns=0, greatest_ns=0) for size in wanted
        )
    if not measured:
        raise InputError("measured: none; give at least one curve, or compute it by sim.clusters.nccl")
    places = [(each.fabric.world_size, each.fabric.hosts) for each in measured]
    if len(set(places)) != len(places):
        raise InputError(f"measured: two curves of the same ranks and hosts among {sorted(places)}; give one")
    same = [each for each in measured if each.fabric == fabric]
    if same:
        known = ratios_of(same[0], collective)
        return tuple(_on_itself(same[0], known, collective, size) for size in wanted)
    alike = [each for each in measured if (each.fabric.hosts > 1) == (fabric.hosts > 1)] or list(measured)
    others = sorted((ratios_of(each, collective) for each in alike), key=lambda each: each.ranks)
    drift = drift_of(others) if len({each.ranks for each in others}) > 1 else None
    found = []
    for size in wanted:
        each = carried(others, fabric, collective, size, drift)
        found.append(_estimate(fabric, collective, size, each.log, (each.down, each.up)))
    return tuple(found)


def _on_itself(measured: MeasuredCurve, ratios: Ratios, collective: str, size: int) -> EstimatedPoint:
    """A time on the very same fabric: exact at points; beyond the last only the added time is in doubt."""
    for point in measured.curve:
        if point.num_bytes == size:
            exact = point.duration_ns
            return EstimatedPoint(num_bytes=size, duration_ns=exact, least_ns=exact, greatest_ns=exact)
    log, known_to = ratios.at(size), ratios.doubt(size, alone=True)
    around = _around(ratios, octave_of(size))
    down, up = max(known_to[0], log - min(around)), max(known_to[1], max(around) - log)
    last = measured.curve[-1]
    known = last if size > last.num_bytes else None
    return _estimate(measured.fabric, collective, size, log, (down, up), known)


def _around(ratios: Ratios, octave: float) -> Sequence[float]:
    """Logarithms of the ratios of the points on both sides of ``octave``; beyond the ends of one point."""
    place = bisect_right(ratios.octaves, octave)
    return ratios.logs[max(place - 1, 0) : place + 1]


def _estimate(
    fabric: Fabric,
    collective: str,
    size: int,
    log: float,
    doubt: tuple[float, float],
    known: CurvePoint | None = None,
) -> EstimatedPoint:
    """The model's time times ``exp(log)``, and its range; the time of a ``known`` smaller message is sure."""
    duration = round(nccl_ns(fabric, collective, size) * math.exp(log))
    exact, wire = 0, _ports_ns(fabric, collective, size)
    if known is not None:
        exact = min(known.duration_ns, duration)
        wire -= _ports_ns(fabric, collective, known.num_bytes)
    added = duration - exact
    return EstimatedPoint(
        num_bytes=size,
        duration_ns=duration,
        least_ns=exact + round(max(added * math.exp(-doubt[0]), min(wire, added))),
        greatest_ns=exact + round(added * math.exp(doubt[1])),
    )


def _ports_ns(fabric: Fabric, collective: str, size: int) -> float:
    """The least ns of a host's ports, by any algorithm: as in a ring of hosts, or half if switches reduce."""
    if fabric.inter is None or fabric.hosts == 1:
        return 0.0
    sent = wire_bytes(collective, size, fabric.hosts) / (2 if fabric.sharp else 1)
    return sent * NS_PER_S / (fabric.inter.bytes_per_s * LINE_RATE)
