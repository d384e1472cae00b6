"""What a command suggests next leads to the link, and to the files, that its answer is about."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli.next_steps import to_replay, to_tune_written
from sim.nouns.hardware import Hardware
from tests.cli import cheap
from tests.commands import bucketsim

WORKLOAD, WIRE, BEST = Path("w.json"), Path("wire.json"), Path("best.json")
BOX = {"rates_bits": [10**9] * 4, "uplink_bits": None, "hosts": [0, 1, 2, 3]}


def measured(**provenance: Any) -> Hardware:
    return replace(sim.load_hardware(cheap.H), world_size=2, provenance=provenance)


@pytest.mark.parametrize(
    ("provenance", "where"),
    [
        ({"place": "2 ranks over loopback"}, "--ranks 2"),
        ({"place": "2 hosts of a cluster"}, "--ranks 2 --prepare"),
        ({"box": BOX}, "--box 4 --rate 1gbit"),
        ({"box": {**BOX, "hosts": [0, 2]}}, "--ranks 2 --prepare"),  # of a box that is no longer made
        ({"box": BOX, "carried": {"cluster": "another"}}, "--ranks 2 --prepare"),
    ],
)
def test_a_replay_runs_where_the_hardware_was_measured(provenance: dict[str, Any], where: str) -> None:
    line = to_replay(WORKLOAD, WIRE, measured(**provenance), BEST)
    assert (
        line == f"bucketsim validate w.json --hardware wire.json --assignment best.json {where} -o measured"
    )


def test_without_hardware_the_reader_is_told_which_options_say_where() -> None:
    line = to_replay(WORKLOAD, None, None, BEST)
    command, _, hint = line.partition(" (")
    assert shlex.split(command)[-2:] == ["-o", "measured"]
    assert "--box and --rate, or --ranks, as HARDWARE.json was measured" in hint


def test_tune_hands_its_hardware_on_so_that_export_names_the_wire(tmp_path: Path) -> None:
    best, wire = tmp_path / "best.json", tmp_path / "wire.json"
    wire.write_text(sim.to_text(measured(box={**BOX, "hosts": [0, 1], "rates_bits": [10**9] * 2})))
    best.write_text(sim.to_text(sim.assign(sim.load_workload(cheap.W), bucket_cap_mb=4)))
    said = bucketsim("export", cheap.W, "--hardware", wire, "--assignment", best, "--as", "snippet")
    assert said.err.endswith(f"--assignment {best} --box 2 --rate 1gbit -o measured\n")


def test_a_correction_is_not_written_over_what_it_corrects() -> None:
    for given in (Path("hardware.json"), Path("folder/hardware.json")):
        line = to_tune_written(WORKLOAD, None, corrected=given)
        assert line.startswith("the same with -o hardware-anchored.json; then: bucketsim tune w.json ")
        assert "--hardware hardware-anchored.json -o assignment.json" in line
