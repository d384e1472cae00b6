"""bucketsim cluster: a machine's curves from published figures, and its file."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

import sim
from tests.bench.machines import machine, model
from tests.clusters.scaling_cases import hosts_of, measured, workload_of
from tests.commands import Said, bucketsim


def test_a_preset_gives_hardware_that_the_tuner_takes(tmp_path: Path) -> None:
    made = bucketsim("cluster", "dgx_h100", "hosts=4", "-o", tmp_path / "hardware.json")
    assert made.code == 0
    assert "computed, not measured" in made.out
    hardware = sim.load_hardware(tmp_path / "hardware.json")
    assert hardware.world_size == 32
    assert hardware.all_gather
    times = [point.duration_ns for point in hardware.all_reduce]
    assert times == sorted(times)
    assert "nothing of it is measured" in hardware.provenance["source"]


def test_a_saved_cluster_gives_the_same_again(tmp_path: Path) -> None:
    saved = tmp_path / "cluster.json"
    first = bucketsim("cluster", "p4de", "hosts=2", "--save-cluster", saved, "--json")
    again = bucketsim("cluster", saved, "--json")
    assert json.loads(first.out) == json.loads(again.out)
    assert json.loads(saved.read_text())["kind"] == "cluster"


def test_a_measurement_is_taken_to_another_size(tmp_path: Path) -> None:
    bucketsim("cluster", "dgx_h100", "hosts=2", "-o", tmp_path / "two.json")
    made = bucketsim(
        "cluster", "dgx_h100", "hosts=4", "--measured", f"{tmp_path / 'two.json'}@hosts=2", "--json"
    )
    assert made.code == 0
    hardware = json.loads(made.out)
    assert hardware["world_size"] == 32
    assert hardware["spread"]["all_reduce"]
    four = json.loads(bucketsim("cluster", "dgx_h100", "hosts=4", "--json").out)
    computed = {point["num_bytes"]: point["duration_ns"] for point in four["all_reduce"]}
    for point in hardware["all_reduce"]:  # what was measured was the model, so it finds itself
        assert point["duration_ns"] == pytest.approx(computed[point["num_bytes"]], rel=0.5)


# bucketsim scaling: rows as a table, CSV, JSON and a figure; machines, measurements and ranks by file.

WORKLOAD = workload_of([10, 20], [1, 1])
WIRE = ("pcie_hosts", "gpus=1", "gbit_per_s=10")


@pytest.fixture
def scaling(tmp_path: Path) -> "Scaling":
    (tmp_path / "w.json").write_text(sim.to_text(WORKLOAD))
    return Scaling(tmp_path / "w.json")


class Scaling:
    def __init__(self, workload: Path) -> None:
        self.workload = workload

    def __call__(self, *words: object) -> Said:
        return bucketsim("scaling", self.workload, *words)


def test_a_cluster_and_what_was_measured_on_two_of_its_hosts(scaling: Scaling, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(sim.to_text(hosts_of(2)))
    (tmp_path / "h.json").write_text(sim.to_text(measured({1: 2, 2: 3})))
    by_file = scaling(
        tmp_path / "c.json", "--hosts", "2,4", "--measured", f"{tmp_path / 'h.json'}@hosts=2", "--json"
    )
    by_name = scaling(*WIRE, "--hosts", "2,4", "--measured", f"{tmp_path / 'h.json'}@hosts=2", "--json")
    rows, others = (json.loads(said.out)["rows"] for said in (by_file, by_name))
    assert [row["source"] for row in rows] == ["measured", "measured"]
    assert rows[0]["cap_step_ns"] == 32_000_000
    names = {"machine", "settings"}
    assert [{k: v for k, v in row.items() if k not in names} for row in rows] == [
        {k: v for k, v in row.items() if k not in names} for row in others
    ]
    several = scaling(
        "pcie_hosts", "gpus=1,2", "gbit_per_s=10", "--hosts", "4", "--json",
        "--measured", f"{tmp_path / 'h.json'}@hosts=2,gpus=1",
    )  # fmt: skip
    assert [row["world_size"] for row in json.loads(several.out)["rows"]] == [4, 8]


def test_what_was_measured_on_a_host_of_any_kind(scaling: Scaling, tmp_path: Path) -> None:
    """A preset that has no number of hosts; ranks stand for a size, and neither for the machine's own."""
    (tmp_path / "h.json").write_text(sim.to_text(measured({1: 2, 2: 3}, ranks=4)))
    for where in ("ranks=4", "gpus=4", "gpus=8,ranks=4"):
        said = scaling(
            "pcie_box",
            "gpus=4",
            "--measured",
            f"{tmp_path / 'h.json'}@{where}",
            "--world-size",
            "2,4",
            "--json",
        )
        rows = json.loads(said.out)["rows"]
        assert [(row["source"], row["world_size"]) for row in rows] == [("measured", 2), ("measured", 4)]
    assert rows[1]["all_reduce_ns"] == 3_000_000
    by_ranks = scaling(
        "pcie_hosts", "gpus=4", "gbit_per_s=10", "--hosts", "2", "--json",
        "--measured", f"{tmp_path / 'h.json'}@ranks=4",
    )  # fmt: skip
    assert json.loads(by_ranks.out)["rows"][0]["world_size"] == 8


def test_a_figure(scaling: Scaling, tmp_path: Path) -> None:
    said = scaling(
        *WIRE, "--hosts", "1,2", "--figure", tmp_path / "scaling.html", "-o", tmp_path / "rows.csv"
    )
    assert said.code == 0
    assert "Exposed communication" in (tmp_path / "scaling.html").read_text()
    assert len(list(csv.DictReader((tmp_path / "rows.csv").open()))) == 2


# bucketsim ranks: options, files, tables and JSON.


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    workload, hardware = tmp_path / "w.json", tmp_path / "h.json"
    workload.write_text(sim.to_text(model(30, "affine")))
    hardware.write_text(sim.to_text(replace(machine("affine"), world_size=16)))
    return workload, hardware


def test_options_become_a_file_that_says_the_same(files: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / "ranks.json"
    words = ("ranks", files[0], "--hardware", files[1])
    options = ("--pace-spread", 0.1, "--slow", "0-3=1.2", "--samples", 20, "--json")
    one = bucketsim(*words, *options, "-o", kept)
    two = bucketsim(*words, kept, "--samples", 20, "--json")
    assert (one.code, two.code) == (0, 0), one.err + two.err
    assert one.out == two.out
    assert sim.load_ranks(kept).pace_spread == 0.1
