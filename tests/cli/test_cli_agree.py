"""bucketsim agree: one record in full, several side by side, Markdown, the gate."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import sim
from sim.formats.record_files import start_record
from tests.commands import bucketsim
from tests.saving import save_measurement
from tests.scoring import scored_once

MEASURED = Path(__file__).parents[2] / "traces" / "measured"
RECORDS = sim.find_records(MEASURED)
ONE, OTHER = RECORDS[:2]


@pytest.fixture(autouse=True)
def _records_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scored_once(monkeypatch, MEASURED)


def test_json_is_a_document_for_one_and_a_list_for_several() -> None:
    one = json.loads(bucketsim("agree", ONE, "--json").out)
    assert one["name"] == ONE.name
    several = json.loads(bucketsim("agree", OTHER, ONE, "--json").out)
    assert [document["name"] for document in several] == [OTHER.name, ONE.name]
    assert several[1] == one
    row = one["rows"][0]
    parts = row["attribution"]
    assert sum(ns for name, ns in parts.items() if name != "total_ns") == parts["total_ns"]
    assert {"measured_ns", "low_ns", "high_ns", "predicted_ns", "error_ns", "error"} <= row["bucket_ends"][
        0
    ].keys()
    assert one["regret"].keys() >= {"best", "regret_ns", "low_ns", "high_ns", "relative", "within_noise"}
    assert {"place", "mode", "rule"} <= one.keys()


def test_any_record_beyond_the_gate_exits_3_and_is_named() -> None:
    worst = {path.name: sim.agreement(sim.load_record(path)).worst_step_error for path in (ONE, OTHER)}
    below, above = sorted(worst, key=lambda name: worst[name])
    between = 100 * (worst[below] + worst[above]) / 2
    said = bucketsim("agree", ONE, OTHER, "--max-error", between)
    assert said.code == 3
    assert f"missed: {above}: worst step error" in said.err
    assert f"missed: {below}" not in said.err
    assert bucketsim("agree", ONE, OTHER, "--max-error", 100 * worst[above] + 0.01).code == 0


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """A record whose steps are those of a trace, two of each candidate."""
    folder = tmp_path / "imported"
    record = sim.load_record(ONE)
    start_record(folder, record.workload, record.hardware)
    for number, one in enumerate(record.candidates[:2]):
        few = replace(one, mode="trace", iterations=one.iterations[:2], traced=one.traced[:2])
        save_measurement(folder, number, few)
    return folder


def test_steps_of_a_trace_get_no_verdict_and_few_no_interval(imported: Path) -> None:
    said = bucketsim("agree", imported)
    assert said.code == 0, said.err
    assert "tested are the ends of buckets and exposed communication" in said.out
    assert "assed: " not in said.out
    found = sim.agreement(sim.load_record(imported))
    for row in found.rows:
        assert f"{row.step_low_ns / 1e6:.1f}-{row.step_high_ns / 1e6:.1f}" not in said.out
    document = json.loads(bucketsim("agree", imported, "--json").out)
    assert document["passed"] is None
    for row in document["rows"]:
        assert (row["step_low_ns"], row["exposed_high_ns"]) == (None, None)
        assert all(end["low_ns"] is end["high_ns"] is None for end in row["bucket_ends"])


def test_the_gate_holds_a_trace_to_the_ends_of_its_buckets(imported: Path) -> None:
    error = sim.agreement(sim.load_record(imported)).median_bucket_end_error
    assert error is not None
    assert bucketsim("agree", imported, "--max-error", 100 * error + 0.01).code == 0
    said = bucketsim("agree", imported, "--max-error", 100 * error - 0.01)
    assert said.code == 3
    assert "missed: median error of bucket ends" in said.err
    record = sim.load_record(imported)
    for number, one in enumerate(record.candidates):
        save_measurement(imported, number, replace(one, traced=()))
    said = bucketsim("agree", imported, "--max-error", 99)
    assert said.code == 3
    assert "missed: median error of bucket ends cannot be told" in said.err


@pytest.mark.parametrize("bad", ["nowhere", "."])
def test_what_holds_no_record_is_refused_beside_one_that_does(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = bucketsim("agree", ONE, bad, "--json")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"error: {bad}: ")
