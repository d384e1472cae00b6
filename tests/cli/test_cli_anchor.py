"""``bucketsim anchor``: from two files and a number off a dashboard to a machine that can be asked."""

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


@pytest.fixture
def files(tmp_path: Path) -> list[object]:
    """The words that every command here begins with."""
    (tmp_path / "w.json").write_text(sim.to_text(PAIR))
    (tmp_path / "h.json").write_text(sim.to_text(LINK))
    return ["anchor", tmp_path / "w.json", "--hardware", tmp_path / "h.json"]


def test_from_a_step_to_hardware(files: list[object], tmp_path: Path) -> None:
    output = tmp_path / "anchored.json"
    said = bucketsim(
        *files, "--measured", "bucket_cap_mb=1,step_ms=84", "--factor", "compute_slowdown", "-o", output
    )
    assert said.code == 0, said.err
    hardware = sim.load_hardware(output)
    assert hardware.compute_slowdown == pytest.approx(1.25)
    assert hardware.provenance["anchored"]["measured_step_ns"] == 84 * MS
    assert "compute_slowdown 1.25: a step of 84.00 ms, measured 84.00 ms, 82.00 ms without" in said.out
    assert "bucket_cap_mb=1" in said.out


def test_json_has_the_factor_its_rivals_and_the_predictions(files: list[object]) -> None:
    said = bucketsim(
        *files,
        *("--measured", "bucket_cap_mb=1MiB,step_ms=84,gradient_as_bucket_view=true"),
        *("--measured", "bucket_cap_mb=1000,step_ms=90"),
        "--json",
    )
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert (told["kind"], told["factor"], told["measured_ns"]) == ("anchor", "mutual", 84 * MS)
    weights = {one["what"]: one["weight"] for one in told["readings"]}
    assert weights.keys() == {"mutual", "compute_slowdown", "comm_slowdown", "curve"}
    assert sum(weights.values()) == pytest.approx(1)
    assert [check["error"] for check in told["checks"]] == [pytest.approx(0, abs=1e-5), pytest.approx(2 / 90)]
    one, all_ = told["checks"]
    assert one["parts_alone_ns"] == 82 * MS
    assert one["least_ns"] <= one["predicted_ns"] <= one["most_ns"]
    assert all_["parts_alone_ns"] == all_["predicted_ns"] == 92 * MS


# A link that is not the one that trains is named by every command that answers from it, also in JSON.

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
