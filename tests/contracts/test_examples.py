"""The contract's worked examples, to the nanosecond: Python and command line, both engines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint, Hardware

EXAMPLES = Path(__file__).parent / "examples"
EXPECTED = json.loads((EXAMPLES / "expected.json").read_text())
CASES: list[dict[str, Any]] = EXPECTED["cases"]
FIGURES = ("backward_end_ns", "sync_end_ns", "exposed_comm_ns", "step_ns", "overlap_ratio")
ENGINES = ("simpy", "analytic")

each_case = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
each_engine = pytest.mark.parametrize("engine", ENGINES)


def hardware_of(case: dict[str, Any]) -> Hardware:
    changes = dict(case.get("hardware", {}))
    if "all_reduce" in changes:
        changes["all_reduce"] = tuple(CurvePoint(**point) for point in changes["all_reduce"])
    return replace(sim.load_hardware(EXAMPLES / "hardware.json"), **changes)


def buckets_of(case: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(bucket) for bucket in case["bucket_indices"])


def test_there_are_twelve_cases() -> None:
    assert len(CASES) == 12


@each_engine
@each_case
def test_example_in_python(case: dict[str, Any], engine: str) -> None:
    workload = sim.load_workload(EXAMPLES / "workload.json")
    if "policy" in case:
        assignment = sim.assign(workload, **case["policy"])
        assert assignment.bucket_indices == buckets_of(case)
    else:
        assignment = Assignment(bucket_indices=buckets_of(case))
    report = sim.summarize(sim.simulate(workload, hardware_of(case), assignment, engine))
    assert {name: getattr(report, name) for name in FIGURES} == {name: case[name] for name in FIGURES}
    assert report.engine == engine


def test_optimum_in_python() -> None:
    expected = EXPECTED["optimum"]
    workload = sim.load_workload(EXAMPLES / "workload.json")
    answer = sim.tune(workload, sim.load_hardware(EXAMPLES / "hardware.json"))
    assert answer.assignment.bucket_indices == buckets_of(expected)
    assert answer.report.sync_end_ns == expected["sync_end_ns"]
    assert answer.lower_bound_ns == expected["lower_bound_ns"]
    assert answer.proved_optimal
    assert answer.report.engine == "simpy"
