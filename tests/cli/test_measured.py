"""``agree`` scores what was measured, ``anchor`` holds a machine to a step, ``ab`` compares.

Every answer from a link that is not the one that trains names that.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
import sim.validator.replay
from sim.formats.record_files import start_record
from sim.nouns.workload import Buffer, Workload
from sim.truth.turns import judge_turns
from tests.cli import cheap
from tests.cli.cheap import LINK, MS, PAIR
from tests.commands import bucketsim
from tests.machines import machine, model
from tests.saving import save_measurement, scored_once

MEASURED = Path(__file__).parents[2] / "traces" / "measured"
ONE, OTHER = sim.find_records(MEASURED)[:2]


@pytest.fixture
def _records_are_scored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scored_once(monkeypatch, MEASURED)


once = pytest.mark.usefixtures("_records_are_scored_once")


@once
def test_json_is_a_document_for_one_and_a_list_for_several() -> None:
    one = json.loads(bucketsim("agree", ONE, "--json").out)
    several = json.loads(bucketsim("agree", OTHER, ONE, "--json").out)
    assert [document["name"] for document in several] == [OTHER.name, ONE.name]
    assert several[1] == one
    parts = one["rows"][0]["attribution"]
    assert sum(ns for name, ns in parts.items() if name != "total_ns") == parts["total_ns"]


@once
def test_any_record_beyond_the_gate_exits_3_and_is_named() -> None:
    worst = {path.name: sim.agreement(sim.load_record(path)).worst_step_error for path in (ONE, OTHER)}
    below, above = sorted(worst, key=lambda name: worst[name])
    between = 100 * (worst[below] + worst[above]) / 2
    said = bucketsim("agree", ONE, OTHER, "--max-error", between, "--json")
    assert (said.code, len(json.loads(said.out))) == (3, 2)
    assert f"missed: {above}: worst step error" in said.err
    assert f"missed: {below}" not in said.err
    assert bucketsim("agree", ONE, OTHER, "--max-error", 100 * worst[above] + 0.01).code == 0


@once
def test_steps_of_a_trace_get_no_verdict_few_no_interval_and_the_gate_is_of_buckets(tmp_path: Path) -> None:
    """A record whose steps are those of a trace, two of each candidate."""
    folder, record = tmp_path / "imported", sim.load_record(ONE)
    start_record(folder, record.workload, record.hardware)
    for number, one in enumerate(record.candidates[:2]):
        few = replace(one, mode="trace", iterations=one.iterations[:2], traced=one.traced[:2])
        save_measurement(folder, number, few)
    said = bucketsim("agree", folder)
    assert said.code == 0, said.err
    assert "tested are the ends of buckets and exposed communication" in said.out
    assert "assed: " not in said.out
    document = json.loads(bucketsim("agree", folder, "--json").out)
    assert document["passed"] is None
    for row in document["rows"]:
        assert (row["step_low_ns"], row["exposed_high_ns"]) == (None, None)
    error = sim.agreement(sim.load_record(folder)).median_bucket_end_error
    assert error is not None
    assert bucketsim("agree", folder, "--max-error", 100 * error + 0.01).code == 0
    said = bucketsim("agree", folder, "--max-error", 100 * error - 0.01)
    assert (said.code, "missed: median error of bucket ends" in said.err) == (3, True)
    for number, one in enumerate(sim.load_record(folder).candidates):
        save_measurement(folder, number, replace(one, traced=()))
    said = bucketsim("agree", folder, "--max-error", 99)
    assert (said.code, "missed: median error of bucket ends cannot be told" in said.err) == (3, True)


def test_from_a_step_to_hardware(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(sim.to_text(PAIR))
    (tmp_path / "h.json").write_text(sim.to_text(LINK))
    words = ("anchor", tmp_path / "w.json", "--hardware", tmp_path / "h.json", "--measured")
    output = tmp_path / "anchored.json"
    said = bucketsim(*words, "bucket_cap_mb=1,step_ms=84", "--factor", "compute_slowdown", "-o", output)
    assert said.code == 0, said.err
    hardware = sim.load_hardware(output)
    assert hardware.compute_slowdown == pytest.approx(1.25)
    assert hardware.provenance["anchored"]["measured_step_ns"] == 84 * MS
    assert "compute_slowdown 1.25 (48%): a step of 84.00 ms, measured 84.00 ms, 82.00 ms without" in said.out
    step = "bucket_cap_mb=1MiB,step_ms=84,gradient_as_bucket_view=true"
    told = json.loads(bucketsim(*words, step, "--json").out)
    assert (told["factor"], told["measured_ns"]) == ("mutual", 84 * MS)
    weights = {one["what"]: one["weight"] for one in told["readings"]}
    assert weights.keys() == {"mutual", "compute_slowdown", "comm_slowdown", "curve"}
    assert sum(weights.values()) == pytest.approx(1)
    assert (told["plain_ns"], told["predicted_ns"]) == (82 * MS, pytest.approx(84 * MS, rel=1e-4))


@pytest.mark.parametrize("gain_ms", [10, 0])
def test_hours_are_told_of_a_gain_that_is_significant_alone(
    gain_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve rounds in which the recommendation takes so much less."""
    steps = [200 * MS + 7 * MS * (number % 2) for number in range(12)]
    faster = [step - gain_ms * MS for step in steps]
    judged = judge_turns(steps, faster, [150 * MS], name="m:f", world_size=2)
    monkeypatch.setattr(sim.validator.replay, "replay", lambda *_, progress: progress(30, 90, "measuring"))
    monkeypatch.setattr(sim.validator.replay, "judge_ab", lambda *_: judged)
    best = tmp_path / "best.json"
    best.write_text(sim.to_text(sim.assign(sim.load_workload(cheap.W))))
    said = bucketsim("ab", "m:f", "--assignment", best)
    assert said.code == 0, said.err
    assert said.out.count("GPU-hours a day") == bool(gain_ms)
    assert ("no significant difference over 12 rounds" in said.out) == (not gain_ms)


