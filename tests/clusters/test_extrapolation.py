"""Measured curves at other sizes and ranks: exact where measured, the model's shape between, and a range.

The measurements are public ones: ``tests/published`` keeps figures of them.
"""

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, exp, log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.clusters.computed import uncertainty
from sim.clusters.extrapolation import COVERED, SHAPE, MeasuredCurve, extrapolate
from sim.clusters.fabric import Fabric, Hop, fabric_of
from sim.clusters.machines import preset
from sim.clusters.nccl_model import collective_ns
from sim.errors import InputError
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from tests.clusters.published_fabrics import NVLINK_MACHINES, alps, box, dgx_a100, p4de, three_of
from tests.effort import tries

DGX = dgx_a100(8)
FABRICS = (DGX, p4de(2), alps(8), box(4, "pcie", 24e9, "ampere", 1))
SIZES = tuple(2**power for power in range(3, 34))
TRACES = Path(__file__).parents[2] / "traces" / "hardware"

curves = st.lists(
    st.tuples(st.integers(0, 2**32), st.integers(1, 10**11)), min_size=1, max_size=8, unique_by=lambda p: p[0]
).map(lambda points: tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(points)))


def ethernet(hosts: int) -> Fabric:
    """Hosts of one GPU each with TCP at 1 Gbit/s."""
    return fabric_of(preset("pcie_hosts", hosts, gpus=1, gbit_per_s=1))


def nccl_ns(fabric: Fabric, size: int) -> int:
    """An all-reduce as NCCL itself counts, whose shape is carried."""
    return collective_ns(fabric, "all_reduce", size, is_delivered=False)


def times(fabric: Fabric, sizes: Iterable[int] = SIZES, *factors: float) -> Curve:
    """What NCCL counts, times a factor for each size; by default 1."""
    by_size = zip(sizes, factors, strict=True) if factors else ((size, 1.0) for size in sizes)
    return tuple(CurvePoint(num_bytes=at, duration_ns=round(nccl_ns(fabric, at) * by)) for at, by in by_size)


def known(fabric: Fabric, curve: Curve) -> MeasuredCurve:
    return MeasuredCurve(fabric=fabric, curve=curve)


@given(st.sampled_from(FABRICS), curves, st.integers(0, 2**33))
def test_between_points_the_ratio_lies_between_theirs(fabric: Fabric, curve: Curve, size: int) -> None:
    """One point mends a constant factor."""
    ratios = [p.duration_ns / nccl_ns(fabric, p.num_bytes) for p in curve]
    (found,) = extrapolate([known(fabric, curve)], fabric, [size])
    computed = nccl_ns(fabric, size)
    assert min(ratios) * computed - 1 <= found.duration_ns <= max(ratios) * computed + 1


HALF_DGX = replace(DGX, intra=Hop(kind="nvswitch", bytes_per_s=DGX.intra.bytes_per_s / 2))
_ALL = [1.5] * len(SIZES)
_FEW, _MANY = known(p4de(2), times(p4de(2))), known(p4de(8), times(p4de(8), SIZES, *[1.44] * len(SIZES)))
# The first of three is eight times as long as the next: a switch of protocols.
_SWITCH = known(p4de(2), times(p4de(2), (2**20, 2**25, 2**30), 30, 1, 1))


@pytest.mark.parametrize(
    ("measured", "fabric", "sizes", "factor"),
    [
        ([known(DGX, times(DGX, SIZES, *_ALL))], HALF_DGX, SIZES, 1.5),  # no measured point of another wire
        ([_MANY, _FEW], p4de(4), SIZES, 1.2),  # half-way in logarithms
        ([_MANY, _FEW], p4de(16), SIZES, 1.44),
        ([_SWITCH], p4de(2), [2**20], 30),
        ([_SWITCH], p4de(2), [2**21, 2**27], 1),  # it says nothing of its neighbours
        ([_SWITCH], p4de(4), [2**20], 30),
    ],
)
def test_ratios_are_carried_beyond_numbers_of_ranks_and_interpolated_between_them(
    measured: list[MeasuredCurve], fabric: Fabric, sizes: Iterable[int], factor: float
) -> None:
    for each in extrapolate(measured, fabric, list(sizes)):
        assert each.duration_ns == pytest.approx(factor * nccl_ns(fabric, each.num_bytes), rel=1e-3)


def test_leaving_points_out_is_what_is_known() -> None:
    """Ratios 1, 1.2, 1: without the middle one it is off by 1.2 either way."""
    sizes = (2**20, 2**25, 2**30)
    (found,) = extrapolate([known(DGX, times(DGX, sizes, 1, 1.2, 1))], DGX, [2**22])
    assert found.greatest_ns / found.duration_ns == pytest.approx(1.2, rel=1e-3)
    assert found.duration_ns / found.least_ns == pytest.approx(1.2, rel=1e-3)
    (found,) = extrapolate([known(DGX, times(DGX, sizes[:2]))], DGX, [2**22])
    assert found.least_ns == pytest.approx(0.9 * found.duration_ns, rel=1e-3)
    assert found.greatest_ns == pytest.approx(2.2 * found.duration_ns, rel=1e-3)


