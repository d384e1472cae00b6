"""What is remembered is of just what was asked for, bounded by weight, and forgets the longest ago."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.memo import memo, one
from app.playing import Choice
from sim.nouns.workload import Workload


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 12)), max_size=40), st.integers(0, 20))
def test_no_more_than_the_weight_but_always_the_last(asked: list[tuple[int, int]], most: int) -> None:
    @memo(most, lambda made, *_: made[1])
    def kept(key: int, make: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        return make()

    for key, weight in asked:
        made = kept(key, lambda key=key, weight=weight: (key, weight))  # type: ignore[misc]
        found = [value for number in range(10) if (value := kept.known(number, tuple)) is not None]
        assert kept.known(key, tuple) is made
        assert len(found) == 1 or sum(weight for _, weight in found) <= most


def test_what_raises_is_not_kept() -> None:
    @memo(1)
    def kept(key: str, make: Callable[[], int]) -> int:
        return make()

    with pytest.raises(ZeroDivisionError):
        kept("a", lambda: 1 // 0)
    assert kept("a", lambda: 2) == 2


def test_a_noun_stands_for_itself_and_a_file_for_what_is_in_it(tmp_path: Path, workload: Workload) -> None:
    made: list[str] = []

    @memo(9)
    def name(choice: Choice, workload: Workload, path: Path) -> str:
        made.append(path.read_text())
        return workload.name

    def times(workload: Workload, **options: object) -> int:
        name(Choice(pick="cap", options=tuple(options.items())), workload, path)
        return len(made)

    (path := tmp_path / "file").write_text("a")
    other = replace(workload)
    assert [times(workload), times(workload), times(other)] == [1, 1, 2]
    assert [times(workload, comm_hook={"name": "x"}), times(workload, comm_hook={"name": "x"})] == [3, 3]
    path.write_text("other")
    assert times(workload) == 4
    assert one(replace(workload)) is one(replace(other)), "what says the same is read once"
