"""What is remembered is bounded by weight and forgets what was asked for longest ago."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.remembering import Remembered


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=40), st.integers(0, 20))
def test_no_more_than_the_weight_but_always_the_last(asked: list[tuple[int, int]], most: int) -> None:
    kept: Remembered[tuple[int, int]] = Remembered(most)
    for key, weight in asked:
        made = kept.get(key, lambda key=key, weight=weight: (key, weight), weight)  # type: ignore[misc]
        found = [value for number in range(10) if (value := kept.find(number)) is not None]
        assert kept.find(key) is made
        assert len(found) == 1 or sum(weight for _, weight in found) <= most


def test_what_raises_is_not_kept() -> None:
    kept: Remembered[int] = Remembered(1)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 2) == 2
