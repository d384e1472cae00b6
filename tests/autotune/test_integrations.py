"""``sim.autotune`` in the real trainers on two gloo ranks, where their packages are installed."""

import json
from pathlib import Path

import pytest

from tests.dist.pairs import run_pair

pytestmark = [pytest.mark.dist, pytest.mark.slow]
PACKAGES = {"trainer_worker": ("transformers", "accelerate"), "lightning_worker": ("lightning",)}


@pytest.mark.parametrize("worker", PACKAGES)
def test_a_trainer_is_tuned_and_its_weights_are_those_without(worker: str, tmp_path: Path) -> None:
    for package in PACKAGES[worker]:
        pytest.importorskip(package)
    for code, error in run_pair(f"tests.autotune.{worker}", tmp_path):
        assert code == 0, error
    for rank in (0, 1):
        for row in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert row["outcome"] in ("kept", "reverted"), row["why"]
            assert row["steps"] >= 14
            assert row["same"]
            assert row["hooks"] == 0
