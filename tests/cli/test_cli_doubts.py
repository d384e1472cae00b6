"""A link that is not the one that trains is named by every command that answers from it, also in JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.nouns.workload import Workload
from tests.bench.machines import machine, model
from tests.commands import bucketsim

WORKLOAD = replace(model(12, "affine"), samples=())
WIRE = machine("affine")


def on(device: str, **provenance: Any) -> Workload:
    return replace(
        WORKLOAD,
        gradients=tuple(replace(one, device=device) for one in WORKLOAD.gradients),
        provenance=provenance,
    )


def saved(tmp_path: Path, workload: Workload, told: dict[str, Any], ranks: int) -> tuple[Path, Path, Path]:
    paths = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "a.json"
    hardware = replace(WIRE, world_size=ranks, provenance=told, spread={})
    paths[0].write_text(sim.to_text(workload))
    paths[1].write_text(sim.to_text(hardware))
    paths[2].write_text(sim.to_text(sim.assign(workload, bucket_cap_mb=4)))
    return paths


def asked(paths: tuple[Path, Path, Path]) -> dict[str, tuple[object, ...]]:
    """Each command that answers from a workload and a machine, with its arguments."""
    workload, hardware, _ = paths
    step_ns = sim.simulate(
        sim.load_workload(workload), sim.load_hardware(hardware), sim.load_assignment(paths[2])
    )
    step_ms = sim.summarize(step_ns).step_ns / 1e6
    files = (workload, "--hardware", hardware)
    return {
        "simulate": ("simulate", *files),
        "tune": ("tune", *files, "--draws", 1),
        "sweep": ("sweep", *files, "--caps", "4"),
        "ranks": ("ranks", *files, "--slow", "1=1.5", "--samples", 10),
        "ranks of caps": ("ranks", *files, "--slow", "1=1.5", "--samples", 10, "--caps", "4"),
        "anchor": ("anchor", *files, "--measured", f"bucket_cap_mb=4,step_ms={step_ms * 1.05}"),
    }


def notes(name: str, document: dict[str, Any]) -> list[str]:
    if name == "ranks of caps":
        return [line for row in document["rows"] for line in row["distribution"]["notes"]]
    return list(document["notes"])


@pytest.mark.parametrize(
    ("workload", "told", "ranks", "words"),
    [
        (on("cuda:0"), {"backend": "gloo"}, 2, "on an accelerator"),
        (on("cpu", world_size=2), {"backend": "gloo"}, 4, "one of 4 ranks, and the job was recorded on 2"),
        (on("cuda", backend="gloo"), {"backend": "nccl"}, 2, "over nccl, and the job was recorded over gloo"),
        (on("cpu", world_size=2, backend="gloo"), {"backend": "gloo"}, 2, None),
    ],
)
def test_every_answer_names_what_is_doubtful(
    workload: Workload, told: dict[str, Any], ranks: int, words: str | None, tmp_path: Path
) -> None:
    paths = saved(tmp_path, workload, told, ranks)
    for name, command in asked(paths).items():
        said, document = bucketsim(*command), bucketsim(*command, "--json")
        assert (said.code, document.code) == (0, 0), said.err + document.err
        doubts = [line for line in notes(name, json.loads(document.out)) if "doubtful link" in line]
        assert bool(doubts) == (words is not None), name
        if words is not None:
            assert words in doubts[0]
            assert doubts[0] in said.out
            assert "doubtful" not in document.err  # once is enough
    for options in ((), ("--assignment", paths[2])):
        said = bucketsim("export", paths[0], "--hardware", paths[1], *options, "--as", "snippet")
        assert said.code == 0, said.err
        assert ("doubtful link" in said.err) == (words is not None)


def test_scaling_names_another_device_and_asks_of_other_numbers_of_ranks_on_purpose(tmp_path: Path) -> None:
    for device, is_other in (("cpu", True), ("cuda", False)):
        path, measured, _ = saved(tmp_path, on(device, world_size=2), {"backend": "nccl"}, 2)
        command = ("scaling", path, "pcie_box", "--world-size", "2,4", "--caps", "4")
        for options in ((), ("--measured", f"{measured}@ranks=2,gpus=2")):
            rows = json.loads(bucketsim(*command, *options, "--json").out)["rows"]
            assert [bool(row["doubts"]) for row in rows] == [is_other, is_other]
            said = bucketsim(*command, *options)
            assert ("doubtful link" in said.out) == is_other


def test_another_number_of_ranks_in_a_what_if_is_what_was_asked_for() -> None:
    workload = on("cpu", world_size=2)
    hardware = replace(WIRE, world_size=2, provenance={"backend": "gloo"})
    for base, is_other in ((hardware, False), (replace(hardware, world_size=4), True)):
        scaled = sim.scale(workload, base, world_size=8)
        report = sim.summarize(sim.simulate(*scaled, sim.assign(workload)))
        assert any("doubtful link" in line for line in report.notes) == is_other


def test_buckets_made_for_another_number_of_ranks_are_named_where_they_are_taken_home(tmp_path: Path) -> None:
    path, hardware, assignment = saved(tmp_path, on("cpu", world_size=2), {"backend": "gloo"}, 4)
    made = sim.tune(sim.load_workload(path), sim.load_hardware(hardware), draws=1).assignment
    assignment.write_text(sim.to_text(made))
    said = bucketsim("export", path, "--assignment", assignment, "--as", "snippet")
    assert "doubtful assignment: it was made for 4 ranks, and the job was recorded on 2" in said.err
