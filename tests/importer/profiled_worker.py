"""One rank of a gloo job that torch.profiler watches: trains in many ways, one trace and one log each.

Arguments: rank, folder, world size, cases.
"""

import json
import os
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
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
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = None
    if case == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

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


def other(case: str, rank: int) -> Step:
    """What is no DDP."""
    if case == "alone":
        return trained(plain())
    if case == "inference":
        model = plain()
        return torch.no_grad()(lambda: model(torch.ones(8, DIMS[0])))
    if case == "after-backward":
        return trained(plain(), after=_each)
    if case == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy, device = ModuleWrapPolicy({nn.Linear}), torch.device("cpu")
        return trained(FullyShardedDataParallel(plain(), auto_wrap_policy=policy, device_id=device))
    if case in ("fsdp2", "tensor"):
        return trained(_sharded(case))
    return _pipeline(rank) if case == "pipeline" else _point_to_point(rank)


def _sharded(case: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    mesh, model = init_device_mesh("cpu", (2,)), plain()
    if case == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, ParallelStyle] = {
        str(place): RowwiseParallel() if place % 2 else ColwiseParallel() for place in range(len(DIMS))
    }
    return parallelize_module(nn.Sequential(*model, nn.Linear(DIMS[-1], 48)), mesh, plan)


def _pipeline(rank: int) -> Step:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
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


def _point_to_point(rank: int) -> Step:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
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


OTHERS = ("alone", "inference", "after-backward", "fsdp1", "fsdp2", "tensor", "pipeline", "send")


def main() -> None:
    """Train in each way and write."""
    rank, folder, world_size = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), world_size), rank=rank, world_size=world_size
    )
    for case in sys.argv[4:]:
        torch.manual_seed(0)
        ddp = None
        if case in OTHERS:
            step = other(case, rank)
        else:
            step, ddp = replicated(case)
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
