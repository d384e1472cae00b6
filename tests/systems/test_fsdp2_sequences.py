"""What a simulation says is sent under FSDP2 is what the real one sends: every collective, in order."""

from functools import cache
from typing import Any

import pytest

from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.systems import fsdp2
from sim.systems.bucketing import Caps
from tests.handmade import handmade
from tests.systems.ddp_ranks import run_cases
from tests.systems.fsdp2_cases import EVERYDAY, Case, hybrid_case, random_case

pytestmark = pytest.mark.dist
COMPARED = ("phase", "kind", "elements", "dtype")
FREE = (CurvePoint(num_bytes=0, duration_ns=0),)


def workload_of(answer: Any) -> Workload:
    """What a rank trained, ready in the order that was seen without FSDP."""
    parameters = answer["parameters"]
    return handmade(
        [1 + answer["ready"].index(index) for index in range(len(parameters))],
        names=[one["name"] for one in parameters],
        shapes=[one["shape"] for one in parameters],
        dtypes=[one["dtype"] for one in parameters],
    )


def simulated(case: Case, workload: Workload, world_size: int) -> list[dict[str, Any]]:
    """The collectives of a step in the order of their launches, as real ranks tell them."""
    hardware = Hardware(
        name="any", world_size=world_size, all_reduce=FREE, reduce_scatter=FREE, all_gather=FREE
    )
    settings = case["settings"] | {"units": case["units"]}
    assignment = fsdp2.assign(workload, fsdp2.POLICY, Caps(), settings, "steady")
    return [
        {name: getattr(sent, name) for name in COMPARED} | {"micro_batch": number}
        for number, program in enumerate(fsdp2.write(workload, hardware, assignment, "steady"), start=1)
        for sent in (*program.before_forward, *program.collectives, *program.after_sync)
    ]


def check(case: Case, by_rank: list[Any], world_size: int) -> None:
    """Every rank sent in each step what the simulation says is sent."""
    for answer in by_rank:
        assert answer["error"] is None, (case, answer["error"])
        expected = simulated(case, workload_of(answer), world_size)
        for step in (1, 2):
            told = [
                {name: event[name] for name in (*COMPARED, "micro_batch")}
                for event in answer["events"]
                if event["step"] == step
            ]
            assert told == expected, (case, step)
    replicas = case["settings"].get("replicas", 1)
    for rank, answer in enumerate(by_rank if replicas > 1 else ()):
        shards = world_size // replicas
        row = [rank // shards * shards + other for other in range(shards)]
        column = [rank % shards + other * shards for other in range(replicas)]
        groups = [column if event["kind"] == "all_reduce" else row for event in answer["events"]]
        assert answer["groups"] == groups, case


QUICK = 12  # of the cases under HSDP


@cache
def hybrid_answers() -> list[tuple[Case, list[Any]]]:
    """A few cases on 2 replicas x 2 ranks that share, and what the 4 ranks answer; run once."""
    cases = [hybrid_case(seed) for seed in range(QUICK)]
    return list(zip(cases, run_cases(cases, worker="fsdp2_worker", world_size=4), strict=True))


@cache
def everyday_answers() -> dict[str, list[Any]]:
    """What every rank answers to ``EVERYDAY``, by name; run once."""
    return dict(zip(EVERYDAY, run_cases(list(EVERYDAY.values()), worker="fsdp2_worker"), strict=True))


@pytest.mark.parametrize("name", EVERYDAY)
def test_real_ranks_send_what_is_simulated(name: str) -> None:
    check(EVERYDAY[name], everyday_answers()[name], world_size=2)


@pytest.mark.parametrize("place", range(QUICK))
def test_replicas_of_ranks_that_share_send_what_is_simulated(place: int) -> None:
    """A10.7, with the ranks of every group."""
    check(*hybrid_answers()[place], world_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "world_size"), [(QUICK, 4), (58, 4)])
def test_random_replicas_send_what_is_simulated(first: int, world_size: int) -> None:
    cases = [hybrid_case(seed) for seed in range(first, first + 46)]
    answers = run_cases(cases, worker="fsdp2_worker", world_size=world_size)
    for case, by_rank in zip(cases, answers, strict=True):
        check(case, by_rank, world_size)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "world_size"), [(0, 2), (60, 3), (80, 4)])
def test_real_ranks_send_what_is_simulated_on_random_models(first: int, world_size: int) -> None:
    cases = [random_case(seed) for seed in range(first, first + (60 if world_size == 2 else 20))]
    answers = run_cases(cases, worker="fsdp2_worker", world_size=world_size)
    for case, by_rank in zip(cases, answers, strict=True):
        check(case, by_rank, world_size)