# A link that is not the one that trains is named by every command that answers from it, also in JSON.

WORKLOAD = replace(model(12, "affine"), samples=())
ASKED: tuple[tuple[Any, ...], ...] = (("simulate",), ("tune", "--draws", 1), ("sweep", "--caps", "4"))


def on(device: str, **provenance: Any) -> Workload:
    gradients = tuple(replace(one, device=device) for one in WORKLOAD.gradients)
    return replace(WORKLOAD, gradients=gradients, provenance=provenance)


def saved(tmp_path: Path, workload: Workload, told: dict[str, Any], ranks: int) -> tuple[Path, Path, Path]:
    paths = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "a.json"
    hardware = replace(machine("affine"), world_size=ranks, provenance=told, spread={})
    for path, noun in zip(paths, (workload, hardware, sim.assign(workload, bucket_cap_mb=4)), strict=True):
        path.write_text(sim.to_text(noun))
    return paths


@pytest.mark.parametrize(
    ("workload", "told", "ranks", "words"),
    [
        (on("cuda:0"), {"backend": "gloo"}, 2, "device is the CPU, and the job's an accelerator"),
        (on("cpu", world_size=2), {"backend": "gloo"}, 4, "number of ranks is 4, and the job's 2"),
        (on("cuda", backend="gloo"), {"backend": "nccl"}, 2, "backend is nccl, and the job's gloo"),
        (on("cpu", world_size=2, backend="gloo"), {"backend": "gloo"}, 2, None),
    ],
)
def test_every_answer_names_what_is_doubtful(
    workload: Workload, told: dict[str, Any], ranks: int, words: str | None, tmp_path: Path
) -> None:
    job, link, buckets = saved(tmp_path, workload, told, ranks)
    timeline = sim.simulate(workload, sim.load_hardware(link), sim.load_assignment(buckets))
    step_ms = sim.summarize(timeline).step_ns / 1e6
    drawn = ("ranks", "--slow", "1=1.5", "--samples", 10)
    for name, *more in (
        *ASKED,
        drawn,
        (*drawn, "--caps", "4"),
        ("anchor", "--measured", f"bucket_cap_mb=4,step_ms={step_ms * 1.05}"),
    ):
        command = (name, job, "--hardware", link, *more)
        said, document = bucketsim(*command), bucketsim(*command, "--json")
        assert (said.code, document.code) == (0, 0), said.err + document.err
        answer = json.loads(document.out)
        told_by = answer if "notes" in answer else answer["rows"][0]["distribution"]
        doubts = [line for line in told_by["notes"] if "doubtful link" in line]
        assert bool(doubts) == (words is not None), (name, *more)
        if words is not None:
            assert words in doubts[0]
            assert doubts[0] in said.out
            assert "doubtful" not in document.err  # once is enough
    for options in ((), ("--assignment", buckets)):
        said = bucketsim("export", job, "--hardware", link, *options, "--as", "snippet")
        assert said.code == 0, said.err
        assert ("doubtful link" in said.err) == (words is not None)


def test_every_answer_names_what_is_not_measured_and_not_counted(tmp_path: Path) -> None:
    buffered = replace(on("cuda"), buffers=(Buffer(dtype="float32", num_bytes=4096),))
    job, link, _ = saved(tmp_path, buffered, {"backend": "nccl"}, 2)
    ranges = {"all_reduce": {"low": 0.9, "high": 6.0}, "hook_cost_ns": {"low": 0, "high": 30_000}}
    link.write_text(sim.to_text(replace(sim.load_hardware(link), spread={"ranges": ranges})))
    named = "0.9 to 6 times their time", "a gradient's hook 0 to 30 us", "of buffers are not counted"
    for name, *more in (*ASKED, ("ranks", "--samples", 10)):
        said = bucketsim(name, job, "--hardware", link, *more).out
        assert [words for words in named if words not in said] == [], name


def test_other_numbers_of_ranks_are_asked_for_on_purpose_and_another_device_is_not(tmp_path: Path) -> None:
    """By ``scaling``, and in a what-if."""
    for device, is_other in (("cpu", True), ("cuda", False)):
        path, measured, _ = saved(tmp_path, on(device, world_size=2), {"backend": "nccl"}, 2)
        command = ("scaling", path, "pcie_box", "--world-size", "2,4", "--caps", "4")
        for options in ((), ("--measured", f"{measured}@ranks=2,gpus=2")):
            rows = json.loads(bucketsim(*command, *options, "--json").out)["rows"]
            assert [bool(row["doubts"]) for row in rows] == [is_other, is_other]
            assert ("doubtful link" in bucketsim(*command, *options).out) == is_other
    for ranks, is_other in ((2, False), (4, True)):
        base = replace(machine("affine"), world_size=ranks, provenance={"backend": "gloo"})
        workload, hardware = sim.scale(on("cpu", world_size=2), base, world_size=8)
        report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload)))
        assert any("doubtful link" in line for line in report.notes) == is_other
