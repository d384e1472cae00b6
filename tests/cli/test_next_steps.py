"""What a command suggests next leads to the link, and to the files, that its answer is about."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sim
from sim.cli.next_steps import to_replay
from sim.nouns.hardware import Hardware
from tests.cli import cheap

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
