"""bucketsim scaling: rows as a table, CSV, JSON and a figure; machines, measurements and ranks by file."""

import csv
import json
from pathlib import Path

import pytest

import sim
from sim.nouns.ranks import Ranks
from tests.clusters.scaling_cases import hosts_of, measured, workload_of
from tests.commands import Said, bucketsim

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


def test_ranks_that_differ(scaling: Scaling, tmp_path: Path) -> None:
    ranks = tmp_path / "ranks.json"
    ranks.write_text(sim.to_text(Ranks(name="a tenth", pace_jitter=0.1)))
    said = scaling(*WIRE, "--hosts", "1,8", "--ranks", ranks, "--samples", 40)
    assert said.code == 0
    assert "a tenth: ms over 40 steps at the best cap" in said.out
    rows = json.loads(scaling(*WIRE, "--hosts", "1,8", "--ranks", ranks, "--samples", 40, "--json").out)[
        "rows"
    ]
    assert [row["jitter"] for row in rows] == ["a tenth"] * 2
    assert rows[1]["cap_step_ns"] < rows[1]["mean_step_ns"] < rows[1]["p95_step_ns"]
    assert rows[0]["mean_step_ns"] < rows[1]["mean_step_ns"]


def test_numbers_of_gpus_in_place_of_hosts(scaling: Scaling) -> None:
    rows = json.loads(scaling("dgx_h100", "--world-size", "1,8,32", "--json").out)["rows"]
    assert [(row["world_size"], row["hosts"]) for row in rows] == [(1, 1), (8, 1), (32, 4)]


def test_a_figure(scaling: Scaling, tmp_path: Path) -> None:
    said = scaling(
        *WIRE, "--hosts", "1,2", "--figure", tmp_path / "scaling.html", "-o", tmp_path / "rows.csv"
    )
    assert said.code == 0
    assert "Exposed communication" in (tmp_path / "scaling.html").read_text()
    assert len(list(csv.DictReader((tmp_path / "rows.csv").open()))) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.json"], "none.json: cannot be read"),
        (["dgx_a100", "oversubscription"], "KEY=V,V…: 'oversubscription' is not legal"),
        (["dgx_a100", "oversubscription=1,,2"], "oversubscription: '1,,2' is not legal"),
        (["dgx_a100", "hosts_per_leaf=4", "hosts_per_leaf=8"], "each key once"),
        (["dgx_a100", "--hosts", "1,two"], "--hosts: 'two' is not legal"),
        (["dgx_a100", "--measured", "h.json"], "--measured: 'h.json' is not legal; give H.json@hosts=N"),
        (["dgx_a100", "--measured", "h.json@hosts=x"], "give H.json@hosts=N"),
        (["dgx_a100", "--measured", "h.json@"], "'h.json@' is not legal; give H.json@hosts=N"),
        (["dgx_a100", "--measured", "h.json@hosts=2,ranks=16"], "give hosts or ranks, not both"),
        (["dgx_a100", "hosts=2"], "'hosts=2' is not legal; give --hosts 2"),
        (["dgx_a100", "world_size=8,16"], "'world_size=8,16' is not legal; give --world-size 8,16"),
        (["dgx_a100", "--hosts", "1.5"], "--hosts: '1.5' is not legal; give whole numbers"),
        (["dgx_a100", "--world-size", "8,1e3"], "--world-size: '1e3' is not legal; give whole numbers"),
        (
            ["dgx_a100", "hosts_per_leaf=4,8", "--measured", "h.json@hosts=2"],
            "does not say hosts_per_leaf, which has 2 values; add hosts_per_leaf=…",
        ),
    ],
)
def test_what_it_refuses(scaling: Scaling, words: list[str], said: str) -> None:
    made = scaling(*words)
    assert made.code == 1
    assert said in made.err
