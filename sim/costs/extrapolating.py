"""Measured curves taken to other sizes and numbers of ranks: a model gives the shape, the points correct it.

At a measured point nothing is changed. Between points the ratio of measured to computed times is
interpolated, in the logarithms of ratio and size; beyond them, and at other numbers of ranks, it is carried,
and what is not known grows with the distance. No line is fitted: where the model is wrong by the same factor
everywhere, a single point mends it.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sim.costs.nccl.choosing import collective_ns
from sim.costs.nccl.fabric import Fabric
from sim.costs.nccl.hardware import uncertainty
from sim.errors import InputError
from sim.nouns.hardware import Curve, CurvePoint, Hardware

COVERED = 0.9  # the share of left-out points that the stated range holds


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
    """Logarithm of measured over computed by log2 of size, and how far it is known (logarithms too)."""

    ranks: int
    octaves: tuple[float, ...]
    logs: tuple[float, ...]
    doubt: tuple[float, float]

    def at(self, num_bytes: int) -> float:
        """The ratio's logarithm: linear in log2 of size between points, constant beyond."""
        return _interpolated(self.octaves, self.logs, _octave(num_bytes))

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

    The range comes from leaving points out, one at a time; with fewer than three it is the model's own. For
    every doubling of ranks it widens by what the ratio changed from one measured number of ranks to the next,
    or with a single one by the model's own.

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
        ratios = _ratios(same[0], collective)
        points = {point.num_bytes: point.duration_ns for point in same[0].curve}
        return tuple(
            _estimate(fabric, collective, size, ratios.at(size), _widened(ratios, size), points.get(size))
            for size in wanted
        )
    alike = [each for each in measured if (each.fabric.hosts > 1) == (fabric.hosts > 1)] or list(measured)
    known = sorted((_ratios(each, collective) for each in alike), key=lambda each: each.ranks)
    return tuple(_carried(known, fabric, collective, size) for size in wanted)


def extrapolated_hardware(
    measured: Sequence[MeasuredCurve], fabric: Fabric, name: str, sizes: Iterable[int]
) -> Hardware:
    """Hardware with the all-reduce curve of ``extrapolate``; ``spread`` keeps the range, without a count."""
    estimates = extrapolate(measured, fabric, sizes)
    spread: dict[str, Any] = {
        str(each.num_bytes): {
            "min_ns": each.least_ns,
            "max_ns": each.greatest_ns,
            "of": "what extrapolating leaves open; nine points in ten that were left out lie within",
        }
        for each in estimates
        if each.least_ns < each.greatest_ns
    }
    return Hardware(
        name=name,
        world_size=fabric.world_size,
        all_reduce=tuple(
            CurvePoint(num_bytes=each.num_bytes, duration_ns=each.duration_ns) for each in estimates
        ),
        spread={"all_reduce": spread},
        provenance={
            "source": "measured curves taken to other sizes or ranks by the shape of NCCL's cost model",
            "measured": [
                {
                    "world_size": each.fabric.world_size,
                    "hosts": each.fabric.hosts,
                    "points": len(each.curve),
                }
                for each in measured
            ],
        },
    )


def _carried(known: Sequence[_Ratios], fabric: Fabric, collective: str, size: int) -> Estimate:
    """From other numbers of ranks, ascending; the nearest ones of them."""
    ranks = [math.log2(each.ranks) for each in known]
    at = math.log2(fabric.world_size)
    log = _interpolated(ranks, [each.at(size) for each in known], at)
    nearest = min(known, key=lambda each: abs(math.log2(each.ranks) - at))
    doublings = abs(math.log2(nearest.ranks) - at)
    down, up = _widened(nearest, size)
    if len(known) > 1:
        each_down = each_up = _drift(known)
    else:
        each_down, each_up = _of_the_model(fabric)
    doubt = (math.hypot(down, each_down * doublings), math.hypot(up, each_up * doublings))
    return _estimate(fabric, collective, size, log, doubt, None)


def _drift(known: Sequence[_Ratios]) -> float:
    """How much the ratio changes from one measured number of ranks to the next, for each doubling."""
    changes = []
    for fewer, more in pairwise(known):
        doublings = math.log2(more.ranks / fewer.ranks) if more.ranks > fewer.ranks else 1.0
        low = max(fewer.octaves[0], more.octaves[0])
        high = min(fewer.octaves[-1], more.octaves[-1])
        shared = sorted(each for each in {*fewer.octaves, *more.octaves} if low <= each <= high)
        changes += [
            abs(_interpolated(fewer.octaves, fewer.logs, each) - _interpolated(more.octaves, more.logs, each))
            / doublings
            for each in shared or [low]
        ]
    return _quantile(changes)


def _ratios(measured: MeasuredCurve, collective: str) -> _Ratios:
    octaves = tuple(_octave(point.num_bytes) for point in measured.curve)
    logs = tuple(
        math.log(point.duration_ns / collective_ns(measured.fabric, collective, point.num_bytes))
        for point in measured.curve
    )
    left_out = [
        abs(logs[one] - _interpolated(octaves[:one] + octaves[one + 1 :], logs[:one] + logs[one + 1 :], at))
        for one, at in enumerate(octaves)
        if 0 < one < len(octaves) - 1
    ]
    doubt = (_quantile(left_out),) * 2 if left_out else _of_the_model(measured.fabric)
    return _Ratios(ranks=measured.fabric.world_size, octaves=octaves, logs=logs, doubt=doubt)


def _widened(ratios: _Ratios, size: int) -> tuple[float, float]:
    beyond = ratios.beyond(size)
    return ratios.doubt[0] + beyond, ratios.doubt[1] + beyond


def _estimate(
    fabric: Fabric, collective: str, size: int, log: float, doubt: tuple[float, float], exact: int | None
) -> Estimate:
    if exact is not None:
        return Estimate(num_bytes=size, duration_ns=exact, least_ns=exact, greatest_ns=exact)
    computed = collective_ns(fabric, collective, size)
    return Estimate(
        num_bytes=size,
        duration_ns=round(computed * math.exp(log)),
        least_ns=round(computed * math.exp(log - doubt[0])),
        greatest_ns=round(computed * math.exp(log + doubt[1])),
    )


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
