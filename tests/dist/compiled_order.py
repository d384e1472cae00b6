"""Run by torchrun: when gradients become ready without and with torch.compile; rank 0 prints JSON (A8.10)."""

import json
import time
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.recorder.models import gpt

MS = 1_000_000


def watch(*, compiled: bool, splits: bool = True) -> dict[str, Any]:
    """Ready order in the sixth iteration, and when its first gradient was ready (fraction of backward)."""
    if compiled:
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = splits
    model, batch = gpt(layers=4, width=256, heads=4, vocab=4096, context=64, batch=4)
    order: list[int] = []
    times: list[int] = []

    def hook(index: int) -> None:
        order.append(index)
        times.append(time.perf_counter_ns())

    for index, parameter in enumerate(model.parameters()):
        parameter.register_post_accumulate_grad_hook(lambda _, index=index: hook(index))
    inner = torch.compile(model, backend="aot_eager") if compiled else model
    ddp = DistributedDataParallel(inner, bucket_cap_mb=1)  # type: ignore[arg-type]
    start = 0
    for _ in range(6):
        ddp.zero_grad()
        loss = ddp(*batch)
        order.clear()
        times.clear()
        start = time.perf_counter_ns()
        loss.backward()
    end = time.perf_counter_ns()
    return {"order": list(order), "first_ready": (times[0] - start) / (end - start)}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {
        "eager": watch(compiled=False),
        "split": watch(compiled=True),
        "whole": watch(compiled=True, splits=False),
    }
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
