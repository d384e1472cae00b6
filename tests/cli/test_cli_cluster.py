"""bucketsim cluster: a machine's curves from published figures, and its file."""

import json
from pathlib import Path

import pytest

import sim
from tests.commands import bucketsim


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


def test_ranks_are_named_or_counted() -> None:
    by_name = bucketsim("cluster", "dgx_h100", "hosts=2", "--ranks", "host0.gpu0,host0.gpu1", "--json")
    counted = bucketsim("cluster", "dgx_h100", "hosts=2", "--ranks", "2", "--json")
    assert json.loads(by_name.out) == json.loads(counted.out)
    assert json.loads(counted.out)["world_size"] == 2
    uneven = bucketsim("cluster", "dgx_h100", "hosts=2", "--ranks", "9", "--json")
    assert json.loads(uneven.out)["world_size"] == 9


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dgx_a100", "--ranks", "9"], "--ranks: 9 is not legal; 'dgx_a100' has 8 ranks"),
        (["dgx_a100", "--ranks", "0"], "--ranks: 0 is not legal"),
        (["dgx_a100", "--ranks", "gpu0"], "--ranks.0: 'gpu0' is not legal; give a GPU such as"),
        (["dgx_a100", "--ranks", ","], "--ranks: an empty list is not legal"),
        (["dgx_a100", "--ranks", "9" * 23], "--ranks: 99999999999999999999... is not legal"),
        (["dgx_a100", "--ranks", "9" * 5000], "--ranks: 99999999999999999999... is not legal"),
        (["dgx_a100", "hosts=" + "9" * 5000], "KEY=VALUE: hosts=99999999999999999999... is not legal"),
        (["dgx_a100", "hosts=2", "hosts=4"], "KEY=VALUE: hosts is given twice; give it once"),
        (["dgx_a100", "--beside", "host0.gpu0"], "--beside: host0.gpu0 is not legal; a rank of this job"),
        (["dgx_a100", "--measured", "@hosts=2"], "--measured: '@hosts=2' is not legal"),
        (["dgx_a100", "--algorithm", "star"], "algorithm: 'star' is not legal; give one of auto, ring"),
        (["dgx_a100", "--algorithm", "nvls"], "algorithm: nvls is not for 8 ranks on 1 hosts of this kind"),
        (["dgx_h100", "--algorithm", "hierarchical"], "algorithm: 'hierarchical' is not legal; give one of"),
        (["dgx_h100", "--algorithm", "nvls", "--loads"], "--loads: not known for --algorithm nvls"),
        (["dgx_a100", "--collective", "scan"], "--collective: 'scan' is not legal"),
        (["dgx_a100", "--loads", "--json"], "--loads: not legal with --json"),
        (["dgx_a100", "--measured", "none.json"], "--measured: 'none.json' is not legal"),
        (["dgx_a100", "--measured", "none.json@hosts=2"], "none.json: cannot be read"),
        (
            ["dgx_a100", "--measured", "n.json@hosts=2", "--beside", "host0.gpu0"],
            "--measured: not legal with",
        ),
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
