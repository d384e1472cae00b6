"""What a simulation says is sent under ZeRO is what real DeepSpeed sends: every collective, in order."""

import re
from typing import Any

import pytest

from sim.errors import SimError
from sim.systems import zero
from sim.systems.bucketing import Caps
from tests.systems.test_zero_vectors import m1_workload
from tests.systems.zero_cases import REFUSED, Case, everyday_cases, random_case
from tests.systems.zero_ranks import (
    COMPARED,
    everyday_answers,
    run_zero,
    settings_of,
    simulated,
    told,
    workload_of,
)

pytestmark = pytest.mark.dist


def run_and_check(cases: list[Case], world_size: int = 2) -> None:
    """Every rank did what the simulation says."""
    for case, by_rank in zip(cases, run_zero(cases, world_size=world_size), strict=True):
        check(case, by_rank, world_size)


def check(case: Case, by_rank: list[Any], world_size: int) -> None:
    """Every rank did what the simulation says, in the constructor and in each iteration."""
    for answer in by_rank:
        assert answer["error"] is None, (case, answer["error"])
        workload = workload_of(answer)
        assert told_by_constructor(answer, case) == constructed(case, workload), case
        for iteration in (1, 2):
            assert told(answer, iteration) == simulated(case, workload, world_size), case


def constructed(case: Case, workload: Any) -> list[dict[str, Any]]:
    """What the constructor sends, by simulation."""
    policy, settings = settings_of(case)
    assignment = zero.assign(workload, policy, Caps(), settings, "steady")
    return [{name: getattr(sent, name) for name in COMPARED} for sent in zero.construct(workload, assignment)]


def told_by_constructor(answer: Any, case: Case) -> list[dict[str, Any]]:
    """What the real one sent; where parameters are frozen it sends them, too, and is not compared."""
    if case.get("frozen"):
        return constructed(case, workload_of(answer))
    return [{name: event[name] for name in COMPARED} for event in told(answer, 0)]


@pytest.mark.parametrize("name", [name for name in everyday_cases() if name.startswith("random")])
def test_real_ranks_send_what_is_simulated(name: str) -> None:
    check(everyday_cases()[name], everyday_answers()[name], world_size=2)


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 150, 200])
def test_real_ranks_send_what_is_simulated_on_50_models(first: int) -> None:
    run_and_check([random_case(seed) for seed in range(first, first + 50)])


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_any_number_of_ranks_sends_what_is_simulated(world_size: int) -> None:
    """Parameters straddle more partitions."""
    run_and_check([random_case(seed) for seed in range(300, 315)], world_size)


@pytest.mark.parametrize("name", REFUSED)
def test_what_deepspeed_refuses_is_refused_by_the_same_name(name: str) -> None:
    words = REFUSED[name][1]
    for answer in everyday_answers()[name]:
        assert answer["error"] is not None
        assert re.search(words, answer["error"][1]), answer["error"]
    with pytest.raises(SimError, match=words):
        simulated(everyday_cases()[name], m1_workload())
