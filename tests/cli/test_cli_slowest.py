"""``bucketsim simulate --slowest``: another rank, by a factor or by its own workload."""

import json
from pathlib import Path

import pytest

import sim
from sim.formats import documents
from tests.commands import bucketsim

EXAMPLES = Path(__file__).parents[1] / "contracts" / "examples"
W, H = EXAMPLES / "workload.json", EXAMPLES / "hardware.json"
WORDS = ("simulate", W, "--hardware", H)


def test_a_factor_and_a_file_say_the_same(tmp_path: Path) -> None:
    workload, hardware = sim.load_workload(W), sim.load_hardware(H)
    slower, _ = sim.scale(workload, hardware, backward=1.5)
    documents.save(tmp_path / "slow.json", slower)
    report = sim.summarize(sim.simulate(workload, hardware, sim.assign(workload), slowest=slower))
    assert any(bucket.late_ns for bucket in report.buckets)
    for slowest in ("1.5", tmp_path / "slow.json"):
        said = bucketsim(*WORDS, "--slowest", slowest, "--json")
        assert (said.code, said.err) == (0, "")
        told = json.loads(said.out)
        assert told["sync_end_ns"] == report.sync_end_ns
        assert [bucket["late_ns"] for bucket in told["buckets"]] == [b.late_ns for b in report.buckets]
        assert told["verdict"] == report.verdict
        assert told["provenance"]["slowest"].startswith(workload.name)


@pytest.mark.parametrize(
    ("slowest", "message"),
    [
        ("0.9", "give a factor of 1 or more, or a workload file"),
        ("nan", "give a factor of 1 or more, or a workload file"),
        ("1e9", "a factor of 1000000000.0 is not legal"),
        ("nowhere.json", "cannot be read"),
        (H, "kind"),
    ],
)
def test_what_is_no_rank_is_refused(slowest: object, message: str) -> None:
    said = bucketsim(*WORDS, "--slowest", slowest)
    assert (said.code, said.out) == (1, "")
    assert message in " ".join(said.err.split())
