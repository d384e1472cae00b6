"""Hardware that was not measured, from measurements of other sizes, ranks or clusters.

NCCL's cost model gives the shape of a curve, and measured points correct it. At a measured point nothing is
changed. Between points the ratio of measured to computed times is interpolated, in the logarithms of ratio
and size; beyond them, and on other numbers of ranks, it is carried as it is. No line is fitted: if the model
is wrong by the same factor everywhere, a single point mends it. A point that takes as long as a larger one,
or longer, lies where the library switches protocol, or was measured cold: it keeps its value and says nothing
of its neighbours.

How far off that may be comes from leaving points out, and grows with every doubling of ranks. Beyond the last
measured point only the time that is added to that point's is in doubt.

The shape is NCCL's, and so is how far it was seen to miss. Small messages of gloo are outside of what is
known: from two hosts to four up to 128 KiB they take 3 to 9 times as long as extrapolated, beyond the range.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from sim.clusters.computed import SIZES, uncertainty
from sim.clusters.fabric import Fabric, fabric_of
from sim.clusters.nccl_model import collective_ns
from sim.errors import InputError
from sim.nouns.checks import MAX_INT, no_duplicates
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, MOST_FACTOR, Curve, CurvePoint, Hardware
from sim.units import format_sizes

COVERED = 0.9  # the share of left-out points that the stated range holds
# By how much at most, as a logarithm, three points miss nine in ten of the others, on machines that no
# prediction is tested on (tests/clusters/published_fabrics.py).
SHAPE = 0.16
_OF_THE_LINK = ("backend", "device", "device_type")  # between what it was measured, whatever its size


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedPoint:
    """A time at a size, and the range in which a measurement may be expected."""

    num_bytes: int
    duration_ns: int
    least_ns: int
    greatest_ns: int


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """A curve of one collective, the fabric that it was measured on, and its ratios to computed times."""

    fabric: Fabric
    curve: Curve
    collective: str = "all_reduce"

    def __post_init__(self) -> None:
        if self.fabric.world_size < 2 or not all(point.duration_ns for point in self.curve):
            raise InputError(
                f"measured: {self.collective} has times of 0, or one rank; give times above 0 of two"
            )

    @cached_property
    def logs(self) -> dict[int, float]:
        """By size in bytes, the logarithm of measured over computed time."""
        times = {point.num_bytes: point.duration_ns for point in self.curve}
        model = partial(_model_ns, self.fabric, self.collective)
        return {size: math.log(ns / model(size)) for size, ns in times.items()}

    @cached_property
    def odd(self) -> list[int]:
        """Sizes that take as long as a larger one, or longer."""
        shortest_after = np.minimum.accumulate([point.duration_ns for point in self.curve[::-1]])[-2::-1]
        pairs = zip(self.curve, shortest_after, strict=False)
        return [point.num_bytes for point, shortest in pairs if point.duration_ns >= shortest]

    @cached_property
    def _telling(self) -> tuple[list[float], list[float]]:
        """log2 of size and logarithm of the ratio, of the points that say something of their neighbours."""
        kept = {size: log for size, log in self.logs.items() if size not in self.odd}
        return [_octave(size) for size in kept], list(kept.values())

    def log(self, num_bytes: int) -> float:
        """The ratio's logarithm at a size: linear in log2 of size between points, constant beyond."""
        if num_bytes in self.odd:
            return self.logs[num_bytes]
        return float(np.interp(_octave(num_bytes), *self._telling))

    def doubt(self, *, odd: bool) -> tuple[float, float]:
        """How far the ratio may be off, down and up (logarithms): nine in ten points, each left out in turn,
        lie no farther from what the others say, and ``SHAPE`` at least; of fewer than three points, as far as
        the model. ``odd``: whether the odd points count, too."""
        octaves, logs = self._telling
        off = [
            abs(self.logs[size] - float(np.interp(_octave(size), octaves, logs))) for size in self.odd if odd
        ]
        for one in range(1, len(octaves) - 1):
            others, theirs = (row[:one] + row[one + 1 :] for row in (octaves, logs))
            off.append(abs(logs[one] - float(np.interp(octaves[one], others, theirs))))
        if not off:
            return _of_the_model(self.fabric)
        return (max(SHAPE, sorted(off)[math.ceil(COVERED * len(off)) - 1]),) * 2


