"""Times as traces write them, and which events are kept."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.importer.kineto.events import time_ns


@given(st.integers(-(4 * 10**15), 4 * 10**15))
def test_whole_microseconds(value: int) -> None:
    assert time_ns(value, "t") == 1000 * value
    assert time_ns(str(value), "t") == 1000 * value


@given(st.integers(-(4 * 10**18), 4 * 10**18))
def test_nanoseconds_of_any_clock_are_exact(value: int) -> None:
    """A float would lose them: 2026 in microseconds has 16 digits before the point."""
    sign, (whole, rest) = "-" * (value < 0), divmod(abs(value), 1000)
    assert time_ns(f"{sign}{whole}.{rest:03d}", "t") == value
    assert time_ns(f"{sign}{whole}.{rest:03d}000", "t") == value


@given(st.decimals(-(10**12), 10**12, places=6))
def test_more_decimals_are_rounded_to_the_nearest_half_to_even(value: Decimal) -> None:
    assert time_ns(format(value, "f"), "t") == round(Fraction(value) * 1000)


@pytest.mark.parametrize(("text", "time"), [("1e3", 1_000_000), ("1.5E-3", 2), ("2.5e-3", 2), ("0.0", 0)])
def test_exponents(text: str, time: int) -> None:
    assert time_ns(text, "t") == time


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 1.5, [], {}, "", "x", "1 2", "nan", "sNaN", "Infinity", "-inf", "1e400", "1e999999999"),
        *(10**19, -(10**30), "9" * 100, "1" + "0" * 30, "0." + "0" * 5000),
    ],
)
def test_what_is_no_time_is_an_error_of_one_line(value: object) -> None:
    with pytest.raises(InputError, match=r"^t: .* is not legal; give a time in microseconds$") as error:
        time_ns(value, "t")
    assert len(str(error.value)) < 150
