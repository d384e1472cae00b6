"""Real DDP on a model that sleeps: what its logger measured of each iteration, as JSON.

Arguments: a file of cases, and one for the answers. A case is
``{"naps_ns": [...], "tail_ns", "forward_ns", "loss_ns", "kwargs": {...}, "iterations"}``. Gradient k, of
64 KiB, becomes ready once backward has slept through the naps of all behind it and its own. A list comes
back for each: the logs of all iterations but the last, as DDP gave them after the next forward.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 128


class Nap(torch.autograd.Function):
    """Nothing in forward; backward sleeps."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, nap_ns: int) -> Tensor:
        ctx.nap_ns = nap_ns
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        time.sleep(ctx.nap_ns / 1e9)
        return gradients[0], None


class Sleeper(nn.Module):
    """Linear layers with a nap behind each, and one ahead of all."""

    def __init__(self, naps_ns: Sequence[int], tail_ns: int, forward_ns: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in naps_ns)
        self.naps_ns, self.tail_ns, self.forward_ns = naps_ns, tail_ns, forward_ns

    def forward(self, values: Tensor) -> Tensor:
        time.sleep(self.forward_ns / 1e9)
        values = Nap.apply(values, self.tail_ns)
        for layer, nap_ns in zip(self.layers, self.naps_ns, strict=True):
            values = Nap.apply(layer(values), nap_ns)
        return values


def run(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Train, and tell."""
    ddp = DistributedDataParallel(
        Sleeper(case["naps_ns"], case["tail_ns"], case["forward_ns"]), **case["kwargs"]
    )
    logs: list[dict[str, Any]] = []
    for iteration in range(case["iterations"]):
        output = ddp(torch.ones(1, WIDTH, requires_grad=True))
        if iteration:
            logs.append(dict(ddp._get_ddp_logging_data()))
        time.sleep(case["loss_ns"] / 1e9)
        output.sum().backward()
        ddp.zero_grad()
    return logs


def main() -> None:
    """Answer every case of the first file, into the second."""
    torch.set_num_threads(1)
    asked, answered = map(Path, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        answers = [run(case) for case in json.loads(asked.read_text())]
    answered.write_text(json.dumps(answers))
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
