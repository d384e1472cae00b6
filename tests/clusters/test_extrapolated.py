"""``sim.extrapolate_hardware``: from measured clusters to one that was not, with what is left open."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.machines import p4de, preset
from sim.clusters.nccl.computed import SIZES, curve
from sim.clusters.nccl.fabric import fabric_of
from sim.errors import InputError
from sim.formats.documents import parse_text, to_text
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, Curve, CurvePoint, Hardware
from tests.effort import tries

SPARSE = (2**20, 2**25, 2**30)


def slower(points: Curve, factor: float) -> Curve:
    return tuple(replace(point, duration_ns=round(point.duration_ns * factor)) for point in points)


def measured(cluster: Cluster, factor: float = 1.25, sizes: tuple[int, ...] = SPARSE) -> Hardware:
    """As the cost model, but slower by a factor, and with what is no curve."""
    fabric = fabric_of(cluster)
    return Hardware(
        name=f"measured {fabric.world_size}",
        world_size=fabric.world_size,
        all_reduce=slower(curve(fabric, "all_reduce", sizes), factor),
        all_gather=slower(curve(fabric, "all_gather", sizes), factor),
        launch_cost_ns=1000 + fabric.world_size,
        spread={"launch_cost_ns": {"count": 3}, "all_reduce": {"1": {"min_ns": 1}}},
    )


@given(st.lists(st.tuples(st.integers(1, 2**33), st.integers(1, 10**10)), min_size=1, max_size=6))
@settings(max_examples=tries(30))
def test_measured_points_stay_and_every_range_holds_its_point(points: list[tuple[int, int]]) -> None:
    known = tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(dict(points).items()))
    cluster = preset("pcie_box", gpus=4)
    given_hardware = Hardware(name="link", world_size=4, all_reduce=known)
    found = sim.extrapolate_hardware([(cluster, given_hardware)], cluster)
    assert set(known) <= set(found.all_reduce)
    assert {point.num_bytes for point in found.all_reduce} == {*SIZES, *(p.num_bytes for p in known)}
    for point in found.all_reduce:
        if point not in known:
            told = found.spread["all_reduce"].get(str(point.num_bytes))
            assert told is None or told["min_ns"] <= point.duration_ns <= told["max_ns"]
        else:
            assert str(point.num_bytes) not in found.spread["all_reduce"]


def test_the_stated_uncertainty_is_that_of_the_points_and_grows_with_ranks() -> None:
    known = [(p4de(2), replace(measured(p4de(2)), all_gather=None))]
    near, far = (sim.extrapolate_hardware(known, p4de(hosts), "far") for hosts in (4, 32))
    assert near.name == "far"

    def width(hardware: Hardware) -> float:
        assert "gloo" in hardware.provenance["not_known"][-1]
        told = hardware.provenance["uncertainty"]["all_reduce"]
        assert told["least"] < 1 < told["greatest"]
        return float(told["greatest"] / told["least"])

    assert width(near) < width(far)
    assert parse_text(to_text(far), Hardware, "far") == replace(far, **dict.fromkeys(CURVES[1:]))
    assert json.loads(to_text(far))["provenance"]["uncertainty"]["all_reduce"]["least"] > 0


def test_what_is_not_legal() -> None:
    with pytest.raises(InputError, match="measured: none; give at least one cluster"):
        sim.extrapolate_hardware([], p4de(2))
    with pytest.raises(
        InputError, match=r"measured.1: 'measured 16' has world_size 16, its cluster 'p4de' 32"
    ):
        sim.extrapolate_hardware([(p4de(2), measured(p4de(2))), (p4de(4), measured(p4de(2)))], p4de(8))
    with pytest.raises(InputError, match="two curves of the same ranks and hosts"):
        sim.extrapolate_hardware([(p4de(2), measured(p4de(2)))] * 2, p4de(8))
