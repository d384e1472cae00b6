"""bucketsim agree: one record in full, several side by side, Markdown, the gate."""

import json
from pathlib import Path

import pytest

import sim
from tests.commands import bucketsim

MEASURED = Path(__file__).parents[2] / "traces" / "measured"
RECORDS = sim.find_records(MEASURED)
ONE, OTHER = RECORDS[:2]


def test_one_record_in_full() -> None:
    said = bucketsim("agree", ONE)
    assert said.code == 0
    for row in sim.agreement(sim.load_record(ONE)).rows:
        assert said.out.count(row.name[:12]) >= 4  # a table each: steps, exposed, bucket ends, attribution
    assert "error of sync_end by mechanism" in said.out
    for words in (
        "regret of the recommendation: ",
        "targets (set for paced replays in the box): ",
        "the rule: ",
    ):
        assert words in said.err


def test_a_directory_that_holds_several_gives_a_row_each() -> None:
    said = bucketsim("agree", MEASURED)
    assert said.code == 0
    assert f"{len(RECORDS)} records" in said.out
    assert said.out.count("paced") == len(RECORDS)
    assert "error of sync_end" not in said.out


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
    assert {"place", "mode", "targets"} <= one.keys()


def test_a_record_named_twice_is_scored_once() -> None:
    said = bucketsim("agree", MEASURED, ONE, ONE, "--json")
    assert [document["name"] for document in json.loads(said.out)] == [path.name for path in RECORDS]


def test_markdown_is_a_table_with_a_row_a_record() -> None:
    lines = bucketsim("agree", ONE, OTHER, "--markdown").out.splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert set(lines[1]) == {"|", "-"}
    assert [line.split("`")[1] for line in lines[2:]] == [ONE.name, OTHER.name]


def test_markdown_and_json_exclude_each_other() -> None:
    said = bucketsim("agree", ONE, "--markdown", "--json")
    assert (said.code, said.out) == (1, "")
    assert said.err == "error: --markdown and --json both given; give one\n"


def test_any_record_beyond_the_gate_exits_3_and_is_named() -> None:
    worst = {path.name: sim.agreement(sim.load_record(path)).worst_step_error for path in (ONE, OTHER)}
    below, above = sorted(worst, key=lambda name: worst[name])
    between = 100 * (worst[below] + worst[above]) / 2
    said = bucketsim("agree", ONE, OTHER, "--max-error", between)
    assert said.code == 3
    assert f"missed: {above}: worst step error" in said.err
    assert f"missed: {below}" not in said.err
    assert bucketsim("agree", ONE, OTHER, "--max-error", 100 * worst[above] + 0.01).code == 0


@pytest.mark.parametrize("bad", ["nowhere", "."])
def test_what_holds_no_record_is_refused_beside_one_that_does(
    bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = bucketsim("agree", ONE, bad, "--json")
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"error: {bad}: ")
