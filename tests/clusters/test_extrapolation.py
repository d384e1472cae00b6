"""Measured curves at other sizes and ranks: exact where measured, the model's shape between, and a range.

The measurements are public ones: ``tests/published`` keeps figures of them.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import ceil, exp, log
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.computed import hardware_of, uncertainty
from sim.clusters.extrapolation import COVERED, SHAPE, MeasuredCurve, extrapolate
from sim.clusters.fabric import Fabric, Hop, fabric_of
from sim.clusters.machines import preset, tcp_port
from sim.clusters.nccl_model import collective_ns
from sim.errors import InputError
from sim.formats.documents import load
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from tests.clusters.measured_paths import NVLINK_MACHINES
from tests.clusters.published_fabrics import alps, box, dgx_a100, p4de, three_of
from tests.effort import tries

FABRICS = (dgx_a100(8), p4de(2), alps(8), box(4, "pcie", 24e9, "ampere", 1))
SIZES = tuple(2**power for power in range(3, 34))
MS = 10**6
TRACES = Path(__file__).parents[2] / "traces" / "hardware"

curves = st.lists(
    st.tuples(st.integers(0, 2**32), st.integers(1, 10**11)), min_size=1, max_size=8, unique_by=lambda p: p[0]
).map(lambda points: tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(points)))


def ethernet(hosts: int) -> Fabric:
    """Hosts of one GPU each with TCP at 1 Gbit/s."""
    return Fabric(
        world_size=hosts,
        hosts=hosts,
        ranks_per_host=1,
        generation="ampere",
        intra=Hop(kind="pcie", bytes_per_s=1e10),
        inter=Hop(kind="net", bytes_per_s=tcp_port(1)),
        channels=1,
        protocols=("LL", "Simple"),
    )


def nccl_ns(fabric: Fabric, collective: str, size: int) -> int:
    """As NCCL itself counts, whose shape is carried."""
    return collective_ns(fabric, collective, size, is_delivered=False)


def all_reduce_curve(fabric: Fabric, sizes: Iterable[int]) -> Curve:
    return tuple(CurvePoint(num_bytes=s, duration_ns=nccl_ns(fabric, "all_reduce", s)) for s in sorted(sizes))


def scaled(curve: Curve, factor: float) -> Curve:
    return tuple(replace(point, duration_ns=round(point.duration_ns * factor)) for point in curve)


@given(st.sampled_from(FABRICS), curves, st.integers(0, 2**33))
def test_between_points_the_ratio_lies_between_theirs(fabric: Fabric, curve: Curve, size: int) -> None:
    ratios = [p.duration_ns / nccl_ns(fabric, "all_reduce", p.num_bytes) for p in curve]
    (found,) = extrapolate([MeasuredCurve(fabric=fabric, curve=curve)], fabric, [size])
    computed = nccl_ns(fabric, "all_reduce", size)
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
    assert found.least_ns == pytest.approx(0.9 * found.duration_ns, rel=1e-3)
    assert found.greatest_ns == pytest.approx(2.2 * found.duration_ns, rel=1e-3)


def test_the_range_grows_with_every_doubling_of_ranks() -> None:
    fabric = p4de(2)
    exact = all_reduce_curve(fabric, SIZES[17:28])
    curve = tuple(scaled((point,), 1 + 0.01 * number)[0] for number, point in enumerate(exact))
    source = [MeasuredCurve(fabric=fabric, curve=curve)]

    def width(hosts: int, size: int) -> float:
        (found,) = extrapolate(source, p4de(hosts), [size])
        return found.greatest_ns / found.least_ns

    assert width(2, 2**22 + 1) < width(4, 2**22 + 1) < width(8, 2**22 + 1) <= width(16, 2**22 + 1)


@given(st.sampled_from([ethernet(2), p4de(2), dgx_a100(8)]), st.integers(0, 2**30), st.floats(0.5, 3))
def test_beyond_the_last_point_a_range_begins_without_a_step(
    fabric: Fabric, more: int, factor: float
) -> None:
    """What was measured is not in doubt any more; what is added to it is, by the same factors as ever."""
    curve = scaled(all_reduce_curve(fabric, SIZES[17:24]), factor)
    source, last = [MeasuredCurve(fabric=fabric, curve=curve)], curve[-1]
    near, far = extrapolate(source, fabric, [last.num_bytes + 1, last.num_bytes + 2 + more])
    for each in (near, far):
        added = each.duration_ns - last.duration_ns
        assert last.duration_ns + exp(-SHAPE - 0.01) * added - 2 <= each.least_ns <= each.duration_ns
        assert each.greatest_ns <= last.duration_ns + exp(SHAPE + 0.01) * added + 2
    assert near.greatest_ns - near.least_ns <= 1e-3 * last.duration_ns


def test_small_messages_of_gloo_are_outside_of_what_is_known() -> None:
    """Shown: two hosts taken to four, at 1 Gbit/s. From 256 KiB on in the range, below far beyond it."""
    two, four = (load(TRACES / f"box-{hosts}x1gbit.json", Hardware).all_reduce for hosts in (2, 4))
    source = [MeasuredCurve(fabric=ethernet(2), curve=two)]
    found = extrapolate(source, ethernet(4), [point.num_bytes for point in four])
    for each, point in zip(found, four, strict=True):
        if point.num_bytes >= 256 << 10:
            assert each.least_ns <= point.duration_ns <= each.greatest_ns
        else:
            assert point.duration_ns > 1.3 * each.greatest_ns
            assert 2.9 < point.duration_ns / each.duration_ns < 9.2


def test_what_three_points_miss_comes_from_other_machines() -> None:
    """``SHAPE``: nine in ten of the other sizes of machines that are not predicted elsewhere."""
    missed = []
    for machine in NVLINK_MACHINES:
        points = machine.curve
        rest = tuple(point for point in points if point not in three_of(points))
        source = [MeasuredCurve(fabric=machine.fabric, curve=three_of(points))]
        found = extrapolate(source, machine.fabric, [point.num_bytes for point in rest])
        missed += [
            abs(log(each.duration_ns / point.duration_ns)) for each, point in zip(found, rest, strict=True)
        ]
    assert round(sorted(missed)[ceil(COVERED * len(missed)) - 1], 2) == SHAPE


def test_a_point_at_a_protocol_switch_stays_and_says_nothing_of_its_neighbours() -> None:
    """Eight times as long as a larger one: between the others the shape is theirs."""
    fabric = p4de(2)
    exact = all_reduce_curve(fabric, (2**20, 2**25, 2**30))
    curve = (*scaled(exact[:1], 30.0), *exact[1:])
    assert curve[0].duration_ns > curve[1].duration_ns
    source = [MeasuredCurve(fabric=fabric, curve=curve)]
    for each in extrapolate(source, fabric, [2**20, 2**21, 2**27]):
        expected = 30.0 if each.num_bytes == 2**20 else 1.0
        computed = nccl_ns(fabric, "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(expected * computed, rel=1e-4)
    (carried,) = extrapolate(source, p4de(4), [2**20])
    assert carried.duration_ns == pytest.approx(30 * nccl_ns(p4de(4), "all_reduce", 2**20), rel=1e-4)


def test_another_wire_carries_the_ratio_and_is_no_measured_point() -> None:
    fabric = dgx_a100(8)
    source = [MeasuredCurve(fabric=fabric, curve=scaled(all_reduce_curve(fabric, SIZES), 1.5))]
    slower = replace(fabric, intra=Hop(kind="nvswitch", bytes_per_s=fabric.intra.bytes_per_s / 2))
    for each in extrapolate(source, slower, SIZES):
        computed = nccl_ns(slower, "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(1.5 * computed, rel=1e-4)


def test_between_two_numbers_of_ranks_ratios_are_interpolated_and_beyond_them_carried() -> None:
    """Off by 1 with 16 and 1.44 with 64 ranks: by 1.2 with 32, half-way in logarithms, and 1.44 with 128."""
    few, many = (MeasuredCurve(fabric=p4de(h), curve=all_reduce_curve(p4de(h), SIZES)) for h in (2, 8))
    many = replace(many, curve=scaled(many.curve, 1.44))
    for hosts, factor in ((4, 1.2), (16, 1.44)):
        for each in extrapolate([many, few], p4de(hosts), SIZES):
            expected = factor * nccl_ns(p4de(hosts), "all_reduce", each.num_bytes)
            assert each.duration_ns == pytest.approx(expected, rel=1e-3)


@given(curves, curves, st.sampled_from([8, 64]), st.lists(st.integers(0, 2**33), min_size=1))
def test_any_two_curves_carry_and_no_range_is_wider_than_the_models_about_them(
    few: Curve, many: Curve, hosts: int, sizes: list[int]
) -> None:
    known = [MeasuredCurve(fabric=ethernet(h), curve=c) for h, c in ((2, few), (4, many))]
    (own_low, own_high), fabric = uncertainty(ethernet(hosts)), ethernet(hosts)
    down, up = known[1].doubt(odd=False)
    for each in extrapolate(known, fabric, sizes):
        assert each.least_ns <= each.duration_ns <= each.greatest_ns
        model_ns = nccl_ns(fabric, "all_reduce", each.num_bytes)
        least, most = min(each.duration_ns, own_low * model_ns), max(each.duration_ns, own_high * model_ns)
        assert each.least_ns >= least * exp(-down) * 0.999 - 1
        assert each.greatest_ns <= most * exp(up) * 1.001 + 1


def test_what_cannot_be_taken_anywhere() -> None:
    exact = all_reduce_curve(p4de(2), (8, 2**20))
    good = MeasuredCurve(fabric=p4de(2), curve=exact)
    with pytest.raises(InputError, match=r"measured: .* occurs twice"):
        extrapolate([good, good], p4de(4), [8])
    with pytest.raises(InputError, match="give times above 0 of two"):
        MeasuredCurve(fabric=p4de(2), curve=(exact[0], replace(exact[1], duration_ns=0)))
    with pytest.raises(InputError, match="or one rank"):
        MeasuredCurve(fabric=box(1, "pcie", 1e9, "ampere", 1), curve=exact)


# Hardware.


def on_p4de(hosts: int, factor: float = 1.25) -> Hardware:
    """As the cost model, but slower by a factor, and with what is no curve."""
    fabric = fabric_of(preset("p4de", hosts))
    made = hardware_of(fabric, "computed", (2**20, 2**25, 2**30))
    return Hardware(
        name=f"measured {fabric.world_size}",
        world_size=fabric.world_size,
        all_reduce=scaled(made.all_reduce, factor),
        all_gather=scaled(made.all_gather or (), factor),
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


def test_which_hardware_is_not_legal() -> None:
    two, four = preset("p4de", 2), preset("p4de", 4)
    with pytest.raises(InputError, match="measured: none; give at least one cluster"):
        sim.extrapolate_hardware([], two)
    words = r"measured.1: 'measured 16' has world_size 16, its cluster 32 ranks"
    with pytest.raises(InputError, match=words):
        sim.extrapolate_hardware([(two, on_p4de(2)), (four, on_p4de(2))], four)
    with pytest.raises(InputError, match=r"measured: .* occurs twice"):
        sim.extrapolate_hardware([(two, on_p4de(2))] * 2, four)
