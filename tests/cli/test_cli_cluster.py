"""bucketsim cluster: a machine's curves from published figures, and its file."""

import json
from pathlib import Path

import pytest

import sim
from tests.commands import bucketsim


def test_a_preset_gives_hardware_that_the_tuner_takes(tmp_path: Path) -> None:
    made = bucketsim("cluster", "dgx_h100", "hosts=4", "-o", tmp_path / "hardware.json")
    assert made.code == 0
    assert "computed, not measured" in made.err
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


def test_one_gpu_has_nothing_to_send(tmp_path: Path) -> None:
    made = json.loads(bucketsim("cluster", "pcie_box", "gpus=1", "--json").out)
    assert {point["duration_ns"] for point in made["all_reduce"]} == {0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dgx_a300"], "'dgx_a300' is not legal; give one of dgx_a100, dgx_h100"),
        (["dgx_a100", "hosts=0"], "hosts: 0 is not legal"),
        (["dgx_a100", "hosts=many"], "hosts: 'many' is not legal"),
        (["dgx_a100", "racks=2"], "racks: is not a setting of preset 'dgx_a100'"),
        (["pcie_hosts", "hosts=2"], "gpus: missing; preset 'pcie_hosts' needs it"),
        (["pcie_box", "peer_to_peer=maybe"], "peer_to_peer: 'maybe' is not legal"),
        (["none.json"], "none.json: cannot be read"),
        (["none.json", "hosts=2"], "is not legal with a file"),
    ],
)
def test_what_it_refuses(words: list[str], said: str) -> None:
    made = bucketsim("cluster", *words)
    assert made.code == 1
    assert said in made.err
