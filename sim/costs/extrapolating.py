"""Measured curves taken to other sizes and numbers of ranks: a model gives the shape, the points correct it.

At a measured point nothing is changed. Between points the ratio of measured to computed times is
interpolated, in the logarithms of ratio and size; beyond them, and at other numbers of ranks, it is carried,
and what is not known grows with the distance. No line is fitted: where the model is wrong by the same factor
everywhere, a single point mends it. The model is NCCL's own, without what links give less (``paths``): that
the points say themselves.

The fast end of a range is never faster than a host's ports at line rate, through which all that other hosts
need must go; links within a host set no such limit, since NCCL counts less than their data sheets. Beyond the
last measured point only what is added to it is in doubt, so that a range begins there without a step.

The shape is NCCL's, and so is how far it was seen to miss. Small messages of gloo are outside of what is
known: from two hosts to four up to 128 KiB they take 3 to 9 times as long as extrapolated, beyond the range.

A point that takes as long as a larger one, or longer, stays as it is and says nothing of its neighbours: it
lies where the library or the network goes over to another protocol. It counts as left out.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.costs.nccl.choosing import nccl_ns
from sim.costs.nccl.fabric import Fabric
from sim.costs.nccl.hardware import uncertainty
from sim.costs.neighbours import wire_bytes
from sim.errors import InputError
from sim.nouns.hardware import Curve, CurvePoint
from sim.units import NS_PER_S

COVERED = 0.9  # the share of left-out points that the stated range holds
ENOUGH = 9  # of so many left-out points 0.9 have one beyond them
# Logarithm of how far three points miss nine in ten of the others, on machines that no prediction is tested
# on (tests/costs/measured_paths.py): what is taken at least while fewer than ``ENOUGH`` are left out.
SHAPE = 0.16
# The line rate of a port over what is counted of it, at most: frames of 1538 bytes carry 1448 of TCP's data
# (sim.costs.topology.links.tcp_port); NCCL counts 12 of 12.5 GB/s (src/graph/topo.h).
LINE_RATE = 1538 / 1448


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCurve:
    """A curve, and the fabric that it was measured on."""

    fabric: Fabric
    curve: Curve

    def __post_init__(self) -> None:
        if self.fabric.world_size < 2:
            raise InputError("fabric.world_size: 1 is not legal; one rank measures nothing")
        if not self.curve:
            raise InputError("curve: an empty list is not legal; give at least one point")
        for number, point in enumerate(self.curve):
            if point.duration_ns == 0:
                raise InputError(f"curve.{number}.duration_ns: 0 is not legal; give a measured time")
        for number, (before, after) in enumerate(pairwise(self.curve), start=1):
            if after.num_bytes <= before.num_bytes:
                raise InputError(
                    f"curve.{number}.num_bytes: {after.num_bytes} is not legal; sizes must ascend without "
                    f"repeats, and the point before has {before.num_bytes}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A time at a size, and the range in which a measurement may be expected."""

    num_bytes: int
    duration_ns: int
    least_ns: int
    greatest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ratios:
    """Logarithm of measured over computed by log2 of size, and how far it is known (logarithms too).

    ``alone`` are those of points that say nothing of their neighbours, ``steady`` how far the ratio is known
    without them.
    """

    ranks: int
    octaves: tuple[float, ...]
    logs: tuple[float, ...]
    alone: dict[float, float]
    doubt: tuple[float, float]
    steady: tuple[float, float]

    def at(self, num_bytes: int) -> float:
        """The ratio's logarithm: linear in log2 of size between points, constant beyond."""
        return self.at_octave(_octave(num_bytes))

    def at_octave(self, octave: float) -> float:
        """``at`` by log2 of size."""
        between = _interpolated(self.octaves, self.logs, octave)
        return self.alone.get(octave, between)

    def beyond(self, num_bytes: int) -> float:
        """How far the ratio may wander from the last point out to ``num_bytes``, as a random walk in octaves.

        Its step is the change between the last two points, taken as at least an octave apart.
        """
        if len(self.logs) < 2:
            return 0.0
        octave = _octave(num_bytes)
        if octave < self.octaves[0]:
            away, first, second = self.octaves[0] - octave, 0, 1
        elif octave > self.octaves[-1]:
            away, first, second = octave - self.octaves[-1], -1, -2
        else:
            return 0.0
        apart = max(abs(self.octaves[first] - self.octaves[second]), 1.0)
        return abs(self.logs[first] - self.logs[second]) * math.sqrt(away / apart)


