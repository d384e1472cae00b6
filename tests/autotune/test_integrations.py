"""``BucketAutotuneCallback`` in the real Trainer on two gloo ranks, where its packages are installed."""

import json
from pathlib import Path

import pytest

from tests.dist.pairs import run_pair

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.dist, pytest.mark.slow]


def test_a_trainer_is_tuned_and_its_weights_are_those_without(tmp_path: Path) -> None:
    for code, error in run_pair("tests.autotune.trainer_worker", tmp_path):
        assert code == 0, error
    for rank in (0, 1):
        for row in json.loads((tmp_path / f"{rank}.json").read_text()):
            assert row["outcome"] in ("kept", "reverted"), row["why"]
            assert row["steps"] > 14
            assert row["same"]
            assert row["hooks"] == 0