def test_the_range_grows_with_every_doubling_of_ranks() -> None:
    fabric, sizes = p4de(2), SIZES[17:28]
    source = [known(fabric, times(fabric, sizes, *(1 + 0.01 * number for number in range(len(sizes)))))]
    found = [extrapolate(source, p4de(hosts), [2**22 + 1])[0] for hosts in (2, 4, 8, 16)]
    two, four, eight, sixteen = (each.greatest_ns / each.least_ns for each in found)
    assert two < four < eight <= sixteen


@given(st.sampled_from([ethernet(2), p4de(2), DGX]), st.integers(0, 2**30), st.floats(0.5, 3))
def test_beyond_the_last_point_a_range_begins_without_a_step(
    fabric: Fabric, more: int, factor: float
) -> None:
    """What was measured is not in doubt any more; what is added to it is, by the same factors as ever."""
    curve = times(fabric, SIZES[17:24], *[factor] * 7)
    last = curve[-1]
    near, far = extrapolate([known(fabric, curve)], fabric, [last.num_bytes + 1, last.num_bytes + 2 + more])
    for each in (near, far):
        added = each.duration_ns - last.duration_ns
        assert last.duration_ns + exp(-SHAPE - 0.01) * added - 2 <= each.least_ns <= each.duration_ns
        assert each.greatest_ns <= last.duration_ns + exp(SHAPE + 0.01) * added + 2
    assert near.greatest_ns - near.least_ns <= 1e-3 * last.duration_ns


def test_small_messages_of_gloo_are_outside_of_what_is_known() -> None:
    """Shown: two hosts taken to four, at 1 Gbit/s. From 256 KiB on in the range, below far beyond it."""
    two, four = (sim.load_hardware(TRACES / f"box-{hosts}x1gbit.json").all_reduce for hosts in (2, 4))
    found = extrapolate([known(ethernet(2), two)], ethernet(4), [point.num_bytes for point in four])
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
        three = three_of(machine.curve)
        rest = [point for point in machine.curve if point not in three]
        found = extrapolate([known(machine.fabric, three)], machine.fabric, [one.num_bytes for one in rest])
        pairs = zip(found, rest, strict=True)
        missed += [abs(log(each.duration_ns / point.duration_ns)) for each, point in pairs]
    assert round(sorted(missed)[ceil(COVERED * len(missed)) - 1], 2) == SHAPE


@given(curves, curves, st.sampled_from([8, 64]), st.lists(st.integers(0, 2**33), min_size=1))
def test_any_two_curves_carry_and_no_range_is_wider_than_the_models_about_them(
    few: Curve, many: Curve, hosts: int, sizes: list[int]
) -> None:
    measured = [known(ethernet(2), few), known(ethernet(4), many)]
    (own_low, own_high), fabric = uncertainty(ethernet(hosts)), ethernet(hosts)
    down, up = measured[1].doubt(odd=False)
    for each in extrapolate(measured, fabric, sizes):
        assert each.least_ns <= each.duration_ns <= each.greatest_ns
        model_ns = nccl_ns(fabric, each.num_bytes)
        least, most = min(each.duration_ns, own_low * model_ns), max(each.duration_ns, own_high * model_ns)
        assert each.least_ns >= least * exp(-down) * 0.999 - 1
        assert each.greatest_ns <= most * exp(up) * 1.001 + 1


# Hardware, and what is not legal.


@given(st.lists(st.tuples(st.integers(1, 2**33), st.integers(1, 10**10)), min_size=1, max_size=6))
@settings(max_examples=tries(30))
def test_measured_points_stay_and_every_range_holds_its_point(points: list[tuple[int, int]]) -> None:
    curve = tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(dict(points).items()))
    cluster = preset("pcie_box", gpus=4)
    given_hardware = Hardware(name="link", world_size=4, all_reduce=curve)
    found = sim.extrapolate_hardware([(cluster, given_hardware)], cluster)
    assert set(curve) <= set(found.all_reduce)
    assert {point.num_bytes for point in found.all_reduce} == {*SIZES, *(p.num_bytes for p in curve)}
    for point in found.all_reduce:
        told = found.spread["all_reduce"].get(str(point.num_bytes))
        assert told is None or (point not in curve and told["min_ns"] <= point.duration_ns <= told["max_ns"])


TWO, FOUR = preset("p4de", 2), preset("p4de", 4)
SIXTEEN = Hardware(name="measured 16", world_size=16, all_reduce=_FEW.curve)
ZERO = (_FEW.curve[0], replace(_FEW.curve[1], duration_ns=0))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: extrapolate([_FEW, _FEW], p4de(4), [8]), "measured: .* occurs twice"),
        (lambda: known(p4de(2), ZERO), "give times above 0 of two"),
        (lambda: known(box(1, "pcie", 1e9, "ampere", 1), _FEW.curve), "or one rank"),
        (lambda: sim.extrapolate_hardware([], TWO), "measured: none; give at least one cluster"),
        (
            lambda: sim.extrapolate_hardware([(TWO, SIXTEEN), (FOUR, SIXTEEN)], FOUR),
            "measured.1: 'measured 16' has world_size 16, its cluster 32 ranks",
        ),
        (lambda: sim.extrapolate_hardware([(TWO, SIXTEEN)] * 2, FOUR), "measured: .* occurs twice"),
    ],
)
def test_what_cannot_be_taken_anywhere(make: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()
