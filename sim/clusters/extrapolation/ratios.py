"""Ratios of measured to computed times, size by size, and which points tell nothing about their neighbours.

A point that takes as long as a larger one, or longer, lies where the library or the network switches
protocol, or was measured cold. A first point was measured cold, too, if it takes far longer than the others
allow, by a line with a constant through their measured times over the model's. Such points keep their values,
count as left out, and are named.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.clusters.nccl.computed import uncertainty
from sim.clusters.nccl.fabric import Fabric
from sim.clusters.nccl.model import nccl_ns
from sim.errors import InputError
from sim.nouns.hardware import Curve
from sim.units import format_number, format_size

COVERED = 0.9  # the share of left-out points that the stated range holds
ENOUGH = 9  # the fewest left-out points whose greatest miss holds a further one with a chance of 0.9
# By how much at most, as a logarithm, three points miss nine in ten of the others, on machines that no
# prediction is tested on (tests/clusters/measured_paths.py). Fewer points than ``ENOUGH`` leave no less.
SHAPE = 0.16
_OTHERS = 3  # points that it takes to judge a first one
_NEAR = 3  # left-out points next to a size: they alone count there, if they lie closer than all do


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
class Ratios:
    """Logarithms of measured over computed times, by log2 of size, and how far off they may be (logarithms,
    too).

    ``logs`` are those at ``octaves``. ``alone``: those of points that tell nothing about their neighbours.
    ``left_out``: how far each point, other than the two ends, is from what the others say of it;
    ``alone_off``: the same of the points in ``alone``.
    """

    fabric: Fabric
    octaves: tuple[float, ...]
    logs: tuple[float, ...]
    alone: dict[float, float]
    left_out: dict[float, float]
    alone_off: dict[float, float]

    @property
    def ranks(self) -> int:
        """How many ranks were measured."""
        return self.fabric.world_size

    def at(self, num_bytes: int) -> float:
        """The ratio's logarithm: linear in log2 of size between points, constant beyond."""
        return self.at_octave(octave_of(num_bytes))

    def at_octave(self, octave: float) -> float:
        """``at`` by log2 of size."""
        return self.alone.get(octave, interpolated(self.octaves, self.logs, octave))

    def doubt(self, num_bytes: int, *, alone: bool) -> tuple[float, float]:
        """How far the ratio may be off at ``num_bytes``, down and up (logarithms).

        Nine in ten points, each left out in turn, lie no farther than that from what the others say. If those
        nearest to this size lie closer, they count instead. Fewer points than ``ENOUGH`` give ``SHAPE`` at
        least. ``alone``: whether points that tell nothing about their neighbours count, too.
        """
        octave = octave_of(num_bytes)
        off = {**self.left_out, **(self.alone_off if alone else {})}
        if not off:
            known = of_the_model(self.fabric)
        else:
            everywhere = quantile(list(off.values()))
            near = sorted(off, key=lambda each: abs(each - octave))[:_NEAR]
            here = max(SHAPE, *(off[each] for each in near))
            known = (min(everywhere, here) if len(off) >= ENOUGH else max(everywhere, SHAPE),) * 2
        beyond = self.beyond(num_bytes)
        return known[0] + beyond, known[1] + beyond

    def beyond(self, num_bytes: int) -> float:
        """How far the ratio may wander from the last point out to ``num_bytes``, as a random walk in octaves.

        Its step is the change between the last two points, taken as at least an octave apart.
        """
        if len(self.logs) < 2:
            return 0.0
        octave = octave_of(num_bytes)
        if octave < self.octaves[0]:
            away, first, second = self.octaves[0] - octave, 0, 1
        elif octave > self.octaves[-1]:
            away, first, second = octave - self.octaves[-1], -1, -2
        else:
            return 0.0
        apart = max(abs(self.octaves[first] - self.octaves[second]), 1.0)
        return abs(self.logs[first] - self.logs[second]) * math.sqrt(away / apart)


