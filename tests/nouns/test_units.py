"""The only conversions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.units import (
    cap_bytes,
    format_mib_range,
    format_number,
    format_percent,
    format_size,
    parse_cap_mb,
    parse_rate_bits,
    parse_size,
)

MIB = 1 << 20


@given(st.integers(0, 2**50))
def test_a_cap_of_bytes_over_mib_gives_the_bytes_back(size: int) -> None:
    """B(i): division by 2**20 is exact, so int(mb * 2**20) restores the bytes."""
    assert cap_bytes(size / MIB) == size


@given(st.floats(0, 1e9))
def test_caps_are_cut_as_torch_cuts_them(cap: float) -> None:
    """A2.1: int(mb * 2**20)."""
    assert cap_bytes(cap) == int(cap * 1024 * 1024)


@pytest.mark.parametrize("cap", [-1.0, -1e-9, float("nan"), float("inf")])
def test_caps_that_are_not_legal(cap: float) -> None:
    with pytest.raises(InputError, match="bucket cap"):
        cap_bytes(cap)


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("25", 25.0),
        ("0.05", 0.05),
        ("25MiB", 25.0),
        ("25 mib", 25.0),
        ("1GiB", 1024.0),
        ("512KiB", 0.5),
        ("1048576B", 1.0),
        ("1e3KiB", 1000 / 1024),
        ("1MB", 10**6 / MIB),
        (" 7 ", 7.0),
        ("0", 0.0),
    ],
)
def test_caps_accept_sizes(text: str, mb: float) -> None:
    """CONTRACT, Command line: sizes accept 25MiB; a bare bucket_cap_mb is MiB."""
    assert parse_cap_mb(text) == mb


@pytest.mark.parametrize(
    ("text", "size"),
    [("4096", 4096), ("4KiB", 4096), ("256MiB", 256 * MIB), ("1.5KB", 1500), ("2gb", 2 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "bits"),
    [("4gbit", 4 * 10**9), ("500mbit", 5 * 10**8), ("1.5Gbit", 15 * 10**8), ("10kbit", 10**4)],
)
def test_rates(text: str, bits: int) -> None:
    assert parse_rate_bits(text) == bits


@pytest.mark.parametrize("parse", [parse_cap_mb, parse_size, parse_rate_bits])
@pytest.mark.parametrize("text", ["", "MiB", "-1", "1 2", "5apples", "0x10", "nan", "inf", "1,5", "²"])
def test_what_is_no_size_is_refused_by_value(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError) as caught:
        parse(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["1e999", "1e308GiB"])
def test_sizes_beyond_a_float_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_size(text)
    with pytest.raises(InputError):
        cap_bytes(parse_cap_mb(text))


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="above 0"):
        parse_rate_bits("0gbit")


@given(st.integers(0, 1 << 60))
def test_no_size_is_told_in_powers_of_ten_or_as_1024_of_a_smaller_unit(size: int) -> None:
    number, unit = format_size(size).split()
    assert "e" not in number
    assert unit == "GiB" or float(number) < 1024
    assert parse_size(format_size(size).replace(" ", "")) == pytest.approx(size, rel=6e-3, abs=0.5)


@given(st.floats(0, 1e6), st.floats(1, 1e3))
def test_the_ends_of_a_range_lie_in_it(low: float, factor: float) -> None:
    low, high = round(low, 6), round(low * factor + 1e-6, 6)
    ends = [float(end) for end in format_mib_range(low, high).split(" to ")]
    assert all(low <= end <= high for end in ends)
    assert low <= float(format_mib_range(low, None).removesuffix(" up"))


def test_ranges_read_as_people_write_them() -> None:
    ranges = [(25.015, 282.4), (25, 25), (24.99, 25.2), (0.25, 1024), (1000.4, 1000.6)]
    assert [format_mib_range(*one) for one in ranges] == [
        *("25.1 to 282", "25", "25 to 25.2", "0.25 to 1020", "1000.4 to 1000.6")
    ]


@given(st.floats(-2, 2), st.integers(0, 2), st.booleans())
def test_what_is_not_quite_nothing_or_all_does_not_read_so(share: float, digits: int, sign: bool) -> None:
    text = format_percent(share, digits, sign=sign)
    figure = text.removeprefix("more than ").removeprefix("less than ")
    is_edge = abs(float(figure.rstrip("%"))) in (0, 100)
    assert "e" not in figure
    assert not is_edge or share in (-1, 0, 1) or text == "more than 100%" or abs(share) > 1
    if text == figure and not is_edge:
        assert float(figure.rstrip("%")) / 100 == pytest.approx(share, abs=0.51 * 10.0 ** -(digits + 2))


@given(st.floats(1e-12, 1e15), st.integers(1, 6))
def test_no_number_is_told_in_powers_of_ten(value: float, digits: int) -> None:
    text = format_number(value, digits)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits), abs=0)
