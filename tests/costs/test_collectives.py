"""Service times against the contract's words, in exact fractions."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.costs.service_time import all_reduce_ns, service_ns
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.units import divide_half_even, transfer_ns
from tests.oracle.stepper import half_even, service
from tests.strategies import REAL, TINY, curves

any_curve = st.sampled_from([TINY, REAL]).flatmap(curves)


def curve(*points: tuple[int, int]) -> Curve:
    return tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in points)


def sizes_around(points: Curve) -> st.SearchStrategy[int]:
    """On, beside, between and far beyond the points."""
    at = st.sampled_from([point.num_bytes for point in points])
    return at | at.flatmap(lambda size: st.integers(max(0, size - 3), size + 3)) | st.integers(0, 2**40)


@given(any_curve.flatmap(lambda points: st.tuples(st.just(points), sizes_around(points))))
def test_curve_is_the_contracts(drawn: tuple[Curve, int]) -> None:
    """CONTRACT, Hardware: linear between, constant below, last slope beyond but never negative."""
    points, size = drawn
    assert service_ns(points, size) == service(points, size, world_size=2)


@given(any_curve)
def test_points_are_met_exactly(points: Curve) -> None:
    assert [service_ns(points, point.num_bytes) for point in points] == [p.duration_ns for p in points]


@given(any_curve, st.integers(0, 2**40))
def test_service_times_are_never_negative_whole_nanoseconds(points: Curve, size: int) -> None:
    time = service_ns(points, size)
    assert isinstance(time, int)
    assert time >= 0


@given(
    any_curve.flatmap(lambda points: st.tuples(st.just(points), sizes_around(points), sizes_around(points)))
)
def test_curves_that_rise_give_times_that_rise(drawn: tuple[Curve, int, int]) -> None:
    points, one, two = drawn
    times = sorted(point.duration_ns for point in points)
    rising = curve(*((point.num_bytes, time) for point, time in zip(points, times, strict=True)))
    assert service_ns(rising, min(one, two)) <= service_ns(rising, max(one, two))


@given(any_curve, st.integers(0, 2**40))
def test_beyond_the_last_point_time_never_falls(points: Curve, more: int) -> None:
    last = points[-1]
    assert service_ns(points, last.num_bytes + more) >= last.duration_ns


@given(st.integers(0, 2**50), st.integers(0, 2**40))
def test_one_point_of_no_bytes_is_constant(size: int, time: int) -> None:
    assert service_ns(curve((0, time)), size) == time


@given(any_curve, st.integers(2, 2**20))
def test_beyond_the_last_point_time_grows_at_least_with_its_bytes(points: Curve, times: int) -> None:
    last, empty_ns = points[-1], points[0].duration_ns if points[0].num_bytes == 0 else 0
    least = empty_ns + times * (last.duration_ns - empty_ns)
    assert service_ns(points, times * last.num_bytes) >= (least if last.num_bytes else last.duration_ns)


def test_a_level_end_is_no_end_of_time() -> None:
    """631 us for 0.5 and for 1 MiB: 2.88 GiB take 1.9 s."""
    points = curve((65_536, 503_670), (524_288, 631_290), (1_048_576, 630_670))
    assert service_ns(points, round(2.88 * 2**30)) == pytest.approx(1.86e9, rel=0.01)


@pytest.mark.parametrize(
    ("size", "time"),
    [
        (0, 10),  # constant below
        (3, 10),
        (4, 10),
        (5, 10),  # 10.5: half to even
        (6, 11),
        (7, 12),  # 11.5
        (8, 12),
        (9, 14),  # beyond: 13.5, as 8 bytes take 12
        (10, 15),
        (11, 16),  # 16.5
    ],
)
def test_halves_go_to_the_even_side(size: int, time: int) -> None:
    """Rounded to the nearest nanosecond, half to even, once."""
    assert service_ns(curve((4, 10), (8, 12)), size) == time


def test_a_falling_curve_is_never_extrapolated_downwards() -> None:
    falling = curve((0, 100), (10, 50), (20, 40))
    assert [service_ns(falling, size) for size in (0, 5, 10, 15, 20, 21, 10**12)] == [
        100, 75, 50, 45, 40, 40, 40,
    ]  # fmt: skip


@given(any_curve, st.integers(0, 2**40))
def test_world_size_one_costs_nothing(points: Curve, size: int) -> None:
    alone = Hardware(name="h", world_size=1, all_reduce=points)
    assert all_reduce_ns(alone, size) == 0
    pair = Hardware(name="h", world_size=2, all_reduce=points)
    assert all_reduce_ns(pair, size) == service_ns(points, size)


@given(st.integers(-(2**80), 2**80), st.integers(1, 2**60))
def test_division_rounds_half_to_even_exactly(numerator: int, denominator: int) -> None:
    assert divide_half_even(numerator, denominator) == half_even(Fraction(numerator, denominator))


@given(st.integers(0, 2**40), st.none() | st.floats(1e-3, 1e15))
def test_copies_are_rounded_once_from_the_exact_rate(size: int, rate: float | None) -> None:
    """CONTRACT: a null bandwidth is free; durations round half to even, from the float's exact value."""
    expected = 0 if rate is None else half_even(size * 10**9 / Fraction(rate))
    assert transfer_ns(size, rate) == expected
