"""Ranks that differ: what is legal, and what an error says."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import InputError
from sim.nouns.ranks import RankGroup, Ranks, SlowRanks


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("pace_jitter", -0.1),
        ("pace_jitter", 2.1),
        ("pace_jitter", float("nan")),
        ("pace_spread", float("inf")),
        ("stall_probability", 1.1),
        ("stall_ns", -1),
    ],
)
def test_an_error_names_the_field_its_value_and_what_is_legal(field: str, value: float) -> None:
    given: dict[str, Any] = {field: value}
    with pytest.raises(InputError, match=rf"^{field}: {value:g} is not legal; give "):
        Ranks(name="r", **given)


@pytest.mark.parametrize(("probability", "stall"), [(0.1, 0), (0.0, 5)])
def test_a_stall_has_a_probability_and_a_length(probability: float, stall: int) -> None:
    with pytest.raises(
        InputError, match=r"stall_ns: \d with stall_probability .*give both above 0, or neither"
    ):
        Ranks(name="r", stall_probability=probability, stall_ns=stall)


@pytest.mark.parametrize("pace", [0.0, -1.0, 1e-4, 1e4, float("nan"), float("inf")])
def test_a_pace_is_a_factor_within_reason(pace: float) -> None:
    with pytest.raises(InputError, match=r"pace: .* is not legal; give a factor, 0.001 to 1000"):
        SlowRanks(first=0, pace=pace)


@given(st.integers(0, 9), st.integers(1, 9), st.integers(0, 9), st.integers(1, 9))
def test_a_rank_is_in_one_group(first: int, count: int, other: int, many: int) -> None:
    groups = (
        RankGroup(first=first, count=count, workload="a.json"),
        RankGroup(first=other, count=many, workload="b.json"),
    )
    both = set(range(first, first + count)) & set(range(other, other + many))
    if not both:
        assert Ranks(name="r", groups=groups).groups == groups
        return
    with pytest.raises(InputError, match=rf"groups: rank {min(both)} is in two groups"):
        Ranks(name="r", groups=groups)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 5))
def test_ranges_end_where_ranks_do(world_size: int, first: int, count: int) -> None:
    for ranks, name in (
        (Ranks(name="r", slow=(SlowRanks(first=first, count=count, pace=2.0),)), "slow"),
        (Ranks(name="r", groups=(RankGroup(first=first, count=count, workload="w"),)), "groups"),
    ):
        if first + count <= world_size:
            ranks.check_fits(world_size)
            continue
        with pytest.raises(InputError, match=rf"{name}.0: ranks {first} to .* world_size {world_size}, "):
            ranks.check_fits(world_size)


def test_a_group_names_its_workload() -> None:
    with pytest.raises(InputError, match="workload: an empty name"):
        RankGroup(first=0, workload="")
