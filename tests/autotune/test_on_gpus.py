"""What only GPUs can tell of a tuning over NCCL, each with the bound that it must meet."""

import json
from typing import Any

import pytest
import torch

from tests.ranks import run_together

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gpus")
    world = min(8, torch.cuda.device_count())
    ended = run_together("tests.autotune.gpu_worker", folder, str(world), world_size=world)
    for code, error in ended:
        assert code == 0, error
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def test_a_script_that_sets_no_device_is_tuned(ranks: list[dict[str, Any]]) -> None:
    """Its objects would have gone by way of GPU 0 on every rank."""
    for said in ranks:
        assert said["current"] == 0
        assert said["outcome"] in ("kept", "reverted"), said["why"]


def test_a_step_that_is_awaited_is_the_step_that_training_has(ranks: list[dict[str, Any]]) -> None:
    """Within 3 %: a trial waits for the GPU before and after each step."""
    for said in ranks:
        assert said["awaited"] == pytest.approx(said["free"], rel=0.03)


def test_what_nccl_takes_more_fits_in_what_is_left_to_it(ranks: list[dict[str, Any]]) -> None:
    for said in ranks:
        assert said["nccl_bytes"] <= said["room"]


def test_launch_and_wait_of_the_host_are_not_in_a_probe(ranks: list[dict[str, Any]]) -> None:
    """16 KiB take no longer than one of many back to back, which are launched while others run."""
    for said in ranks:
        assert said["small_ns"] <= 1.3 * said["host_ns"]
