"""Hardware of a cluster that was not measured, from measurements of others or of a few sizes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from sim.clusters.extrapolation.other_size import EstimatedPoint, extrapolate
from sim.clusters.extrapolation.ratios import MeasuredCurve, outlying
from sim.clusters.nccl.computed import SIZES
from sim.clusters.nccl.fabric import Fabric, fabric_of
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, MOST_FACTOR, Curve, CurvePoint, Hardware
from sim.units import format_size

_MOST_ODD = 3
_OF_THE_LINK = ("backend", "device", "device_type")  # between what it was measured, whatever its size


def extrapolate_hardware(
    measured: Sequence[tuple[Cluster, Hardware]], cluster: Cluster, name: str | None = None
) -> Hardware:
    """The Hardware of ``cluster`` from Hardware measured on others, or on itself at a few sizes.

    Every curve that was measured anywhere is taken to the sizes that were measured and the powers of two from
    8 B to 8 GiB, by ``extrapolate``; measured points of the cluster itself stay as they are. All that is no
    curve comes from the measurement with the nearest number of ranks; of two equally near, from the larger.
    ``spread`` keeps the range of each point, without a count. ``provenance.uncertainty`` states the range,
    and ``odd_points`` names the points that tell nothing about their neighbours, such as those measured cold.
    The shape of the curves is NCCL's. With gloo, messages below 256 KiB may lie outside of the range
    (``sim.clusters.extrapolation.other_size``).

    Args:
        measured: each cluster with what was measured there.
        cluster: the machine that is asked for, with its placement.
        name: of the result; None: the cluster's name and its ranks.

    Raises:
        InputError: nothing measured, a Hardware of other ranks than its cluster, two of as many ranks and
            hosts, a measurement of one rank, or clusters whose ranks no way joins.
        NotModelledError: a placement that the cost model does not know.
    """
    if not measured:
        raise InputError(
            "measured: none; give at least one cluster with its hardware, or use cluster_hardware"
        )
    fabric = fabric_of(cluster)
    fabrics = [_fabric(number, *each) for number, each in enumerate(measured)]
    hardware = [each for _, each in measured]
    found: dict[str, tuple[EstimatedPoint, ...]] = {}
    odd: list[str] = []
    for curve_name in CURVES:
        points = [getattr(each, curve_name) for each in hardware]
        curves = [
            MeasuredCurve(fabric=where, curve=curve)
            for where, curve in zip(fabrics, points, strict=True)
            if curve is not None
        ]
        for each in curves:
            odd += _odd(each, curve_name)
        if curves:
            sizes = {*SIZES, *(point.num_bytes for each in curves for point in each.curve)}
            found[curve_name] = extrapolate(curves, fabric, sizes, curve_name)
    nearest = min(hardware, key=lambda each: (_doublings(each.world_size, fabric), -each.world_size))
    kept = {key: known for key, known in nearest.spread.items() if key not in (*CURVES, "readings")}
    kept["ranges"] = {
        **{name: known for name, known in kept.get("ranges", {}).items() if name not in CURVES},
        **{name: _range(found[name]) for name in ("all_reduce",) if name in found},
    }
    changed: dict[str, Any] = {
        curve_name: _curve(found[curve_name]) if curve_name in found else None for curve_name in CURVES
    }
    return replace(
        nearest,
        name=name or f"{cluster.name}, {fabric.world_size} ranks",
        world_size=fabric.world_size,
        **changed,
        spread={**kept, **{curve_name: _spread(estimates) for curve_name, estimates in found.items()}},
        provenance={
            **{key: nearest.provenance[key] for key in _OF_THE_LINK if key in nearest.provenance},
            "source": "measured curves taken to other sizes or ranks by the shape of NCCL's cost model",
            "not_known": [
                "curves of gloo have another shape: messages below 256 KiB may lie beyond the range"
            ],
            "measured": [
                {
                    "name": each.name,
                    "world_size": where.world_size,
                    "hosts": where.hosts,
                    "points": {
                        curve_name: len(curve)
                        for curve_name in CURVES
                        if (curve := getattr(each, curve_name)) is not None
                    },
                }
                for where, each in zip(fabrics, hardware, strict=True)
            ],
            "odd_points": odd,
            "uncertainty": {curve_name: _uncertainty(estimates) for curve_name, estimates in found.items()},
            "other_than_curves": f"as in {nearest.name}",
        },
        extensions={},
    )


def _fabric(number: int, cluster: Cluster, hardware: Hardware) -> Fabric:
    fabric = fabric_of(cluster)
    if hardware.world_size != fabric.world_size:
        raise InputError(
            f"measured.{number}: {hardware.name!r} has world_size {hardware.world_size}, its cluster "
            f"{cluster.name!r} {fabric.world_size} ranks; give the placement that was measured"
        )
    return fabric


def _odd(measured: MeasuredCurve, curve_name: str) -> list[str]:
    """Sentences on points that tell nothing about their neighbours; of many only on the first few."""
    found = outlying(measured, curve_name)
    where = f"{curve_name} of {measured.fabric.world_size} ranks"
    said = [f"{where}: {format_size(size)} {why}" for size, why in list(found.items())[:_MOST_ODD]]
    if len(found) > _MOST_ODD:
        said.append(f"{where}: {len(found) - _MOST_ODD} more such sizes of {len(measured.curve)}")
    return said


def _doublings(ranks: int, fabric: Fabric) -> float:
    return abs(math.log2(ranks / fabric.world_size))


def _curve(estimates: Sequence[EstimatedPoint]) -> Curve:
    return tuple(CurvePoint(num_bytes=each.num_bytes, duration_ns=each.duration_ns) for each in estimates)


def _spread(estimates: Sequence[EstimatedPoint]) -> dict[str, dict[str, Any]]:
    return {
        str(each.num_bytes): {
            "min_ns": each.least_ns,
            "max_ns": each.greatest_ns,
            "of": "what extrapolating leaves open; nine points in ten that were left out lie within",
        }
        for each in estimates
        if each.least_ns < each.greatest_ns
    }


def _range(estimates: Sequence[EstimatedPoint]) -> dict[str, float]:
    """Least and greatest factor from any estimate to a measurement."""
    known = [each for each in estimates if each.duration_ns]
    low = min((each.least_ns / each.duration_ns for each in known), default=1.0)
    high = max((each.greatest_ns / each.duration_ns for each in known), default=1.0)
    return {"low": max(1 / MOST_FACTOR, low), "high": min(MOST_FACTOR, high)}


def _uncertainty(estimates: Sequence[EstimatedPoint]) -> dict[str, Any]:
    """Least and greatest factor from an estimate to a measurement, each the median over all sizes."""
    known = [each for each in estimates if each.duration_ns]
    if not known:
        return {"least": 1.0, "greatest": 1.0, "of": "one rank, which sends nothing"}
    return {
        "least": median(each.least_ns / each.duration_ns for each in known),
        "greatest": median(each.greatest_ns / each.duration_ns for each in known),
        "of": "measured over extrapolated, the median over sizes; each size's own is in spread",
    }
