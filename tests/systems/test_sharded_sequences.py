"""What a simulation says is sent under ZeRO, Megatron-Core and FSDP2 is what the real ones send, in order."""

import re
from typing import Any

import pytest

from sim.errors import NotModelledError, SimError
from sim.systems.megatron import lay_out_buffers, read_megatron_settings
from sim.systems.registry import plan
from tests.systems.sharded import (
    SYSTEMS,
    assigned,
    everyday_answers,
    run,
    simulated,
    told,
    workload_of,
)
from tests.systems.sharded_cases import (
    HALF_USED,
    HYBRID,
    REFUSED,
    VECTORS,
    Case,
    hybrid_case,
    m1_workload,
    random_fsdp2,
    random_megatron,
    random_zero,
)

pytestmark = pytest.mark.dist
TRAINED = [
    (system, name)
    for system, of in SYSTEMS.items()
    for name in of.everyday
    if name not in REFUSED and name != HALF_USED
]


def check(system: str, case: Case, by_rank: list[Any], world_size: int) -> None:
    """Every rank did what the simulation says, as it was made and in each iteration."""
    for rank, answer in enumerate(by_rank):
        assert answer["error"] is None, (case, answer["error"])
        workload = workload_of(answer)
        for iteration in (1, 2, 3)[: 3 if system == "megatron" else 2]:
            asked = iteration if system == "megatron" else "steady"  # the others send alike from the first on
            sent = simulated(system, case, workload, asked, world_size)
            assert told(system, answer, iteration) == sent, (case, iteration)
        if system == "zero":
            check_construction(case, answer)
        elif system == "megatron":
            settings = read_megatron_settings(SYSTEMS[system].asked(case)[1], workload)
            laid_out = lay_out_buffers(workload, settings, world_size)
            cut = [bucket for group in answer["buckets"] for bucket in group]
            assert cut == [[list(one.members), one.elements] for one in laid_out], case
        elif (replicas := case["settings"].get("replicas", 1)) > 1:
            check_groups(case, answer, rank, world_size // replicas, replicas)


def check_construction(case: Case, answer: Any) -> None:
    """Frozen parameters the real one sends too: such a case is not compared."""
    workload = workload_of(answer)
    made = plan(workload, assigned("zero", case, workload), None).construct()
    facts = ("kind", "elements", "dtype", "phase", "gradient", "root")
    sent = [{fact: event[fact] for fact in facts} for event in told("zero", answer, 0)]
    assert case.get("frozen") or sent == [{fact: getattr(one, fact) for fact in facts} for one in made], case


def check_groups(case: Case, answer: Any, rank: int, shards: int, replicas: int) -> None:
    """A10.7: a rank shares with those of its row, and has a replica in each row."""
    row = [rank // shards * shards + other for other in range(shards)]
    column = [rank % shards + other * shards for other in range(replicas)]
    groups = [column if event["kind"] == "all_reduce" else row for event in answer["events"]]
    assert answer["groups"] == groups, case


@pytest.mark.parametrize(("system", "name"), TRAINED)
def test_real_ranks_send_what_is_simulated(system: str, name: str) -> None:
    check(system, SYSTEMS[system].everyday[name], everyday_answers(system)[name], world_size=2)


def test_replicas_of_ranks_that_share_send_what_is_simulated() -> None:
    """A10.7, on 2 x 2 ranks, with the ranks of every group."""
    cases = [hybrid_case(seed) for seed in range(HYBRID)]
    for case, by_rank in zip(cases, run("fsdp2", cases, world_size=4), strict=True):
        check("fsdp2", case, by_rank, world_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "make", "seeds", "world_size"),
    [
        *(("zero", random_zero, range(first, first + 50), 2) for first in (100, 150, 200)),
        *(("zero", random_zero, range(300, 315), ranks) for ranks in (1, 3, 4)),  # straddle more partitions
        *(("megatron", random_megatron, range(first, first + 50), 2) for first in (0, 50)),
        ("megatron", random_megatron, range(100, 120), 1),
        ("megatron", random_megatron, range(120, 140), 3),
        ("megatron", random_megatron, range(140, 160), 4),
        ("fsdp2", random_fsdp2, range(60), 2),
        ("fsdp2", random_fsdp2, range(60, 80), 3),
        ("fsdp2", random_fsdp2, range(80, 100), 4),
        *(("fsdp2", hybrid_case, range(first, first + 46), 4) for first in (HYBRID, 58)),
    ],
)
def test_random_models_send_what_is_simulated(system: str, make: Any, seeds: range, world_size: int) -> None:
    cases = [make(seed) for seed in seeds]
    for case, by_rank in zip(cases, run(system, cases, world_size=world_size), strict=True):
        check(system, case, by_rank, world_size)


@pytest.mark.parametrize("name", REFUSED)
def test_what_deepspeed_refuses_is_refused_by_the_same_name(name: str) -> None:
    words = REFUSED[name][1]
    for answer in everyday_answers("zero")[name]:
        assert answer["error"] is not None
        assert re.search(words, answer["error"][1]), answer["error"]
    with pytest.raises(SimError, match=words):
        simulated("zero", SYSTEMS["zero"].everyday[name], m1_workload())


def test_where_megatron_stops_the_simulation_refuses() -> None:
    for answer in everyday_answers("megatron")[HALF_USED]:
        assert answer["error"][0] == "AssertionError"
        with pytest.raises(NotModelledError, match="others of its bucket are"):
            assigned("megatron", SYSTEMS["megatron"].everyday[HALF_USED], workload_of(answer))


@pytest.mark.parametrize("name", VECTORS)
def test_the_simulation_gives_the_vectors_of_zero(name: str) -> None:
    """T6 to T8: gradients, then what step() sends: a norm, and all parameters gathered (A5.11)."""
    case, gradients = VECTORS[name]
    sent = [("all_reduce", *one) for one in gradients]
    sent += [("all_reduce", 1, "step", None), ("all_gather", 41152, "step", None)]
    assert [
        tuple(event[fact] for fact in ("kind", "elements", "phase", "gradient"))
        for event in simulated("zero", case, m1_workload())
    ] == sent