def _model_ns(fabric: Fabric, collective: str, num_bytes: int) -> int:
    return collective_ns(fabric, collective, num_bytes, is_delivered=False)


def _octave(num_bytes: int) -> float:
    return math.log2(max(num_bytes, 1))


def _of_the_model(fabric: Fabric) -> tuple[float, float]:
    """How far the model is off without any measurement: logarithms down and up."""
    least, greatest = uncertainty(fabric)
    return -math.log(least), math.log(greatest)


def extrapolate(
    measured: Sequence[MeasuredCurve], fabric: Fabric, sizes: Iterable[int]
) -> tuple[EstimatedPoint, ...]:
    """Times of a collective on ``fabric`` at ``sizes`` (bytes, in ascending order), from curves of it.

    A curve of the very same fabric is taken as it is. Otherwise curves of one host are used for one host and
    those of several for several, if there are such: between two numbers of ranks the ratio is interpolated,
    beyond them the nearest is carried. There the range widens with every doubling of ranks by the model's own
    range, and is, apart from the doubt in the ratio, no wider than that.

    Raises:
        InputError: two curves of as many ranks and hosts.
    """
    wanted = sorted(set(sizes))
    no_duplicates("measured: (ranks, hosts)", [(of.fabric.world_size, of.fabric.hosts) for of in measured])
    if fabric.world_size == 1:
        return tuple(_estimate(measured[0].collective, fabric, size, 0.0, (0.0, 0.0)) for size in wanted)
    if same := next((each for each in measured if each.fabric == fabric), None):
        return tuple(_on_itself(same, size) for size in wanted)
    alike = [each for each in measured if (each.fabric.hosts > 1) == (fabric.hosts > 1)] or measured
    alike = sorted(alike, key=lambda each: each.fabric.world_size)
    ranks, at = [math.log2(each.fabric.world_size) for each in alike], math.log2(fabric.world_size)
    near = min(range(len(alike)), key=lambda one: abs(ranks[one] - at))
    known, own = alike[near].doubt(odd=False), _of_the_model(fabric)
    widened = [math.hypot(doubt, most * (ranks[near] - at)) for doubt, most in zip(known, own, strict=True)]
    found = []
    for size in wanted:
        log = float(np.interp(at, ranks, [each.log(size) for each in alike]))
        # of the model the range begins at own, so that it lies log nearer or farther from what is carried
        down = min(widened[0], known[0] + max(0.0, own[0] + log))
        up = min(widened[1], known[1] + max(0.0, own[1] - log))
        found.append(_estimate(alike[near].collective, fabric, size, log, (down, up)))
    return tuple(found)


def _on_itself(measured: MeasuredCurve, size: int) -> EstimatedPoint:
    """A time on the very same fabric: exact at points; beyond the last only the added time is in doubt."""
    collective, fabric, last = measured.collective, measured.fabric, measured.curve[-1]
    for point in measured.curve:
        if point.num_bytes == size:
            exact = point.duration_ns
            return EstimatedPoint(num_bytes=size, duration_ns=exact, least_ns=exact, greatest_ns=exact)
    log, (down, up) = measured.log(size), measured.doubt(odd=True)
    octaves, logs = measured._telling
    place = bisect_right(octaves, _octave(size))
    around = logs[max(place - 1, 0) : place + 1]  # on both sides of the size
    doubt = max(down, log - min(around)), max(up, max(around) - log)
    return _estimate(collective, fabric, size, log, doubt, last.duration_ns if size > last.num_bytes else 0)


def _estimate(
    collective: str, fabric: Fabric, size: int, log: float, doubt: tuple[float, float], sure_ns: int = 0
) -> EstimatedPoint:
    """The model's time times ``exp(log)``, and its range, of which ``sure_ns`` at most are in no doubt."""
    duration = round(_model_ns(fabric, collective, size) * math.exp(log))
    sure = min(sure_ns, duration)
    ends = ((duration - sure) * math.exp(by) for by in (-doubt[0], doubt[1]))
    least, greatest = (min(sure + round(end), MAX_INT) for end in ends)
    return EstimatedPoint(num_bytes=size, duration_ns=duration, least_ns=least, greatest_ns=greatest)


