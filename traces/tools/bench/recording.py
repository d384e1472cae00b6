"""What ``sim.record`` adds to a training step on one gloo rank: in turns with plain steps, in one process.

``rows`` runs this file in a process of its own, with a folder. It prints JSON: for each case the number of
parameters and buckets, and per lane (``plain``, ``light``, ``full``, and ``after`` a full recording) the
processor time of its steps in ns, of all threads: what others do on the machine is not in it.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import sim
from sim.recorder.models import gpt

WARMUP = 3
LANES = {
    "plain": "without sim.record",
    "light": 'level="light"',
    "full": 'level="full"',
    "after": "once a recording has ended",
}


def scalars() -> tuple[nn.Module, Any]:
    """300 parameters and a batch for them."""
    return Scalars(300), (torch.ones(()),)


def small_gpt() -> tuple[nn.Module, Any]:
    """A GPT with two sequences."""
    return gpt(batch=2)


# By name: what builds a model and its batch, ``bucket_cap_mb``, and rounds.
CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], float | None, int]] = {
    "300 parameters in one bucket": (scalars, 25.0, 16),
    "300 parameters in 300 buckets": (scalars, 0.0, 16),
    "the GPT of the bundled workload": (small_gpt, None, 8),
}


class Scalars(nn.Module):
    """Nothing but parameters: a backward of hooks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([parameter.sum() for parameter in self.all]).sum() * x


def lane(
    model: nn.Module, batch: Any, caps: float | None
) -> tuple[DistributedDataParallel, Callable[[], int]]:
    """A DDP of its own and what counts the processor time of one of its steps."""
    ddp = DistributedDataParallel(model, bucket_cap_mb=caps)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-9)

    def step() -> int:
        start = time.process_time_ns()
        optimizer.zero_grad()
        ddp(*batch).backward()
        optimizer.step()
        return time.process_time_ns() - start

    return ddp, step


def compare(
    build: Callable[[], tuple[nn.Module, Any]], caps: float | None, rounds: int, folder: Path
) -> dict[str, Any]:
    """Step times of the four lanes, run in turns, each turn from another lane on."""
    lanes = {name: lane(*build(), caps) for name in LANES}
    with sim.record(lanes["after"][0], folder / "after"):
        for _ in range(WARMUP):
            lanes["after"][1]()
    times: dict[str, list[int]] = {name: [] for name in lanes}
    with (
        sim.record(lanes["light"][0], folder / "light", level="light"),
        sim.record(lanes["full"][0], folder / "full"),
    ):
        for number in range(WARMUP + rounds):
            names = list(lanes)
            names = names[number % 4 :] + names[: number % 4]
            for name in names if number % 8 < 4 else reversed(names):
                took = lanes[name][1]()
                if number >= WARMUP:
                    times[name].append(took)
    log = lanes["plain"][0]._get_ddp_logging_data()
    return {
        "parameters": log["num_parameter_tensors"],
        "buckets": len(str(log["rebuilt_per_bucket_param_indices"]).split(",")),
        "times": times,
    }


def rows() -> Iterator[dict[str, Any]]:
    """In processor time; what is added is the median over rounds, each beside the plain step of its own."""
    with tempfile.TemporaryDirectory() as folder:
        worker = [sys.executable, "-m", "traces.tools.bench.recording", folder]
        done = subprocess.run(worker, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    for case, one in json.loads(done.stdout).items():
        for lane, times in one["times"].items():
            added_us = median(a - b for a, b in zip(times, one["times"]["plain"], strict=True)) / 1e3
            each = added_us / one["parameters"]
            yield {
                "table": f"sim.record, a step of {case}",
                "row": LANES[lane],
                "size": one["parameters"],
                "seconds": [ns / 1e9 for ns in times],
                "is_reference": lane == "plain",
                "worth": "-" if lane == "plain" else f"{added_us:+.0f} us a step, {each:.2f} us a parameter",
            }


def main() -> None:
    """Compare all cases."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    answers = {
        name: compare(build, caps, rounds, folder / name) for name, (build, caps, rounds) in CASES.items()
    }
    print(json.dumps(answers), flush=True)
    gc.collect()
    dist.destroy_process_group()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
