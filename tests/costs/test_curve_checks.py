"""A curve that cannot be what the link carries is named, point by point; one that can be is not."""

from hypothesis import given
from hypothesis import strategies as st

from sim.costs.curve_checks import doubtful_points
from sim.nouns.hardware import CurvePoint

MS = 10**6
SIZES = [4096 << power for power in range(15)]


def curve(latency_ns: float, ns_a_byte: float, **changed: float) -> tuple[CurvePoint, ...]:
    """An affine curve over ``SIZES``; ``at<number>`` multiplies a point."""
    return tuple(
        CurvePoint(
            num_bytes=size,
            duration_ns=round((latency_ns + ns_a_byte * size) * changed.get(f"at{number}", 1.0)),
        )
        for number, size in enumerate(SIZES)
    )


@given(st.floats(0, 5 * MS), st.floats(0.001, 100))
def test_a_clean_curve_is_not_doubted(latency_ns: float, ns_a_byte: float) -> None:
    assert doubtful_points(curve(latency_ns, ns_a_byte), {}) == ()


@given(st.floats(0, 5 * MS), st.floats(1, 100), st.integers(11, len(SIZES) - 2), st.floats(1.5, 1.9))
def test_a_point_that_jumps_is_named(latency_ns: float, ns_a_byte: float, number: int, factor: float) -> None:
    found = doubtful_points(curve(latency_ns, ns_a_byte, **{f"at{number}": factor}), {})
    assert [point.num_bytes for point in found] == [SIZES[number]]
    assert found[0].why.startswith("takes ")


def test_a_point_that_takes_longer_than_a_larger_one_is_named() -> None:
    found = doubtful_points(curve(0, 17, at12=2.5), {})
    assert [point.num_bytes for point in found] == [SIZES[12]]
    assert "and 32 MiB take" in found[0].why


def test_scatter_is_named_with_what_was_held_up() -> None:
    known = {
        str(SIZES[12]): {
            "low_ns": 283 * MS,
            "high_ns": 650 * MS,
            "clean_ns": 283 * MS,
            "stalled_ns": 600 * MS,
            "stalled_share": 0.4,
        },
        str(SIZES[11]): {"low_ns": 142 * MS, "high_ns": 143 * MS},
    }
    found = doubtful_points(curve(0, 17), known)
    assert [point.num_bytes for point in found] == [SIZES[12]]
    assert found[0].why == (
        "scatters: 283.00 ms to 650.00 ms with 95 % confidence; 40% of its messages were held up, for "
        "600.00 ms instead of 283.00 ms"
    )
