"""The lanes of a paced replay: synthetic modules that keep the recorded schedule and share their tensors.

Who keeps it is a pacer: the host by sleeping, or a GPU by timed kernels.
"""

from functools import partial
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.validator.ranks.pacing.cuda_pacing import CudaPacer, check_sums
from sim.validator.ranks.pacing.paced_module import PacedModule
from sim.validator.ranks.pacing.spinning import keep_busy
from sim.validator.ranks.pacing.stepping import (
    PLAIN,
    Lane,
    Manner,
    Pacer,
    Recorder,
    keep_freed_memory,
)
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.wrapping.wrap import adds_to_gradients, build, manner_of, observed_buckets, wrap

_DELAY_CYCLES = 20_000_000  # some 10 ms, so that a sum comes out wrong if it does not wait for the stream


def paced_lanes(rank: Rank) -> list[Lane]:
    """The lanes: plain, noop, and each candidate, once more as a traced one where the job says so.

    The baseline that all lanes share is measured here. With an emulated link every lane of DDP has a
    communication hook: that of an untraced candidate is the link's without stamps, and the noop lane shows
    what Python adds to a launch. Freed memory is kept, as by a GPU's caching allocator: hooks make buffers
    anew in each step, and fresh pages are slow.
    """
    keep_freed_memory()
    job = rank.job
    pacer = pacer_for(rank)
    made = Modules(pacer, job)
    optimizer_ns: int = job["optimizer_ns"]
    link = None if job.get("link") is None else pacer.link(job["link"])
    plain, noop = made.module(), made.module()
    # Where parameters are unused, only DDP with a static graph runs without the costs of searching for them.
    noop_ddp = build(noop, {"static_graph": True} if made.has_unused else {})
    noop_ddp.register_comm_hook(None, noop_hook)
    pacer.prepare(noop_ddp)
    lanes = [
        Lane(name="plain", step=partial(_plain_step, rank, pacer, plain, optimizer_ns)),
        Lane(
            name="noop",
            step=partial(_step, pacer, noop_ddp, noop, optimizer_ns),
            observe=partial(observed_buckets, noop_ddp),
        ),
    ]
    for candidate in job["candidates"]:
        for recorder in (None, pacer.recorder(link)) if candidate["traced"] else (None,):
            owner = made.module()
            wrapped = wrap(owner, candidate)
            pacer.prepare(wrapped.model)
            if recorder is not None:
                wrapped.model.register_comm_hook(None, recorder.hook)
            elif link is not None:
                wrapped.model.register_comm_hook(None, link.hook)
            manner = manner_of(candidate)
            lanes.append(
                Lane(
                    name=candidate["name"],
                    step=partial(_step, pacer, wrapped.model, owner, optimizer_ns, recorder, manner),
                    observe=wrapped.observe,
                    is_traced=recorder is not None,
                )
            )
    pacer.settle(made.modules, plain, optimizer_ns, adds=made.adds)
    return lanes


class Modules:
    """Makes the module of each lane; all share their parameters and the gradients that they hand out."""

    def __init__(self, pacer: Pacer, job: dict[str, Any]) -> None:
        self._pacer, self._job = pacer, job
        self._tensors = [
            torch.zeros(shape, dtype=getattr(torch, dtype), device=pacer.device)
            for shape, dtype in zip(job["shapes"], job["dtypes"], strict=True)
        ]
        self._gradients = [torch.full_like(tensor, 0.5) for tensor in self._tensors]
        self.adds = any(adds_to_gradients(candidate) for candidate in job["candidates"])
        # Zeros, so that sums over many steps stay what they are.
        self._addends = [torch.zeros_like(tensor) for tensor in self._tensors] if self.adds else None
        self.has_unused = len(job["order"]) < len(self._tensors)
        self.modules: list[PacedModule] = []

    def module(self) -> PacedModule:
        """One more module."""
        job, device = self._job, self._pacer.device
        buffers = [
            torch.zeros(numel, dtype=getattr(torch, dtype), device=device) for dtype, numel in job["buffers"]
        ]
        made = self._pacer.module(
            self._tensors, self._gradients, job["order"], job["due_ns"], job["forward_ns"], buffers
        )
        if self._addends is not None:
            made.addends = self._addends
        self.modules.append(made)
        return made


def pacer_for(rank: Rank) -> Pacer:
    """The pacer of this rank's device.

    Raises:
        MachineError: the backend sums wrongly on this GPU, or its kernels keep no time.
    """
    if rank.job.get("device", "cpu") != "cuda":
        return Pacer()
    device = torch.device("cuda", torch.cuda.current_device())
    backend = "nccl" if "nccl" in rank.job["backend"] else "gloo"
    if rank.world_size > 1 and backend == "gloo":
        check_sums(rank.rank, rank.world_size, device, lambda: keep_busy(_DELAY_CYCLES))
    return CudaPacer(device, rank.rank, rank.world_size, backend)


def _step(
    pacer: Pacer,
    model: Any,
    module: PacedModule,
    optimizer_ns: int,
    recorder: Recorder | None = None,
    manner: Manner = PLAIN,
) -> dict[str, Any]:
    row = pacer.step(model, module, optimizer_ns, recorder, manner)
    return {name: value for name, value in row.items() if name not in ("forward", "hooks")}


def _plain_step(rank: Rank, pacer: Pacer, module: PacedModule, optimizer_ns: int) -> dict[str, Any]:
    """A step without DDP; where the schedule may drift, how well it was kept is told beside it."""
    row = _step(pacer, module, module, optimizer_ns)
    state = pacer.state()
    if state:
        rank.tell("pacing", planned_ns=rank.job["due_ns"][-1], backward_ns=row["backward_end"], **state)
    return row
