"""The lanes of a paced replay: synthetic modules that keep the recorded schedule and share their tensors."""

from functools import partial
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.validator.ranks.building import build
from sim.validator.ranks.cuda_pacing import CudaPacer, check_sums, spin_cycles
from sim.validator.ranks.lane import Lane
from sim.validator.ranks.pacers import HostPacer, Pacer
from sim.validator.ranks.pacing import PacedModule
from sim.validator.ranks.probes import RankLike
from sim.validator.ranks.stepping import Recorder

_DELAY_CYCLES = 20_000_000  # some 10 ms: a sum that does not wait for the stream is wrong


def paced_lanes(rank: RankLike) -> list[Lane]:
    """Plain, noop, and every candidate stock and traced; their common baseline is measured here.

    With an emulated link there is no lane without a communication hook: ``stock`` is then the link's hook
    without stamps, and what Python adds to a launch is seen in the noop lane.
    """
    job = rank.job
    pacer = pacer_for(rank)
    dtypes = [getattr(torch, name) for name in job["dtypes"]]
    tensors = [
        torch.zeros(shape, dtype=dtype, device=pacer.device)
        for shape, dtype in zip(job["shapes"], dtypes, strict=True)
    ]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    optimizer_ns: int = job["optimizer_ns"]
    link = None if job.get("link") is None else pacer.link(job["link"])
    modules: list[PacedModule] = []

    def module() -> PacedModule:
        buffers = [
            torch.zeros(numel, dtype=getattr(torch, dtype), device=pacer.device)
            for dtype, numel in job["buffers"]
        ]
        modules.append(
            pacer.module(tensors, gradients, job["order"], job["due_ns"], job["forward_ns"], buffers)
        )
        return modules[-1]

    plain, noop = module(), module()
    noop_ddp = build(noop, {})
    noop_ddp.register_comm_hook(None, noop_hook)
    pacer.prepare(noop_ddp)
    lanes = [
        Lane(name="plain", step=partial(_plain_step, rank, pacer, plain, optimizer_ns)),
        Lane(name="noop", step=partial(_step, pacer, noop_ddp, noop, optimizer_ns), ddp=noop_ddp),
    ]
    for candidate in job["candidates"]:
        for recorder in (None, pacer.recorder(link)):
            owner = module()
            ddp = build(owner, candidate["ddp_kwargs"], candidate["bucket_indices"])
            pacer.prepare(ddp)
            if recorder is not None:
                ddp.register_comm_hook(None, recorder.hook)
            elif link is not None:
                ddp.register_comm_hook(None, link.hook)
            lanes.append(
                Lane(
                    name=candidate["name"],
                    step=partial(_step, pacer, ddp, owner, optimizer_ns, recorder),
                    ddp=ddp,
                    is_traced=recorder is not None,
                )
            )
    pacer.settle(modules, plain, optimizer_ns)
    return lanes


def pacer_for(rank: RankLike) -> Pacer:
    """The pacer of this rank's device.

    Raises:
        MachineError: the backend sums wrongly on this GPU, or its kernels keep no time.
    """
    if rank.job.get("device", "cpu") != "cuda":
        return HostPacer()
    device = torch.device("cuda", torch.cuda.current_device())
    backend = "nccl" if "nccl" in rank.job["backend"] else "gloo"
    if rank.world_size > 1 and backend == "gloo":
        check_sums(rank.rank, rank.world_size, device, lambda: spin_cycles(_DELAY_CYCLES))
    return CudaPacer(device, rank.rank, rank.world_size, backend)


def _step(
    pacer: Pacer, model: Any, module: PacedModule, optimizer_ns: int, recorder: Recorder | None = None
) -> dict[str, Any]:
    row = pacer.step(model, module, optimizer_ns, recorder)
    del row["hooks"]
    return row


def _plain_step(rank: RankLike, pacer: Pacer, module: PacedModule, optimizer_ns: int) -> dict[str, Any]:
    """A step without DDP; where the schedule may drift, how well it was kept is told beside it."""
    row = _step(pacer, module, module, optimizer_ns)
    state = pacer.state()
    if state:
        rank.tell("pacing", planned_ns=rank.job["due_ns"][-1], backward_ns=row["backward_end"], **state)
    return row
