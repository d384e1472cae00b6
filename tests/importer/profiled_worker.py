"""One rank of a gloo job that torch.profiler watches: trains in many ways, one trace and one log each.

Arguments: rank, folder, world size, cases.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

from tests.importer.profiled_runs import DIMS, STEPS

CAP_MB = 0.05
Step = Callable[[], None]


class Shuffled(nn.Module):
    """Layers that are used in another order than they are registered in; one may stay unused."""

    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, width) for width in (128, 96, 80, 112, 32))
        self.spare = nn.Linear(7, 5) if unused else None

    def forward(self, x: Tensor) -> Tensor:
        total = torch.zeros(())
        for place in (3, 0, 4, 1, 2):
            total = total + self.layers[place](x).relu().sum()
        return total


def plain() -> nn.Module:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(DIMS)))


def trained(model: nn.Module, optimizer: Any = None, before: Any = None, after: Any = None) -> Step:
    """A step of training; ``after`` is called with model and loss between backward and the optimizer."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.ones(8, DIMS[0])

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).sum()
        if before is not None:
            before()
        loss.backward()
        if after is not None:
            after(model, loss)
        optimizer.step()

    return step


def _norm(model: nn.Module, loss: Tensor) -> None:
    norms = [one.grad.norm() for one in model.parameters() if one.grad is not None]
    dist.all_reduce(torch.stack(norms).norm())


def _each(model: nn.Module, loss: Tensor) -> None:
    for parameter in reversed(list(model.parameters())):
        dist.all_reduce(parameter.grad)
    dist.all_reduce(loss.detach())


AFTER: dict[str, Any] = {
    "loss": lambda model, loss: dist.all_reduce(loss.detach()),
    "clip": lambda model, loss: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "norm": _norm,
}


def replicated(case: str) -> tuple[Step, DistributedDataParallel]:
    """DDP in several ways."""
    model = DistributedDataParallel(
        Shuffled(case == "unused") if case in ("shuffled", "unused") else plain(),
        bucket_cap_mb=25 if case == "default" else CAP_MB,
        static_graph=case == "static",
        find_unused_parameters=case == "unused",
        gradient_as_bucket_view=case == "view",
    )
    if case == "hook":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = None
    if case == "zero":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-4)
    before = (lambda: dist.all_reduce(torch.ones(1))) if case == "loss-before" else None
    step = trained(model, optimizer, before, AFTER.get(case))

    def with_more() -> None:
        if case == "accumulation":
            with model.no_sync():
                model(torch.ones(8, DIMS[0])).sum().backward()
        step()
        for _ in range(5 if case == "metrics" else 0):
            dist.all_reduce(torch.ones(10))

    return with_more, model


def _fsdp1() -> Step:
    policy, device = ModuleWrapPolicy({nn.Linear}), torch.device("cpu")
    return trained(FullyShardedDataParallel(plain(), auto_wrap_policy=policy, device_id=device))


def _fsdp2() -> Step:
    model, mesh = plain(), init_device_mesh("cpu", (2,))
    for layer in (*model, model):
        fully_shard(layer, mesh=mesh)
    return trained(model)


def _tensor() -> Step:
    plan: dict[str, ParallelStyle] = {
        str(place): RowwiseParallel() if place % 2 else ColwiseParallel() for place in range(len(DIMS))
    }
    model = nn.Sequential(*plain(), nn.Linear(DIMS[-1], 48))
    return trained(parallelize_module(model, init_device_mesh("cpu", (2,)), plan))


def _pipeline() -> Step:
    rank, model = dist.get_rank(), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda out, wanted: (out - wanted).sum())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(torch.ones(8, 64))
        else:
            schedule.step(target=torch.zeros(8, 64))
        optimizer.step()

    return step


def _point_to_point() -> Step:
    rank, model = dist.get_rank(), nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        values = torch.ones(8, 64)
        if rank == 0:
            out = model(values)
            dist.send(out.detach(), 1)
            dist.recv(values, 1)
            out.backward(values)
        else:
            dist.recv(values, 0)
            values.requires_grad_()
            model(values).sum().backward()
            assert values.grad is not None
            dist.send(values.grad, 0)
        optimizer.step()

    return step


OTHERS: dict[str, Callable[[], Step]] = {  # what is no DDP
    "alone": lambda: trained(plain()),
    "inference": lambda: torch.no_grad()(partial(plain(), torch.ones(8, DIMS[0]))),
    "after-backward": lambda: trained(plain(), after=_each),
    **{"fsdp1": _fsdp1, "fsdp2": _fsdp2, "tensor": _tensor, "pipeline": _pipeline, "send": _point_to_point},
}


def main() -> None:
    """Train in each way and write."""
    rank, folder, world_size = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), world_size), rank=rank, world_size=world_size
    )
    for case in sys.argv[4:]:
        torch.manual_seed(0)
        step, ddp = (OTHERS[case](), None) if case in OTHERS else replicated(case)
        for _ in range(3):
            step()
        trace = str(folder / f"{case}_{rank}.json")
        with profile(
            activities=[ProfilerActivity.CPU],
            record_shapes=case != "no-shapes",
            schedule=None if case == "no-steps" else schedule(wait=0, warmup=1, active=STEPS),
            on_trace_ready=lambda watched, trace=trace: watched.export_chrome_trace(trace),  # type: ignore[misc]
        ) as watched:
            for _ in range(STEPS + (case != "no-steps")):
                step()
                if case != "no-steps":
                    watched.step()
        if ddp is not None:
            log = ddp._get_ddp_logging_data()
            (folder / f"{case}_log_{rank}.json").write_text(json.dumps(dict(log)))
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
