"""Micro-batches that each reduce, against real DistributedDataParallel over gloo (A3.12, A3.16)."""

from typing import Any

import pytest

import sim
from sim.nouns.hardware import CurvePoint, Hardware
from sim.systems.registry import write
from tests.systems.ddp_ranks import run_cases
from tests.systems.ddp_simulated import options_of, workload_of

pytestmark = pytest.mark.dist

MICRO_BATCHES = 3
LAYERS = [
    {"kind": "linear", "width": 8, "out": 12},
    {"kind": "batch_norm", "width": 12},
    {"kind": "linear", "width": 12, "out": 6},
]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "batched": {"batched_grad_copy": True},
    "searched": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "no buffers": {"broadcast_buffers": False},
}
FREE = (CurvePoint(num_bytes=0, duration_ns=0),)
HARDWARE = Hardware(name="free", world_size=2, all_reduce=FREE, broadcast=FREE)


@pytest.fixture(scope="module")
def real() -> dict[str, dict[str, Any]]:
    """What rank 0 of two did in each case, and in one under ``no_sync``."""
    cases = {
        name: {
            "layers": LAYERS,
            "ddp": {"bucket_cap_mb": 0.0004, **ddp},
            "accumulation": MICRO_BATCHES,
            "no_sync": False,
        }
        for name, ddp in CASES.items()
    }
    cases["under no_sync"] = {**cases["plain"], "no_sync": True}
    answers = run_cases(list(cases.values()))
    return {name: {"case": cases[name], **by_rank[0]} for name, by_rank in zip(cases, answers, strict=True)}


def events(answer: dict[str, Any], step: int, micro_batch: int) -> list[tuple[Any, ...]]:
    return [
        (event["kind"], event["elements"], event["dtype"], event["phase"], event["gradient"])
        for event in answer["events"]
        if (event["iteration"], event["micro_batch"]) == (step, micro_batch)
    ]


@pytest.mark.parametrize("name", CASES)
def test_sequence(name: str, real: dict[str, dict[str, Any]]) -> None:
    """Every micro-batch of a steady step sends its buffers, its buckets, and its map where one is due."""
    answer = real[name]
    assert answer["error"] is None
    workload = workload_of(answer, 4)
    options = {**options_of(answer["case"]), "no_sync": False}
    programs = write(workload, HARDWARE, sim.assign(workload, **options))
    assert len(programs) == MICRO_BATCHES
    for number, program in enumerate(programs, start=1):
        expected = [
            (c.kind, c.elements, c.dtype, c.phase, c.gradient)
            for c in (*program.before_forward, *program.collectives)
        ]
        assert expected == events(answer, 4, number), number


def test_it_sends_as_many_times_as_there_are_micro_batches(real: dict[str, dict[str, Any]]) -> None:
    """The same buckets under ``no_sync`` travel once a step."""
    each, once = (
        [event for number in range(1, MICRO_BATCHES + 1) for event in events(real[name], 4, number)]
        for name in ("plain", "under no_sync")
    )
    reduced = [[event[:3] for event in told if event[0] == "all_reduce"] for told in (each, once)]
    assert len(reduced[1]) > 1
    assert reduced[0] == reduced[1] * MICRO_BATCHES