def extrapolate_hardware(
    measured: Sequence[tuple[Cluster, Hardware]], cluster: Cluster, name: str | None = None
) -> Hardware:
    """The Hardware of ``cluster`` from Hardware measured on others, or on itself at a few sizes.

    Every curve is taken to the sizes that were measured and the powers of two from 8 B to 8 GiB, by
    ``extrapolate``; measured points of the cluster itself stay as they are. All that is no curve comes from
    the measurement with the nearest number of ranks; of two equally near, from the larger.
    ``spread`` keeps the range of each point, without a count, and ``provenance.odd_points`` names those that
    tell nothing about their neighbours, such as points measured cold.

    Args:
        measured: each cluster with what was measured there.
        cluster: the machine that is asked for, with its placement.
        name: of the result; None: the cluster's name and its ranks.

    Raises:
        InputError: nothing measured, a Hardware of other ranks than its cluster or of one, two of as many
            ranks and hosts, or clusters whose ranks no way joins.
    """
    if not measured:
        raise InputError("measured: none; give at least one cluster with its hardware")
    fabric, fabrics = fabric_of(cluster), [fabric_of(where) for where, _ in measured]
    hardware = [each for _, each in measured]
    for number, (where, each) in enumerate(zip(fabrics, hardware, strict=True)):
        if each.world_size != where.world_size:
            raise InputError(
                f"measured.{number}: {each.name!r} has world_size {each.world_size}, its cluster "
                f"{where.world_size} ranks; give the placement that was measured"
            )
    nearest = min(
        hardware, key=lambda each: (abs(math.log2(each.world_size / fabric.world_size)), -each.world_size)
    )
    spread = {key: known for key, known in nearest.spread.items() if key not in (*CURVES, "readings")}
    ranges = {key: known for key, known in spread.get("ranges", {}).items() if key not in CURVES}
    made: dict[str, Any] = dict.fromkeys(CURVES)
    odd: list[str] = []
    for collective in CURVES:
        curves = [
            MeasuredCurve(fabric=where, curve=curve, collective=collective)
            for where, each in zip(fabrics, hardware, strict=True)
            if (curve := each.curve(collective)) is not None
        ]
        if not curves:
            continue
        odd += [
            f"{collective} of {one.fabric.world_size} ranks: {len(one.odd)} of {len(one.curve)} sizes "
            f"({format_sizes(one.odd)}) take as long as a larger one, or longer: another protocol, or "
            f"measured cold"
            for one in curves
            if one.odd
        ]
        sizes = {*SIZES, *(point.num_bytes for one in curves for point in one.curve)}
        points = extrapolate(curves, fabric, sizes)
        made[collective] = tuple(
            CurvePoint(num_bytes=each.num_bytes, duration_ns=each.duration_ns) for each in points
        )
        spread[collective] = {
            str(each.num_bytes): {
                "min_ns": each.least_ns,
                "max_ns": each.greatest_ns,
                "of": "what extrapolating leaves open; nine points in ten that were left out lie within",
            }
            for each in points
            if each.least_ns < each.greatest_ns
        }
        if collective == "all_reduce":
            timed = [each for each in points if each.duration_ns]
            low = min((each.least_ns / each.duration_ns for each in timed), default=1.0)
            high = max((each.greatest_ns / each.duration_ns for each in timed), default=1.0)
            ranges[collective] = {"low": max(1 / MOST_FACTOR, low), "high": min(MOST_FACTOR, high)}
    return replace(
        nearest,
        name=name or f"{cluster.name}, {fabric.world_size} ranks",
        world_size=fabric.world_size,
        **made,
        spread={**spread, "ranges": ranges},
        provenance={
            **{key: nearest.provenance[key] for key in _OF_THE_LINK if key in nearest.provenance},
            "source": "measured curves taken to other sizes or ranks by the shape of NCCL's cost model",
            "not_known": [
                "curves of gloo have another shape: messages below 256 KiB may lie beyond the range"
            ],
            "measured": [
                {"name": each.name, "world_size": where.world_size, "hosts": where.hosts}
                for where, each in zip(fabrics, hardware, strict=True)
            ],
            "odd_points": odd,
            "other_than_curves": f"as in {nearest.name}",
        },
        extensions={},
    )
