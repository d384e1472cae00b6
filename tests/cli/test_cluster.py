"""cluster, scaling and ranks: machines by name, by file and measured; ranks from options and files."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from tests.cluster_strategies import hosts_of, measured, workload_of
from tests.commands import bucketsim
from tests.machines import machine, model


def test_a_saved_cluster_and_a_measurement_of_the_model_give_the_same_again(tmp_path: Path) -> None:
    saved, hardware = tmp_path / "cluster.json", tmp_path / "two.json"
    first = bucketsim("cluster", "p4de", "hosts=2", "--ranks", 9, "--save-cluster", saved, "--json")
    again = bucketsim("cluster", saved, "--json")
    assert json.loads(first.out) == json.loads(again.out)
    assert json.loads(first.out)["world_size"] == 9
    made = bucketsim("cluster", "dgx_h100", "hosts=2", "-o", hardware)
    assert "computed, not measured" in made.out
    assert sim.load_hardware(hardware).world_size == 16
    assert sim.load_hardware(hardware).all_gather
    four = ("cluster", "dgx_h100", "hosts=4", "--json")
    taken, computed = (
        json.loads(bucketsim(*four, *more).out) for more in (("--measured", f"{hardware}@hosts=2"), ())
    )
    assert (taken["world_size"], bool(taken["spread"]["all_reduce"])) == (32, True)
    times = {point["num_bytes"]: point["duration_ns"] for point in computed["all_reduce"]}
    for point in taken["all_reduce"]:
        assert point["duration_ns"] == pytest.approx(times[point["num_bytes"]], rel=0.5)


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """The rows of ``bucketsim scaling`` with these words, but for how they name the machine."""
    (tmp_path / "w.json").write_text(sim.to_text(workload_of([10, 20], [1, 1])))

    def scaled(*words: object) -> list[dict[str, Any]]:
        said = bucketsim("scaling", tmp_path / "w.json", *words, "--json")
        assert said.code == 0, said.err
        others = {"machine", "settings"}
        return [{k: v for k, v in row.items() if k not in others} for row in json.loads(said.out)["rows"]]

    return scaled


def test_a_cluster_and_what_was_measured_on_two_of_its_hosts(rows: Any, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(sim.to_text(hosts_of(2)))
    (tmp_path / "h.json").write_text(sim.to_text(measured({1: 2, 2: 3})))
    at, wire = f"{tmp_path / 'h.json'}@hosts=2", ("pcie_hosts", "gpus=1", "gbit_per_s=10")
    by_file = rows(tmp_path / "c.json", "--hosts", "2,4", "--measured", at)
    assert [row["source"] for row in by_file] == ["measured", "measured"]
    assert by_file[0]["cap_step_ns"] == 32_000_000
    assert by_file == rows(*wire, "--hosts", "2,4", "--measured", at, "-o", tmp_path / "rows.csv")
    assert len(list(csv.DictReader((tmp_path / "rows.csv").open()))) == 2
    several = rows("pcie_hosts", "gpus=1,2", "gbit_per_s=10", "--hosts", "4", "--measured", f"{at},gpus=1")
    assert [row["world_size"] for row in several] == [4, 8]


def test_what_was_measured_on_a_host_of_any_kind(rows: Any, tmp_path: Path) -> None:
    """A preset that has no number of hosts; ranks stand for a size, and neither for the machine's own."""
    (tmp_path / "h.json").write_text(sim.to_text(measured({1: 2, 2: 3}, ranks=4)))
    for where in ("ranks=4", "gpus=4", "gpus=8,ranks=4"):
        at = f"{tmp_path / 'h.json'}@{where}"
        told = rows("pcie_box", "gpus=4", "--measured", at, "--world-size", "2,4")
        assert [(row["source"], row["world_size"]) for row in told] == [("measured", 2), ("measured", 4)]
    assert told[1]["all_reduce_ns"] == 3_000_000
    by_ranks = ("gpus=4", "gbit_per_s=10", "--hosts", "2", "--measured", f"{tmp_path / 'h.json'}@ranks=4")
    assert rows("pcie_hosts", *by_ranks)[0]["world_size"] == 8


def test_options_become_a_file_of_ranks_that_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(sim.to_text(model(30, "affine")))
    (tmp_path / "h.json").write_text(sim.to_text(replace(machine("affine"), world_size=16)))
    kept = tmp_path / "ranks.json"
    words = ("ranks", tmp_path / "w.json", "--hardware", tmp_path / "h.json", "--samples", 20, "--json")
    one = bucketsim(*words, "--pace-jitter", 0.1, "--slow", "0-3=1.2", "-o", kept)
    assert one.code == 0, one.err
    assert one.out == bucketsim(*words, kept).out
    assert sim.load_ranks(kept).pace_jitter == 0.1
    compared = json.loads(bucketsim(*words, kept, "--caps", "1,25").out)
    assert [row["name"] for row in compared["rows"]] == ["DDP's default", "1 MiB", "25 MiB"]
    assert compared["rows"][0]["distribution"]["mean_step_ns"] == json.loads(one.out)["mean_step_ns"]
