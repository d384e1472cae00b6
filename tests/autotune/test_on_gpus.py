"""What only GPUs can tell of a tuning over NCCL, each with the bound that it must meet.

``python -m tests.autotune.test_on_gpus RANK FOLDER WORLD_SIZE`` is one of some ranks on a GPU each, whose
script never calls ``torch.cuda.set_device``.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.autotuner import switch
from sim.autotuner.unison import LinkProbe, Unison
from tests.ranks import run_together

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("gpus")
    world = min(8, torch.cuda.device_count())
    ended = run_together("tests.autotune.test_on_gpus", folder, str(world), world_size=world)
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


def model(device: torch.device) -> DistributedDataParallel:
    """A GPT-2 in its number of layers and bytes, near the pace of its host."""
    torch.manual_seed(0)
    blocks = (nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True) for _ in range(12))
    inner = nn.Sequential(*blocks).to(device)
    return DistributedDataParallel(inner, device_ids=[device.index], bucket_cap_mb=4)


def step_ns(train: Callable[[], None], device: torch.device, each: bool) -> float:
    """A step of 40, waited for ``each`` or at their end only."""
    for _ in range(15):
        train()
    torch.cuda.synchronize(device)
    begun = time.perf_counter_ns()
    for _ in range(40):
        train()
        if each:
            torch.cuda.synchronize(device)
    torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - begun) / 40


def main() -> None:
    rank, folder, world = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    device = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", store=dist.FileStore(str(folder / "store"), world), rank=rank, world_size=world
    )
    ddp = model(device)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    batch = torch.randn(4, 128, 768, device=device)

    def train() -> None:
        optimizer.zero_grad()
        ddp(batch).square().mean().backward()
        optimizer.step()

    answers: dict[str, Any] = {"awaited": step_ns(train, device, True), "free": step_ns(train, device, False)}
    before = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    ranks = Unison(ddp)
    probe = LinkProbe(ddp, ranks)
    answers["small_ns"] = min(probe.time(16 << 10) for _ in range(20))
    tensor = torch.zeros(4096, device=device)
    answers["host_ns"] = step_ns(lambda: dist.all_reduce(tensor), device, False)
    del probe
    ranks.close()
    tuner = sim.autotune(ddp, verify_steps=12, max_verify_steps=24)
    for _ in range(200):
        train()
        tuner.step()
    answers["outcome"] = tuner.result and tuner.result.outcome
    answers["why"] = tuner.result and tuner.result.why
    torch.cuda.empty_cache()
    after = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    answers["nccl_bytes"], answers["room"] = before - after, switch._FOR_NCCL
    answers["current"] = torch.cuda.current_device()
    (folder / f"{rank}.json").write_text(json.dumps(answers))
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
