"""What is remembered is bounded by weight and forgets what was asked for longest ago."""

import gc
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import cached
from app.cached import Inputs
from app.choosing import Choice, WhatIf
from app.remembering import Remembered
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.app.conftest import MIB, make_inputs


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=40), st.integers(0, 20))
def test_no_more_than_the_weight_but_always_the_last(asked: list[tuple[int, int]], most: int) -> None:
    kept: Remembered[tuple[int, int]] = Remembered(most)
    for key, weight in asked:
        made = kept.get(key, lambda key=key, weight=weight: (key, weight), weight)  # type: ignore[misc]
        found = [value for number in range(10) if (value := kept.find(number)) is not None]
        assert kept.find(key) is made
        assert len(found) == 1 or sum(weight for _, weight in found) <= most


def test_the_one_asked_for_longest_ago_goes_first() -> None:
    kept: Remembered[str] = Remembered(2)
    for key in ("a", "b", "a", "c"):
        kept.get(key, lambda key=key: key)  # type: ignore[misc]
    assert [kept.find(key) for key in "abc"] == ["a", None, "c"]


def test_the_very_object_is_handed_out_and_made_once() -> None:
    kept: Remembered[object] = Remembered(1)
    assert kept.get("a", object) is kept.get("a", object)


def test_what_raises_is_not_kept() -> None:
    kept: Remembered[int] = Remembered(1)
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: 1 // 0)
    assert kept.get("a", lambda: 2) == 2


def test_a_weight_may_be_told_by_what_was_made() -> None:
    kept: Remembered[str] = Remembered(4)
    for word in ("aa", "bb", "ccc"):
        kept.get(word, lambda word=word: word, len)  # type: ignore[misc]
    assert [kept.find(word) for word in ("aa", "bb", "ccc")] == [None, None, "ccc"]


@pytest.mark.usefixtures("fresh")
def test_all_that_is_kept_of_small_jobs_takes_little(workload: Workload, hardware: Hardware) -> None:
    """As many results as there is room for, each as large as that of the job of twenty layers."""
    inputs = Inputs(workload=workload, hardware=hardware, workload_digest="w", hardware_digest="h")
    choice = Choice(pick="cap", cap_mb=0.25)  # a bucket for each gradient
    assert cached.play(cached.scale(inputs, WhatIf(backward=2.0)), choice).path  # kept with what was played
    cached.best(inputs)
    cached.tune(inputs)
    cached.band(inputs)
    full = {
        name: sum(kept._most // weight * size(value) for value, weight in kept._kept.values())
        for name, kept in vars(cached).items()
        if isinstance(kept, Remembered)
    }
    assert {"_SCALED", "_PLAYED", "_BEST", "_TUNED", "_SWEPT"} <= {
        name for name, taken in full.items() if taken
    }
    assert sum(full.values()) < 32 * MIB, {name: taken / MIB for name, taken in full.items()}


def size(value: object) -> int:
    """The bytes that a result takes, with all that it holds."""
    seen: dict[int, object] = {}
    left = [value]
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, type):
            seen[id(one)] = one
            left += gc.get_referents(one)
    return sum(map(sys.getsizeof, seen.values()))


def test_the_band_of_a_long_step_is_read_from_fewer_draws(
    workload: Workload, hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsure = make_inputs(replace(workload, estimated=True, band=(0.5, 2.0)), hardware)
    assert cached.banded(unsure) is None
    monkeypatch.setattr(cached, "_DRAWN_GRADIENTS", 500 * len(workload.gradients))
    points = cached.band(unsure)
    assert all(500 <= point.draws < 550 for point in points)
    assert cached.banded(unsure) is points