def extrapolate(
    measured: Sequence[MeasuredCurve], fabric: Fabric, sizes: Iterable[int], collective: str = "all_reduce"
) -> tuple[Estimate, ...]:
    """Times of ``collective`` on ``fabric`` at ``sizes`` in bytes, ascending, from what was measured.

    A curve of the very same fabric is taken as it is. Otherwise curves of one host stand for one host and
    those of several for several, where there are such; between two numbers of ranks ratios are interpolated,
    beyond them the nearest is carried.

    The range comes from leaving points out, one at a time, and is at least that of other machines while few
    can be left out; with fewer than three points it is the model's own. Where ratios are carried to other
    ranks, points that go over to another protocol do not count in it. For every doubling of ranks it widens
    by what the ratio changed from one measured number of ranks to the next, or with a single one by the
    model's own.

    Raises:
        InputError: nothing measured, no size, or two curves of as many ranks and hosts.
    """
    wanted = sorted(set(sizes))
    if not wanted:
        raise InputError("sizes: none; give at least one size in bytes")
    if fabric.world_size == 1:
        return tuple(Estimate(num_bytes=size, duration_ns=0, least_ns=0, greatest_ns=0) for size in wanted)
    if not measured:
        raise InputError("measured: none; give at least one curve, or compute it by sim.costs.nccl")
    places = [(each.fabric.world_size, each.fabric.hosts) for each in measured]
    if len(set(places)) != len(places):
        raise InputError(f"measured: two curves of the same ranks and hosts among {sorted(places)}; give one")
    same = [each for each in measured if each.fabric == fabric]
    if same:
        return tuple(_on_itself(same[0], _ratios(same[0], collective), collective, size) for size in wanted)
    alike = [each for each in measured if (each.fabric.hosts > 1) == (fabric.hosts > 1)] or list(measured)
    known = sorted((_ratios(each, collective) for each in alike), key=lambda each: each.ranks)
    return tuple(_carried(known, fabric, collective, size) for size in wanted)


def _on_itself(measured: MeasuredCurve, ratios: _Ratios, collective: str, size: int) -> Estimate:
    """On the very same fabric: exact at its points; beyond the last only what is added is in doubt."""
    for point in measured.curve:
        if point.num_bytes == size:
            exact = point.duration_ns
            return Estimate(num_bytes=size, duration_ns=exact, least_ns=exact, greatest_ns=exact)
    beyond = ratios.beyond(size)
    doubt = ratios.doubt[0] + beyond, ratios.doubt[1] + beyond
    last = measured.curve[-1]
    known = last if size > last.num_bytes else None
    return _estimate(measured.fabric, collective, size, ratios.at(size), doubt, known)


def _carried(known: Sequence[_Ratios], fabric: Fabric, collective: str, size: int) -> Estimate:
    """From other numbers of ranks, ascending; the nearest ones of them."""
    ranks = [math.log2(each.ranks) for each in known]
    at = math.log2(fabric.world_size)
    log = _interpolated(ranks, [each.at(size) for each in known], at)
    nearest = min(known, key=lambda each: abs(math.log2(each.ranks) - at))
    doublings = abs(math.log2(nearest.ranks) - at)
    beyond = nearest.beyond(size)
    down, up = nearest.steady[0] + beyond, nearest.steady[1] + beyond
    if len(known) > 1:
        each_down = each_up = _drift(known)
    else:
        each_down, each_up = _of_the_model(fabric)
    doubt = (math.hypot(down, each_down * doublings), math.hypot(up, each_up * doublings))
    return _estimate(fabric, collective, size, log, doubt)


