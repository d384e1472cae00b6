"""Measured curves at other sizes and ranks: exact where measured, the model's shape between, and a range.

The measurements are public ones: ``tests/published`` keeps figures of them.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from math import ceil, exp, log, log2
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.clusters.extrapolation.across_ranks import RatioDrift
from sim.clusters.extrapolation.other_size import LINE_RATE, EstimatedPoint, extrapolate
from sim.clusters.extrapolation.ratios import COVERED, SHAPE, MeasuredCurve, outlying
from sim.clusters.machines import tcp_port
from sim.clusters.nccl.fabric import Fabric, Hop
from sim.clusters.nccl.model import nccl_ns
from sim.errors import InputError
from sim.formats.documents import load
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from tests.clusters.measured_paths import NVLINK_MACHINES
from tests.clusters.published_fabrics import (
    MIB,
    alps,
    box,
    dgx_a100,
    p4de,
    three_of,
)

FABRICS = (dgx_a100(8), p4de(2), alps(8), box(4, "pcie", 24e9, "ampere", 1))
SIZES = tuple(2**power for power in range(3, 33))
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


def all_reduce_curve(fabric: Fabric, sizes: Iterable[int]) -> Curve:
    """As NCCL itself counts, whose shape is carried."""
    return tuple(CurvePoint(num_bytes=s, duration_ns=nccl_ns(fabric, "all_reduce", s)) for s in sorted(sizes))


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
        assert at == EstimatedPoint(
            num_bytes=point.num_bytes,
            duration_ns=point.duration_ns,
            least_ns=point.duration_ns,
            greatest_ns=point.duration_ns,
        )
    for each in found.values():
        assert 0 <= each.least_ns <= each.duration_ns <= each.greatest_ns


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


ports = st.sampled_from([ethernet(2), ethernet(4), p4de(2), p4de(3), alps(8)])


@given(ports, ports, curves, st.lists(st.integers(1, 2**36), min_size=1, max_size=5))
def test_the_fast_end_is_not_faster_than_the_ports_of_a_host(
    known: Fabric, fabric: Fabric, curve: Curve, sizes: list[int]
) -> None:
    """At line rate each host sends 2 (hosts - 1) / hosts of the bytes, unless measurements say it is less."""
    assert fabric.inter is not None
    for each in extrapolate([MeasuredCurve(fabric=known, curve=curve)], fabric, sizes):
        sent = 2 * (fabric.hosts - 1) / fabric.hosts * each.num_bytes
        line_ns = sent / (fabric.inter.bytes_per_s * LINE_RATE) * 1e9
        if each.num_bytes > curve[-1].num_bytes and known == fabric:
            sent_before = 2 * (fabric.hosts - 1) / fabric.hosts * curve[-1].num_bytes
            before_ns = sent_before / (fabric.inter.bytes_per_s * LINE_RATE) * 1e9
            line_ns += min(curve[-1].duration_ns, each.duration_ns) - before_ns
        if each.num_bytes not in {point.num_bytes for point in curve} or known != fabric:
            assert each.least_ns >= min(line_ns, each.duration_ns) - 1


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


def test_between_two_numbers_of_ranks_ratios_are_interpolated_and_beyond_them_go_on() -> None:
    """Off by 1 with 16 and by 1.44 with 64 ranks: by 1.2 with 32, half-way in logarithms, and with 128 by
    1.728, as far as a ring's steps allow."""
    few, many = (MeasuredCurve(fabric=p4de(h), curve=all_reduce_curve(p4de(h), SIZES)) for h in (2, 8))
    many = replace(many, curve=scaled(many.curve, 1.44))
    for each in extrapolate([many, few], p4de(4), SIZES):
        expected = 1.2 * nccl_ns(p4de(4), "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(expected, rel=1e-3)
    most = {p.num_bytes: p.duration_ns * 127 / 63 for p in many.curve}
    for each in extrapolate([many, few], p4de(16), SIZES):
        expected = 1.728 * nccl_ns(p4de(16), "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(min(expected, most[each.num_bytes]), rel=1e-3)
        assert each.least_ns <= 1.44 / 1.728 * expected * 1.001, "it may as well stay"


@given(curves, curves, st.sampled_from([8, 64]), st.lists(st.integers(0, 2**33), min_size=1))
def test_what_ranks_change_stays_within_what_they_can(
    few: Curve, many: Curve, hosts: int, sizes: list[int]
) -> None:
    """Any two curves: the estimate is the carried one, or moved towards no less time and no more than a
    ring's steps say; and it lies in its range."""
    fabric = ethernet(hosts)
    known = [
        MeasuredCurve(
            fabric=ethernet(h),
            curve=tuple(
                CurvePoint(num_bytes=point.num_bytes + 2, duration_ns=point.duration_ns + MS) for point in c
            ),
        )
        for h, c in ((2, few), (4, many))
    ]
    found, alone = extrapolate(known, fabric, sizes), extrapolate(known[1:], fabric, sizes)
    on_four = extrapolate(known[1:], ethernet(4), sizes)
    for each, one, nearest in zip(found, alone, on_four, strict=True):
        assert each.least_ns <= each.duration_ns <= each.greatest_ns
        least = min(one.duration_ns, nearest.duration_ns)
        most = max(one.duration_ns, nearest.duration_ns * (fabric.world_size - 1) / 3)
        assert least * 0.999 - 50 <= each.duration_ns <= most * 1.001 + 50, "but for what is rounded"


@given(st.floats(0.3, 1.5), st.floats(-1.5, -0.3), st.integers(-3, 3))
def test_sizes_that_drift_apart_are_told_apart(small: float, large: float, octave: int) -> None:
    """Half of the sizes drift one way and half the other: beyond doubt each goes on as it did."""
    half = 22 + octave
    changes = tuple((float(size), small if size < half else large) for size in range(10, 34))
    drift = RatioDrift(changes=changes, switched=())
    assert drift.at(12.0) >= max(0.0, small - 2 * SHAPE - abs(small - large) / 3)
    assert drift.at(31.0) <= 0.0
    assert drift.at(12.0) > drift.at(31.0)
    assert drift.scatter(12.0) <= 2 * SHAPE + abs(small - large) / 2


@given(st.lists(st.floats(-0.05, 0.05), min_size=5, max_size=40))
def test_what_scatters_about_nothing_is_no_drift(noise: list[float]) -> None:
    balanced = [*noise, *(-each for each in noise)]
    drift = RatioDrift(changes=tuple((10 + n / 4, each) for n, each in enumerate(balanced)), switched=())
    assert all(drift.at(octave) == 0 for octave, _ in drift.changes)


def test_several_numbers_of_ranks_say_more_than_one() -> None:
    """Ratios that fall by a tenth with every doubling: the next is met, and the nearest alone misses it."""

    def off(hosts: int) -> Curve:
        return scaled(all_reduce_curve(p4de(hosts), SIZES), 1.5 * 0.9 ** log2(hosts))

    source = [MeasuredCurve(fabric=p4de(hosts), curve=off(hosts)) for hosts in (2, 4, 8)]
    found, alone = (extrapolate(each, p4de(16), SIZES) for each in (source, source[-1:]))
    for each, one, point in zip(found, alone, off(16), strict=True):
        held = max(point.duration_ns, source[-1].curve[SIZES.index(each.num_bytes)].duration_ns)
        assert each.duration_ns == pytest.approx(held, rel=1e-3), "more ranks take no less"
        assert one.duration_ns == pytest.approx(point.duration_ns / 0.9, rel=1e-3)


def test_a_range_says_something_where_the_model_is_far_off() -> None:
    """Small messages of gloo take 15 times as long on four hosts as on two.

    On eight they then take longer than four say alone, by no more than a ring's steps allow; over five
    doublings a range is no wider than what the model says of itself.
    """
    two, four = (load(TRACES / f"box-{hosts}x1gbit.json", Hardware).all_reduce for hosts in (2, 4))
    both = [MeasuredCurve(fabric=ethernet(h), curve=c) for h, c in ((2, two), (4, four))]
    sizes = [point.num_bytes for point in four]
    found, alone = extrapolate(both, ethernet(8), sizes), extrapolate(both[1:], ethernet(8), sizes)
    for each, one, point in zip(found, alone, four, strict=True):
        if point.num_bytes <= 64 << 10:
            assert each.duration_ns > 1.2 * one.duration_ns
            assert each.duration_ns <= point.duration_ns * 7 / 3 * 1.001
        if point.num_bytes >= MIB:
            assert each.greatest_ns <= 2 * each.least_ns
        assert each.greatest_ns <= 13 * each.least_ns
    for each in extrapolate(both[:1], ethernet(64), sizes):
        assert each.greatest_ns <= 4 * each.least_ns


def test_a_cold_first_point_is_named_and_bends_nothing() -> None:
    """Ten evenly spaced sizes of one machine, the first of them three times as long."""
    fabric = dgx_a100(8)
    sizes = [MIB * (4 + 32 * number) for number in range(10)]
    true = scaled(all_reduce_curve(fabric, sizes), 1.2)
    cold = (*scaled(true[:1], 2.5), *true[1:])
    assert cold[0].duration_ns < cold[1].duration_ns, "it takes less than a larger one all the same"
    assert outlying(MeasuredCurve(fabric=fabric, curve=true), "all_reduce") == {}
    (named,) = outlying(MeasuredCurve(fabric=fabric, curve=cold), "all_reduce").items()
    assert named[0] == 4 * MIB
    assert "measured cold" in named[1]
    for each in extrapolate([MeasuredCurve(fabric=fabric, curve=cold)], fabric, [2 * MIB, 8 * MIB, 12 * MIB]):
        exact = 1.2 * nccl_ns(fabric, "all_reduce", each.num_bytes)
        assert each.duration_ns == pytest.approx(exact, rel=0.01)


@given(st.floats(1.0, 3.0), st.integers(0, 10**6), st.lists(st.floats(-0.02, 0.02), min_size=10, max_size=10))
def test_a_constant_beyond_the_model_is_no_cold_point(
    factor: float, constant_ns: int, noise: list[float]
) -> None:
    """As where one process launches for all: every size takes as much longer."""
    fabric = dgx_a100(8)
    curve = tuple(
        replace(point, duration_ns=round((factor * point.duration_ns + constant_ns) * (1 + off)))
        for point, off in zip(all_reduce_curve(fabric, [MIB << n for n in range(10)]), noise, strict=True)
    )
    assert MIB not in {
        size
        for size, why in outlying(MeasuredCurve(fabric=fabric, curve=curve), "all_reduce").items()
        if "allow" in why
    }


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


def test_what_three_points_miss_comes_from_other_machines() -> None:
    """``SHAPE``: nine in ten of the other sizes of machines that are not predicted elsewhere."""
    missed = []
    for machine in NVLINK_MACHINES:
        points = tuple(
            CurvePoint(num_bytes=size * MIB, duration_ns=round(time * 1000))
            for size, time in machine.time_us.items()
        )
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
