"""What is bundled is legal, complete and scored as the README says."""

import re
from pathlib import Path

import pytest

import sim

ROOT = Path(__file__).parents[2]
# Outside the rule, for a reason that traces/README.md gives; a better model takes them off this list.
KNOWN_MISSES = {"resnet50-box-2x4gbit"}
RECORDS = sim.find_records(ROOT / "traces" / "measured")


def percent(value: float, digits: int) -> str:
    return f"{100 * value:.{digits}f} %"


@pytest.mark.parametrize("path", sorted((ROOT / "traces" / "workloads").glob("*.json")), ids=lambda p: p.stem)
def test_bundled_workloads_are_recordings(path: Path) -> None:
    workload = sim.load_workload(path)
    assert workload.provenance["source"] == "bucketsim record"
    assert {"date", "cpu", "torch"} <= workload.provenance.keys()
    assert len(workload.samples) >= 10
    assert not workload.estimated


@pytest.mark.parametrize("path", sorted((ROOT / "traces" / "hardware").glob("*.json")), ids=lambda p: p.stem)
def test_bundled_hardware_was_calibrated(path: Path) -> None:
    hardware = sim.load_hardware(path)
    assert hardware.provenance["source"] == "bucketsim calibrate"
    assert hardware.all_reduce[0].num_bytes == 4096
    assert hardware.all_reduce[-1].num_bytes == 256 << 20
    assert hardware.spread["all_reduce"]


def test_there_are_records() -> None:
    assert len(RECORDS) >= 3


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_records_were_calibrated_before_they_were_measured(path: Path) -> None:
    record = sim.load_record(path)
    assert len(record.candidates) >= 5
    assert all(m.complete and m.observed for m in record.candidates)
    for measurement in record.measurements:
        assert record.hardware.provenance["date"] < measurement.provenance["date"]
    assert sim.digest(record.hardware) in {
        sim.digest(sim.load_hardware(p)) for p in (ROOT / "traces" / "hardware").glob("*.json")
    }


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_todays_model_scores_records_as_the_readme_says(path: Path) -> None:
    record = sim.load_record(path)
    agreement = sim.agreement(record)
    without = sim.agreement(record, copies=False)
    steps = [row.measured_step_ns / 1e6 for row in agreement.rows]
    assert agreement.median_exposed_error is not None
    expected = [
        f"`{path.name}`",
        f"{min(steps):.1f} to {max(steps):.1f}",
        percent(agreement.median_step_error, 2),
        percent(agreement.worst_step_error, 2),
        f"{agreement.order_right} of {agreement.order_pairs}",
        percent(agreement.median_exposed_error, 1),
        f"{percent(without.median_step_error, 2)}, worst {percent(without.worst_step_error, 2)}",
    ]
    readme = (ROOT / "README.md").read_text()
    row = re.search(rf"^\| `{path.name}` \|.*$", readme, re.MULTILINE)
    assert row is not None
    assert [cell.strip() for cell in row[0].strip("|").split("|")] == expected


@pytest.mark.parametrize("path", RECORDS, ids=lambda p: p.name)
def test_predictions_hold_on_what_they_have_not_seen(path: Path) -> None:
    """The project's own rule: median step error <= 2 %, worst <= 5 %, order right; copies matter."""
    agreement = sim.agreement(sim.load_record(path))
    without = sim.agreement(sim.load_record(path), copies=False)
    assert agreement.passed == (path.name not in KNOWN_MISSES), agreement.rule
    assert agreement.order_right == agreement.order_pairs
    assert agreement.worst_step_error <= 0.05
    assert agreement.median_step_error < without.median_step_error
