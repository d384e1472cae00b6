"""Measured curves at other sizes and ranks: exact where measured, the model's shape between, and a range.

The measurements are public ones, in the folder that ``BUCKETSIM_DATA`` names.
"""

from dataclasses import replace
from itertools import pairwise
from math import log2
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.collectives import service_ns
from sim.costs.extrapolating import Estimate, MeasuredCurve, extrapolate, extrapolated_hardware
from sim.costs.nccl.choosing import all_reduce_curve, collective_ns
from sim.costs.nccl.fabric import Fabric, Hop
from sim.errors import InputError
from sim.nouns.hardware import Curve, CurvePoint
from tests.costs.published_fabrics import (
    BY_NAME,
    SYSTEMS,
    System,
    alps,
    box,
    dgx_a100,
    measured,
    needs_data,
    p4de,
)

FABRICS = (dgx_a100(8), p4de(2), alps(8), box(4, "pcie", 24e9, "ampere", 1))
SIZES = tuple(2**power for power in range(3, 33))

curves = st.lists(
    st.tuples(st.integers(0, 2**32), st.integers(1, 10**11)), min_size=1, max_size=8, unique_by=lambda p: p[0]
).map(lambda points: tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(points)))


def scaled(curve: Curve, factor: float) -> Curve:
    return tuple(replace(point, duration_ns=round(point.duration_ns * factor)) for point in curve)


@given(st.sampled_from(FABRICS), curves, st.lists(st.integers(0, 2**36), max_size=5))
def test_measured_points_stay_and_others_lie_within_their_range(
    fabric: Fabric, curve: Curve, sizes: list[int]
) -> None:
    wanted = [*sizes, *(point.num_bytes for point in curve)]
    found = {
        each.num_bytes: each
        for each in extrapolate([MeasuredCurve(fabric=fabric, curve=curve)], fabric, wanted)
    }
    for point in curve:
        at = found[point.num_bytes]
        assert at == Estimate(
            num_bytes=point.num_bytes,
            duration_ns=point.duration_ns,
            least_ns=point.duration_ns,
            greatest_ns=point.duration_ns,
        )
    for each in found.values():
        assert 0 <= each.least_ns <= each.duration_ns <= each.greatest_ns


@given(st.sampled_from(FABRICS), curves, st.integers(0, 2**33))
def test_between_points_the_ratio_lies_between_theirs(fabric: Fabric, curve: Curve, size: int) -> None:
    ratios = [p.duration_ns / collective_ns(fabric, "all_reduce", p.num_bytes) for p in curve]
    (found,) = extrapolate([MeasuredCurve(fabric=fabric, curve=curve)], fabric, [size])
    computed = collective_ns(fabric, "all_reduce", size)
    assert min(ratios) * computed - 1 <= found.duration_ns <= max(ratios) * computed + 1


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_one_point_mends_a_constant_factor(fabric: Fabric, factor: float) -> None:
    truth = scaled(all_reduce_curve(fabric, SIZES), factor)
    found = extrapolate([MeasuredCurve(fabric=fabric, curve=truth[12:13])], fabric, SIZES)
    for each, point in zip(found, truth, strict=True):
        assert each.duration_ns == pytest.approx(point.duration_ns, rel=1e-4)
    assert all(one.duration_ns <= two.duration_ns for one, two in pairwise(found))


def test_leaving_points_out_is_what_is_known() -> None:
    """Ratios 1, 1.2, 1: without the middle one it is off by 1.2 either way."""
    fabric = dgx_a100(8)
    exact = all_reduce_curve(fabric, (2**20, 2**25, 2**30))
    curve = (exact[0], *scaled(exact[1:2], 1.2), exact[2])
    (found,) = extrapolate([MeasuredCurve(fabric=fabric, curve=curve)], fabric, [2**22])
    assert found.greatest_ns / found.duration_ns == pytest.approx(1.2, rel=1e-3)
    assert found.duration_ns / found.least_ns == pytest.approx(1.2, rel=1e-3)
    two = MeasuredCurve(fabric=fabric, curve=exact[:2])
    (found,) = extrapolate([two], fabric, [2**22])
    assert found.least_ns == pytest.approx(0.8 * found.duration_ns, rel=1e-3)
    assert found.greatest_ns == pytest.approx(2.0 * found.duration_ns, rel=1e-3)


