"""What a simulation says is sent under ZeRO, Megatron-Core, FSDP2 and the textbook systems is what real ones
send, in order."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from sim.errors import NotModelledError, SimError
from sim.systems import megatron
from tests.effort import IS_WHOLE
from tests.systems import real
from tests.systems.cases import mlp
from tests.systems.random_cases import (
    FSDP2,
    HALF_USED,
    M1,
    MEGATRON,
    REFUSED,
    VECTORS,
    Case,
    hybrid_case,
    random_fsdp2,
    random_megatron,
    random_zero,
    textbook_cases,
)
from tests.systems.real import Answer, assigned, run, workload_of

pytestmark = pytest.mark.dist
HYBRID = 12 if IS_WHOLE else 6  # cases under HSDP, as many random ones under ZeRO
ZERO = {name: M1 | {"config": made} for name, (made, _) in {**VECTORS, **REFUSED}.items()}
EVERYDAY: dict[str, dict[str, Case]] = {
    "zero": ZERO | {f"random {seed}": random_zero(seed) for seed in range(HYBRID)},
    "megatron": MEGATRON,
    "fsdp2": FSDP2,
    "textbook": {
        f"{one['policy']} {place}": one for place, one in enumerate(textbook_cases(range(HYBRID // 3)))
    },
}
TRAINED = [
    (system, name)
    for system, cases in EVERYDAY.items()
    for name in cases
    if name not in REFUSED and name != HALF_USED
]


@cache
def everyday_answers(system: str) -> dict[str, list[Answer]]:
    """What each of two ranks answers to the everyday cases of a system, by name; run once."""
    cases = EVERYDAY[system]
    return dict(zip(cases, run(system, list(cases.values())), strict=True))


def check(system: str, case: Case, by_rank: list[Answer]) -> None:
    """Every rank did what the simulation says, in the buckets and groups that it says."""
    real.check(system, case, by_rank)
    for rank, answer in enumerate(by_rank):
        workload = workload_of(answer)
        if system == "megatron":
            parts = megatron.plan(workload, assigned(system, case, workload), len(by_rank)).parts
            assert answer["buckets"] == [[list(one.members), one.elements] for one in parts], case
        elif system == "textbook":
            assert answer["buckets"] == [*map(list, assigned(system, case, workload).bucket_indices)], case
        elif system == "fsdp2" and (replicas := case["settings"].get("replicas", 1)) > 1:
            # A10.7: a rank shares with those of its row, and has a replica in each row.
            shards = len(by_rank) // replicas
            row = [rank // shards * shards + other for other in range(shards)]
            column = [rank % shards + other * shards for other in range(replicas)]
            groups = [column if event["kind"] == "all_reduce" else row for event in answer["events"]]
            assert [event["group"] for event in answer["events"]] == groups, case


@pytest.mark.parametrize(("system", "name"), TRAINED)
def test_real_ranks_send_what_is_simulated(system: str, name: str) -> None:
    check(system, EVERYDAY[system][name], everyday_answers(system)[name])


def test_replicas_of_ranks_that_share_send_what_is_simulated() -> None:
    """A10.7, on 2 x 2 ranks, with the ranks of every group."""
    cases = [hybrid_case(seed) for seed in range(HYBRID)]
    for case, by_rank in zip(cases, run("fsdp2", cases, world_size=4), strict=True):
        check("fsdp2", case, by_rank)


def each(make: Callable[[int], Case]) -> Callable[[range], list[Case]]:
    return lambda seeds: [make(seed) for seed in seeds]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "make", "seeds", "world_size"),
    [
        *(("zero", each(random_zero), range(first, first + 50), 2) for first in (100, 150, 200)),
        *(("zero", each(random_zero), range(300, 315), ranks) for ranks in (1, 3, 4)),  # more partitions
        *(("megatron", each(random_megatron), range(first, first + 50), 2) for first in (0, 50)),
        ("megatron", each(random_megatron), range(100, 120), 1),
        ("megatron", each(random_megatron), range(120, 140), 3),
        ("megatron", each(random_megatron), range(140, 160), 4),
        ("fsdp2", each(random_fsdp2), range(60), 2),
        ("fsdp2", each(random_fsdp2), range(60, 80), 3),
        ("fsdp2", each(random_fsdp2), range(80, 100), 4),
        *(("fsdp2", each(hybrid_case), range(first, first + 46), 4) for first in (12, 58)),
        *(("textbook", textbook_cases, range(first, first + 25), 2) for first in range(100, 200, 25)),
    ],
)
def test_random_models_send_what_is_simulated(system: str, make: Any, seeds: range, world_size: int) -> None:
    cases = make(seeds)
    for case, by_rank in zip(cases, run(system, cases, world_size=world_size), strict=True):
        check(system, case, by_rank)


@pytest.mark.parametrize("name", REFUSED)
def test_what_deepspeed_refuses_is_refused_by_the_same_name(name: str) -> None:
    words = REFUSED[name][1]
    for answer in everyday_answers("zero")[name]:
        assert re.search(words, answer["error"]["text"]), answer["error"]
    with pytest.raises(SimError, match=words):
        assigned("zero", ZERO[name], mlp())


def test_where_megatron_stops_the_simulation_refuses() -> None:
    for answer in everyday_answers("megatron")[HALF_USED]:
        assert answer["error"]["type"] == "AssertionError"
        with pytest.raises(NotModelledError, match="others of its bucket are"):
            assigned("megatron", MEGATRON[HALF_USED], workload_of(answer, 1))


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_of_zero_are_as_written(name: str) -> None:
    """T6 to T8: gradients, then what step() sends: a norm, and all parameters gathered (A5.11)."""
    gradients = VECTORS[name][1]
    written = [("all_reduce", *one) for one in gradients]
    written += [("all_reduce", 1, "step", None), ("all_gather", 41152, "step", None)]
    (answer, _) = everyday_answers("zero")[name]
    facts = ("kind", "elements", "phase", "gradient")
    told = [tuple(one[fact] for fact in facts) for one in answer["events"]]
    assert told[-len(written) :] == written
