"""What a simulation says is sent under Megatron-Core is what the real one sends, bucket by bucket."""

from typing import Any

import pytest

from sim.errors import NotModelledError
from tests.systems.megatron_cases import EVERYDAY, HALF_USED, Case, random_case
from tests.systems.megatron_ranks import (
    assigned,
    buckets_of,
    everyday_answers,
    run_megatron,
    simulated,
    told,
    workload_of,
)

pytestmark = pytest.mark.dist


def check(case: Case, by_rank: list[Any], world_size: int) -> None:
    """Every rank cut what the simulation cuts, and sent in each step what it says is sent."""
    for answer in by_rank:
        assert answer["error"] is None, (case, answer["error"])
        workload = workload_of(answer)
        cut = [bucket for group in answer["buckets"] for bucket in group]
        assert cut == buckets_of(case, workload, world_size), case
        for step in (1, 2, 3):
            assert told(answer, step) == simulated(case, workload, step, world_size), (case, step)


@pytest.mark.parametrize("name", EVERYDAY)
def test_real_megatron_cuts_and_sends_what_is_simulated(name: str) -> None:
    check(EVERYDAY[name], everyday_answers()[name], world_size=2)


def test_where_megatron_stops_the_simulation_refuses() -> None:
    for answer in everyday_answers()["half used"]:
        assert answer["error"][0] == "AssertionError"
        with pytest.raises(NotModelledError, match="others of its bucket are"):
            assigned(HALF_USED, workload_of(answer))


@pytest.mark.slow
@pytest.mark.parametrize(("first", "world_size"), [(0, 2), (50, 2), (100, 1), (120, 3), (140, 4)])
def test_real_megatron_sends_what_is_simulated_on_random_models(first: int, world_size: int) -> None:
    cases = [random_case(seed) for seed in range(first, first + (50 if world_size == 2 else 20))]
    for case, by_rank in zip(cases, run_megatron(cases, world_size=world_size), strict=True):
        check(case, by_rank, world_size)