def _drift(known: Sequence[_Ratios]) -> float:
    """How much the ratio changes from one measured number of ranks to the next, for each doubling."""
    changes = []
    for fewer, more in pairwise(known):
        doublings = math.log2(more.ranks / fewer.ranks) if more.ranks > fewer.ranks else 1.0
        low = max(fewer.octaves[0], more.octaves[0])
        high = min(fewer.octaves[-1], more.octaves[-1])
        measured = {*fewer.octaves, *fewer.alone, *more.octaves, *more.alone}
        shared = sorted(each for each in measured if low <= each <= high)
        changes += [abs(fewer.at_octave(each) - more.at_octave(each)) / doublings for each in shared or [low]]
    return _quantile(changes)


def _ratios(measured: MeasuredCurve, collective: str) -> _Ratios:
    along: dict[float, float] = {}
    alone: dict[float, float] = {}
    for point, rising in zip(measured.curve, _rising(measured.curve), strict=True):
        computed = nccl_ns(measured.fabric, collective, point.num_bytes)
        kept = along if rising else alone
        kept[_octave(point.num_bytes)] = math.log(point.duration_ns / computed)
    octaves, logs = tuple(along), tuple(along.values())
    left_out = [
        abs(logs[one] - _interpolated(octaves[:one] + octaves[one + 1 :], logs[:one] + logs[one + 1 :], at))
        for one, at in enumerate(octaves)
        if 0 < one < len(octaves) - 1
    ]
    off = [abs(log - _interpolated(octaves, logs, octave)) for octave, log in alone.items()]
    of_the_model = _of_the_model(measured.fabric)
    return _Ratios(
        ranks=measured.fabric.world_size,
        octaves=octaves,
        logs=logs,
        alone=alone,
        doubt=_doubt(left_out + off) if left_out + off else of_the_model,
        steady=_doubt(left_out) if left_out else of_the_model,
    )


def _doubt(left_out: Sequence[float]) -> tuple[float, float]:
    known = _quantile(left_out)
    return (known if len(left_out) >= ENOUGH else max(known, SHAPE),) * 2


def _rising(curve: Curve) -> list[bool]:
    """Which points take less time than every larger one."""
    rising, least = [], math.inf
    for point in reversed(curve):
        rising.append(point.duration_ns < least)
        least = min(least, point.duration_ns)
    return rising[::-1]


def _estimate(
    fabric: Fabric,
    collective: str,
    size: int,
    log: float,
    doubt: tuple[float, float],
    known: CurvePoint | None = None,
) -> Estimate:
    """The model's time by the ratio, and a range of what it takes beyond a ``known`` smaller message."""
    duration = round(nccl_ns(fabric, collective, size) * math.exp(log))
    exact, wire = 0, _ports_ns(fabric, collective, size)
    if known is not None:
        exact = min(known.duration_ns, duration)
        wire -= _ports_ns(fabric, collective, known.num_bytes)
    added = duration - exact
    return Estimate(
        num_bytes=size,
        duration_ns=duration,
        least_ns=exact + round(max(added * math.exp(-doubt[0]), min(wire, added))),
        greatest_ns=exact + round(added * math.exp(doubt[1])),
    )


def _ports_ns(fabric: Fabric, collective: str, size: int) -> float:
    """What a host's ports take at least, by any algorithm: as in a ring of hosts; half if switches reduce."""
    if fabric.inter is None or fabric.hosts == 1:
        return 0.0
    sent = wire_bytes(collective, size, fabric.hosts) / (2 if fabric.sharp else 1)
    return sent * NS_PER_S / (fabric.inter.bytes_per_s * LINE_RATE)


def _of_the_model(fabric: Fabric) -> tuple[float, float]:
    least, greatest = uncertainty(fabric)
    return -math.log(least), math.log(greatest)


def _octave(num_bytes: int) -> float:
    return math.log2(max(num_bytes, 1))


def _interpolated(along: Sequence[float], values: Sequence[float], at: float) -> float:
    """Linear between points, constant beyond; of equal ones the last."""
    position = bisect_right(along, at)
    if position == 0:
        return values[0]
    if position == len(along):
        return values[-1]
    low, high = along[position - 1], along[position]
    return values[position - 1] + (values[position] - values[position - 1]) * (at - low) / (high - low)


def _quantile(values: Sequence[float]) -> float:
    """The least of ``values`` that ``COVERED`` of them do not exceed."""
    return sorted(values)[math.ceil(COVERED * len(values)) - 1]
