"""``sim.autotune`` and ``sim.record`` in real trainers on two gloo ranks, where they are installed."""

import json
from pathlib import Path

import pytest

from sim.formats.recordings import load_recording
from sim.importer.recorded.recorded_workload import workload_of
from tests.ranks import run_together

pytestmark = [pytest.mark.dist, pytest.mark.slow]
PACKAGES = {"trainer_worker": ("transformers", "accelerate"), "lightning_worker": ("lightning",)}


@pytest.mark.parametrize("package", ["accelerate", "lightning"])
def test_what_accelerate_or_fabric_prepared_is_tuned_as_it_is(package: str, tmp_path: Path) -> None:
    """``sim.autotune`` takes what ``prepare`` and ``setup`` give back; gradients are accumulated."""
    pytest.importorskip(package)
    for code, error in run_together("tests.autotune.prepared_worker", tmp_path, package):
        assert code == 0, error
    for rank in (0, 1):
        (row,) = json.loads((tmp_path / f"{rank}.json").read_text())
        assert row["outcome"] in ("kept", "reverted"), row["why"]
        assert (row["rounds"], row["hooks"], row["same"]) == (6, 0, True)


@pytest.mark.parametrize("worker", PACKAGES)
def test_a_trainer_is_tuned_or_recorded_and_its_weights_are_those_without(
    worker: str, tmp_path: Path
) -> None:
    for package in PACKAGES[worker]:
        pytest.importorskip(package)
    for code, error in run_together(f"tests.autotune.{worker}", tmp_path):
        assert code == 0, error
    for rank in (0, 1):
        answers = json.loads((tmp_path / f"{rank}.json").read_text())
        for row in answers["tuned"]:
            assert row["outcome"] in ("kept", "reverted"), row["why"]
            assert row["steps"] >= 14
            assert row["same"]
            assert row["hooks"] == 0
        assert answers["recorded"] == {"same": True, "hooks": 0}
    recording = load_recording(tmp_path / "recording")
    for recorded in recording.ranks:
        assert len(recorded.steps) == 40
        for step in recorded.steps:
            assert [backward.synchronised for backward in step.backwards] == [False, True]
    assert len(workload_of(recording).gradients) == len(recording.ranks[0].header.parameters)