def test_the_range_grows_beyond_the_points_and_with_every_doubling_of_ranks() -> None:
    fabric = p4de(2)
    exact = all_reduce_curve(fabric, SIZES[17:28])
    curve = tuple(scaled((point,), 1 + 0.01 * number)[0] for number, point in enumerate(exact))
    source = [MeasuredCurve(fabric=fabric, curve=curve)]

    def width(hosts: int, size: int) -> float:
        (found,) = extrapolate(source, p4de(hosts), [size])
        return found.greatest_ns / found.least_ns

    assert width(2, 2**22 + 1) < width(2, 2**32) < width(2, 2**36)
    assert width(2, 2**22 + 1) < width(4, 2**22 + 1) < width(8, 2**22 + 1) < width(16, 2**22 + 1)


def test_between_two_numbers_of_ranks_ratios_are_interpolated() -> None:
    """Off by 1 with 16 and by 4 with 64 ranks: by 2 with 32, half-way in logarithms."""
    few, many = (MeasuredCurve(fabric=p4de(h), curve=all_reduce_curve(p4de(h), SIZES)) for h in (2, 8))
    many = replace(many, curve=scaled(many.curve, 4.0))
    for each in extrapolate([many, few], p4de(4), SIZES):
        expected = 2 * collective_ns(p4de(4), "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(expected, rel=1e-3)
    for each in extrapolate([many, few], p4de(16), SIZES):
        expected = 4 * collective_ns(p4de(16), "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(expected, rel=1e-3)


def test_one_host_does_not_stand_for_several_where_there_are_such() -> None:
    one = MeasuredCurve(fabric=p4de(1), curve=scaled(all_reduce_curve(p4de(1), SIZES), 9.0))
    two = MeasuredCurve(fabric=p4de(2), curve=all_reduce_curve(p4de(2), SIZES))
    assert extrapolate([one, two], p4de(4), SIZES) == extrapolate([two], p4de(4), SIZES)


def test_one_rank_costs_nothing_and_hardware_says_what_it_is() -> None:
    source = [MeasuredCurve(fabric=p4de(2), curve=all_reduce_curve(p4de(2), SIZES))]
    alone = box(1, "nvlink", 1e9, "ampere", 1)
    assert [each.duration_ns for each in extrapolate(source, alone, (8, 2**30))] == [0, 0]
    hardware = extrapolated_hardware(source, p4de(4), "four", (2**20, 2**28))
    assert hardware.world_size == 32
    assert hardware.provenance["measured"] == [{"world_size": 16, "hosts": 2, "points": len(SIZES)}]
    for point in hardware.all_reduce:
        known = hardware.spread["all_reduce"][str(point.num_bytes)]
        assert known["min_ns"] < point.duration_ns < known["max_ns"]


def test_what_cannot_be_taken_anywhere() -> None:
    exact = all_reduce_curve(p4de(2), (8, 2**20))
    good = MeasuredCurve(fabric=p4de(2), curve=exact)
    with pytest.raises(InputError, match="measured: none"):
        extrapolate([], p4de(2), [8])
    with pytest.raises(InputError, match="sizes: none"):
        extrapolate([good], p4de(2), [])
    with pytest.raises(InputError, match="two curves of the same ranks"):
        extrapolate([good, good], p4de(4), [8])
    with pytest.raises(InputError, match="curve: an empty list"):
        MeasuredCurve(fabric=p4de(2), curve=())
    with pytest.raises(InputError, match=r"curve.1.duration_ns: 0 is not legal"):
        MeasuredCurve(fabric=p4de(2), curve=(exact[0], replace(exact[1], duration_ns=0)))
    with pytest.raises(InputError, match=r"curve.1.num_bytes: 8 is not legal; sizes must ascend"):
        MeasuredCurve(fabric=p4de(2), curve=(exact[1], exact[0]))
    with pytest.raises(InputError, match="one rank measures nothing"):
        MeasuredCurve(fabric=box(1, "pcie", 1e9, "ampere", 1), curve=exact)


# Medians, in per cent, over the sizes that are left, from the least, the middle and the greatest of 1 MiB to
# 1 GiB. Alps between hosts and 100G IB miss 7: there the model changes its method at sizes where the machine
# does not, or the machine changes (1 MiB takes eight times as long as 2 MiB).
AIM = 7.0
BEYOND_AIM = {"alps, 8 GH200": 20, "alps, 16 GH200": 44, "alps, 32 GH200": 40, "hkbu, 32 2080 Ti, 100G IB": 8}


def three_of(points: Curve) -> Curve:
    middle = (log2(points[0].num_bytes) + log2(points[-1].num_bytes)) / 2
    return (points[0], min(points, key=lambda point: abs(log2(point.num_bytes) - middle)), points[-1])


def error(found: tuple[Estimate, ...], points: Curve) -> float:
    return 100 * median(
        abs(each.duration_ns / point.duration_ns - 1) for each, point in zip(found, points, strict=True)
    )


@needs_data
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_three_points_of_a_system(system: System) -> None:
    points = measured(system)
    three = three_of(points)
    rest = tuple(point for point in points if point not in three)
    source = [MeasuredCurve(fabric=system.fabric, curve=three)]
    found = extrapolate(source, system.fabric, [point.num_bytes for point in rest])
    table = median(abs(service_ns(three, p.num_bytes) / p.duration_ns - 1) for p in rest) * 100
    print(f"{system.name:34} {error(found, rest):5.1f} % (straight lines between the three {table:5.1f} %)")
    assert error(found, rest) <= BEYOND_AIM.get(system.name, AIM)


@needs_data
def test_three_points_are_better_than_none_where_the_aim_is_met() -> None:
    worse = set()
    for system in SYSTEMS:
        points = measured(system)
        rest = tuple(point for point in points if point not in three_of(points))
        sizes = [point.num_bytes for point in rest]
        source = [MeasuredCurve(fabric=system.fabric, curve=three_of(points))]
        computed = [collective_ns(system.fabric, "all_reduce", size) for size in sizes]
        none = median(abs(time / point.duration_ns - 1) for time, point in zip(computed, rest, strict=True))
        if error(extrapolate(source, system.fabric, sizes), rest) > 100 * none:
            worse.add(system.name)
    assert worse <= set(BEYOND_AIM)


@needs_data
def test_alps_from_4_to_16_ranks_to_32() -> None:
    """From 33 % by published figures to 14 %, from 128 MiB on within 6 %; nine of ten within the range."""
    few = [BY_NAME[f"alps, {ranks} GH200"] for ranks in (4, 8, 16)]
    many = BY_NAME["alps, 32 GH200"]
    points = measured(many)
    source = [MeasuredCurve(fabric=each.fabric, curve=measured(each)) for each in few]
    found = extrapolate(source, many.fabric, [point.num_bytes for point in points])
    assert error(found, points) <= 14
    assert all(
        each.duration_ns == pytest.approx(point.duration_ns, rel=0.06)
        for each, point in zip(found, points, strict=True)
        if point.num_bytes >= 2**27
    )
    inside = [
        each.least_ns <= point.duration_ns <= each.greatest_ns
        for each, point in zip(found, points, strict=True)
    ]
    assert sum(inside) >= 0.9 * len(inside)


def test_another_wire_carries_the_ratio_and_is_no_measured_point() -> None:
    fabric = dgx_a100(8)
    source = [MeasuredCurve(fabric=fabric, curve=scaled(all_reduce_curve(fabric, SIZES), 1.5))]
    slower = replace(fabric, intra=Hop(kind="nvswitch", bytes_per_s=fabric.intra.bytes_per_s / 2))
    for each in extrapolate(source, slower, SIZES):
        computed = collective_ns(slower, "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(1.5 * computed, rel=1e-4)
