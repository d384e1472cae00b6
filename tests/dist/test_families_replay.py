"""What the tuner says that each knob and rule reaches, replayed for real."""

import json
from pathlib import Path

import pytest

import sim
from sim.formats.record_files import load_record
from sim.nouns.assignment import DDP_POLICIES
from sim.nouns.workload import Workload
from tests.commands import bucketsim
from tests.handmade import wired

pytestmark = pytest.mark.dist

MS = 1_000_000
TWO = wired({0: MS, 1 << 20: 3 * MS}, name="two")


@pytest.mark.slow
def test_every_knob_is_replayed_with_its_own_buckets(small_workload: Workload, tmp_path: Path) -> None:
    """Through the command line: DDP's knobs; ranks ran what the tuner says."""
    workload, hardware, record = tmp_path / "w.json", tmp_path / "h.json", tmp_path / "record"
    workload.write_text(sim.to_text(small_workload))
    hardware.write_text(sim.to_text(TWO))
    said = bucketsim(
        *("validate", str(workload), "--hardware", str(hardware), "-o", str(record), "--families"),
        *("--rounds", "1", "--json"),
    )
    assert said.code == 0, said.err
    families = sim.tune(small_workload, TWO).families
    expected = {
        {"default": "DDP default", "bucket_indices": "recommended"}.get(name, name): family.assignment
        for name, family in families.items()
        if family.assignment.policy in DDP_POLICIES and name != "bucket_cap_mb_list"
    }
    assert {"bucket_cap_mb", "DDP_SET_LAST_BUCKET_CAP"} <= set(expected)
    assert {row["name"] for row in json.loads(said.out)["rows"]} == set(expected)
    for candidate in load_record(record).candidates:
        assert candidate.observed is not None
        ran = [set(bucket) for bucket in candidate.observed]
        assert ran == [set(bucket) for bucket in expected[candidate.name].bucket_indices]


@pytest.mark.parametrize("more", [["--caps", "1"], ["--systems"], ["--ab", "--model", "m:f"]])
def test_families_come_from_the_tuner_alone(more: list[str], tmp_path: Path) -> None:
    said = bucketsim("validate", "w.json", "--hardware", "h.json", "-o", str(tmp_path), "--families", *more)
    assert said.code == 2
    assert "--families" in said.err