def ratios_of(measured: MeasuredCurve, collective: str) -> Ratios:
    """The ratios of a curve. How far they are known comes from leaving points out, one at a time."""
    computed = _computed(measured, collective)
    silent = _silent(measured.curve, computed)
    along: dict[float, float] = {}
    alone: dict[float, float] = {}
    for point, model_ns in zip(measured.curve, computed, strict=True):
        kept = alone if point.num_bytes in silent else along
        kept[octave_of(point.num_bytes)] = math.log(point.duration_ns / model_ns)
    octaves, logs = tuple(along), tuple(along.values())
    left_out = {
        at: abs(
            logs[one] - interpolated(octaves[:one] + octaves[one + 1 :], logs[:one] + logs[one + 1 :], at)
        )
        for one, at in enumerate(octaves)
        if 0 < one < len(octaves) - 1
    }
    return Ratios(
        fabric=measured.fabric,
        octaves=octaves,
        logs=logs,
        alone=alone,
        left_out=left_out,
        alone_off={octave: abs(log - interpolated(octaves, logs, octave)) for octave, log in alone.items()},
    )


def outlying(measured: MeasuredCurve, collective: str) -> dict[int, str]:
    """Sizes in bytes of points that say nothing of their neighbours, and why."""
    return _silent(measured.curve, _computed(measured, collective))


def of_the_model(fabric: Fabric) -> tuple[float, float]:
    """How far the model is off without any measurement: logarithms down and up."""
    least, greatest = uncertainty(fabric)
    return -math.log(least), math.log(greatest)


def _computed(measured: MeasuredCurve, collective: str) -> list[int]:
    return [nccl_ns(measured.fabric, collective, point.num_bytes) for point in measured.curve]


def _silent(curve: Curve, computed: Sequence[int]) -> dict[int, str]:
    silent: dict[int, str] = {}
    rising: list[int] = []  # from the last to the first
    for place in range(len(curve) - 1, -1, -1):
        point = curve[place]
        if rising and point.duration_ns >= curve[rising[-1]].duration_ns:
            larger = curve[rising[-1]].num_bytes
            silent[point.num_bytes] = (
                f"takes as long as {format_size(larger)}, or longer: another protocol, or measured cold"
            )
        else:
            rising.append(place)
    first, *others = reversed(rising)
    if len(others) >= _OTHERS:
        times = [curve[place].duration_ns for place in others]
        most = _most(computed[first], [computed[place] for place in others], times)
        if curve[first].duration_ns > most:
            silent[curve[first].num_bytes] = (
                f"takes {format_number(curve[first].duration_ns / most, 2)} times what the other sizes "
                f"allow: measured cold"
            )
    return dict(sorted(silent.items()))


def _most(model_ns: float, others: Sequence[int], times: Sequence[int]) -> float:
    """The longest time that a first point may take, by a line through the others' times over the model's.

    The line is a least-squares fit in which each point's miss counts as a share of its time; its constant is
    not below 0. At the first point it may be off by the largest of these shares, taken of the time of the
    next point, and by ``SHAPE``.
    """
    weights = [1 / time**2 for time in times]
    total = sum(weights)
    mean_model = sum(w * model for w, model in zip(weights, others, strict=True)) / total
    mean_time = sum(w * time for w, time in zip(weights, times, strict=True)) / total
    spread = sum(w * (model - mean_model) ** 2 for w, model in zip(weights, others, strict=True))
    together = sum(
        w * (model - mean_model) * (time - mean_time)
        for w, model, time in zip(weights, others, times, strict=True)
    )
    slope = max(together / spread, 0.0) if spread else 0.0
    constant = max(mean_time - slope * mean_model, 0.0)
    off = max(abs(constant + slope * m - time) / time for m, time in zip(others, times, strict=True))
    return (constant + slope * model_ns + off * times[0]) * math.exp(SHAPE)


def octave_of(num_bytes: int) -> float:
    """log2 of a size in bytes; 0 bytes count as one."""
    return math.log2(max(num_bytes, 1))


def interpolated(along: Sequence[float], values: Sequence[float], at: float) -> float:
    """The value at ``at``: linear between points, constant beyond them; of points at one place the last."""
    position = bisect_right(along, at)
    if position == 0:
        return values[0]
    if position == len(along):
        return values[-1]
    low, high = along[position - 1], along[position]
    return values[position - 1] + (values[position] - values[position - 1]) * (at - low) / (high - low)


def quantile(values: Sequence[float]) -> float:
    """The least of ``values`` that ``COVERED`` of them do not exceed."""
    return sorted(values)[math.ceil(COVERED * len(values)) - 1]
