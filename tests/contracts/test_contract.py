"""The contract's worked examples, to the nanosecond, by both engines; and no logic reads prose."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import CurvePoint

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(__file__).parent / "examples"
WORKLOAD = sim.load_workload(EXAMPLES / "workload.json")
HARDWARE = sim.load_hardware(EXAMPLES / "hardware.json")
EXPECTED = json.loads((EXAMPLES / "expected.json").read_text())
CASES: list[dict[str, Any]] = EXPECTED["cases"]
FIGURES = ("backward_end_ns", "sync_end_ns", "exposed_comm_ns", "step_ns", "overlap_ratio")


def buckets_of(case: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(bucket) for bucket in case["bucket_indices"])


@pytest.mark.parametrize("engine", ["simpy", "analytic"])
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_example_in_python(case: dict[str, Any], engine: str) -> None:
    assert len(CASES) == 12
    changes = dict(case.get("hardware", {}))
    if "all_reduce" in changes:
        changes["all_reduce"] = tuple(CurvePoint(**point) for point in changes["all_reduce"])
    assignment = Assignment(bucket_indices=buckets_of(case))
    if "policy" in case:
        assignment = sim.assign(WORKLOAD, **case["policy"])
        assert assignment.bucket_indices == buckets_of(case)
    report = sim.summarize(sim.simulate(WORKLOAD, replace(HARDWARE, **changes), assignment, engine))
    assert {name: getattr(report, name) for name in FIGURES} == {name: case[name] for name in FIGURES}
    assert report.engine == engine


def test_optimum_in_python() -> None:
    expected, answer = EXPECTED["optimum"], sim.tune(WORKLOAD, HARDWARE)
    assert answer.assignment.bucket_indices == buckets_of(expected)
    assert answer.report.sync_end_ns == expected["sync_end_ns"]
    assert answer.lower_bound_ns == expected["lower_bound_ns"]
    assert answer.proved_optimal
    assert answer.report.engine == "simpy"


# Sentences are made of facts at the end, and nothing takes them apart again.

_WORDS = re.compile(r"[a-z]{2,}[:,;]? [a-z]{2,}")
_CUTTING = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find"}


def sought(node: ast.AST) -> Iterator[ast.expr]:
    """What an expression looks for in another text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CUTTING:
        yield from node.args[:1]
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
        yield node.left


def test_no_logic_reads_prose() -> None:
    found = {
        (str(path.relative_to(ROOT)), text.value)
        for folder in ("sim", "app")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for text in sought(node)
        if isinstance(text, ast.Constant) and isinstance(text.value, str) and _WORDS.search(text.value)
    }
    assert not found
