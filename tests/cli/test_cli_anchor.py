"""``bucketsim anchor``: from two files and a number off a dashboard to a machine that can be asked; and links
that are not the one that trains, which every answer names."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.workload import Workload
from tests.cli.cheap import LINK, MS, PAIR
from tests.commands import bucketsim
from tests.machines import machine, model


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
    assert "compute_slowdown 1.25: a step of 84.00 ms, measured 84.00 ms, 82.00 ms without" in said.out

    said = bucketsim(*words, "bucket_cap_mb=1MiB,step_ms=84,gradient_as_bucket_view=true", "--json")
    told = json.loads(said.out)
    known = {"kind": "anchor", "factor": "mutual", "measured_ns": 84 * MS}
    assert known.items() <= told.items()
    weights = {one["what"]: one["weight"] for one in told["readings"]}
    assert weights.keys() == {"mutual", "compute_slowdown", "comm_slowdown", "curve"}
    assert sum(weights.values()) == pytest.approx(1)
    (check,) = told["checks"]
    assert check["parts_alone_ns"] == 82 * MS
    assert check["least_ns"] <= check["predicted_ns"] <= check["most_ns"]


# A link that is not the one that trains is named by every command that answers from it, also in JSON.

WORKLOAD = replace(model(12, "affine"), samples=())
WIRE = machine("affine")


def on(device: str, **provenance: Any) -> Workload:
    gradients = tuple(replace(one, device=device) for one in WORKLOAD.gradients)
    return replace(WORKLOAD, gradients=gradients, provenance=provenance)


def saved(tmp_path: Path, workload: Workload, told: dict[str, Any], ranks: int) -> tuple[Path, Path, Path]:
    paths = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "a.json"
    hardware = replace(WIRE, world_size=ranks, provenance=told, spread={})
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
    paths = saved(tmp_path, workload, told, ranks)
    played = sim.simulate(*_loaded(paths))
    step_ms = sim.summarize(played).step_ns / 1e6
    for more in (
        ("simulate",),
        ("tune", "--draws", 1),
        ("sweep", "--caps", "4"),
        ("ranks", "--slow", "1=1.5", "--samples", 10),
        ("ranks", "--slow", "1=1.5", "--samples", 10, "--caps", "4"),
        ("anchor", "--measured", f"bucket_cap_mb=4,step_ms={step_ms * 1.05}"),
    ):
        command = (more[0], paths[0], "--hardware", paths[1], *more[1:])
        said, document = bucketsim(*command), bucketsim(*command, "--json")
        assert (said.code, document.code) == (0, 0), said.err + document.err
        answer = json.loads(document.out)
        told_by = answer if "notes" in answer else answer["rows"][0]["distribution"]
        doubts = [line for line in told_by["notes"] if "doubtful link" in line]
        assert bool(doubts) == (words is not None), more
        if words is not None:
            assert words in doubts[0]
            assert doubts[0] in said.out
            assert "doubtful" not in document.err  # once is enough
    for options in ((), ("--assignment", paths[2])):
        said = bucketsim("export", paths[0], "--hardware", paths[1], *options, "--as", "snippet")
        assert said.code == 0, said.err
        assert ("doubtful link" in said.err) == (words is not None)


def _loaded(paths: tuple[Path, Path, Path]) -> tuple[Any, Any, Any]:
    workload, hardware, assignment = paths
    return sim.load_workload(workload), sim.load_hardware(hardware), sim.load_assignment(assignment)


def test_scaling_names_another_device_and_asks_of_other_numbers_of_ranks_on_purpose(tmp_path: Path) -> None:
    for device, is_other in (("cpu", True), ("cuda", False)):
        path, measured, _ = saved(tmp_path, on(device, world_size=2), {"backend": "nccl"}, 2)
        command = ("scaling", path, "pcie_box", "--world-size", "2,4", "--caps", "4")
        for options in ((), ("--measured", f"{measured}@ranks=2,gpus=2")):
            rows = json.loads(bucketsim(*command, *options, "--json").out)["rows"]
            assert [bool(row["doubts"]) for row in rows] == [is_other, is_other]
            assert ("doubtful link" in bucketsim(*command, *options).out) == is_other


def test_another_number_of_ranks_in_a_what_if_is_what_was_asked_for() -> None:
    workload = on("cpu", world_size=2)
    hardware = replace(WIRE, world_size=2, provenance={"backend": "gloo"})
    for base, is_other in ((hardware, False), (replace(hardware, world_size=4), True)):
        scaled = sim.scale(workload, base, world_size=8)
        report = sim.summarize(sim.simulate(*scaled, sim.assign(workload)))
        assert any("doubtful link" in line for line in report.notes) == is_other
