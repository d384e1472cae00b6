"""Replays candidates on real ranks, interleaved: what ``bucketsim validate`` runs on each rank."""

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.validator.building import build, observed_buckets
from sim.validator.pacing import PacedModule, sharpen_sleep
from sim.validator.probes import RankLike
from sim.validator.stepping import Recorder, gather, run_step, set_baseline


@dataclass(slots=True)
class _Lane:
    """One thing that is run in every round: the plain backward, noop, or a candidate (traced or not)."""

    name: str
    model: Callable[[torch.Tensor], torch.Tensor]
    module: PacedModule
    recorder: Recorder | None = None


def replay(rank: RankLike) -> None:
    """Run every lane once per round in a shuffled order; one event a step, warm-up rounds marked."""
    sharpen_sleep()
    gc.disable()
    job = rank.job
    lanes = _lanes(job)
    plain = lanes[0].module
    set_baseline([lane.module for lane in lanes], plain, job["optimizer_ns"], repeats=5)
    shuffle = random.Random(job["seed"])
    for number in range(-job["warmup"], job["rounds"]):
        gc.collect()
        for lane in shuffle.sample(lanes, len(lanes)):
            row = run_step(lane.model, lane.module, job["optimizer_ns"], lane.recorder)
            del row["gaps"]
            rank.tell(
                "step",
                lane=lane.name,
                traced=lane.recorder is not None,
                round=number,
                ranks=gather(row, rank.world_size),
            )
        if number == -1:  # rebuilt before the second forward (A2.6), and told before anything is measured
            _tell_buckets(rank, lanes)


def _tell_buckets(rank: RankLike, lanes: list[_Lane]) -> None:
    for lane in lanes:
        if isinstance(lane.model, torch.nn.parallel.DistributedDataParallel):
            seen = gather(observed_buckets(lane.model), rank.world_size)
            rank.tell("buckets", lane=lane.name, traced=lane.recorder is not None, ranks=seen)


def _lanes(job: dict[str, Any]) -> list[_Lane]:
    dtypes = [getattr(torch, name) for name in job["dtypes"]]
    tensors = [torch.zeros(shape, dtype=dtype) for shape, dtype in zip(job["shapes"], dtypes, strict=True)]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]

    def module() -> PacedModule:
        buffers = [torch.zeros(numel, dtype=getattr(torch, dtype)) for dtype, numel in job["buffers"]]
        return PacedModule(tensors, gradients, job["order"], job["due_ns"], job["forward_ns"], buffers)

    plain, noop = module(), module()
    noop_ddp = build(noop, {})
    noop_ddp.register_comm_hook(None, noop_hook)
    lanes = [_Lane("plain", plain, plain), _Lane("noop", noop_ddp, noop)]
    for candidate in job["candidates"]:
        for recorder in (None, Recorder()):
            owner = module()
            ddp = build(owner, candidate["ddp_kwargs"])
            if recorder is not None:
                ddp.register_comm_hook(None, recorder.hook)
            lanes.append(_Lane(candidate["name"], ddp, owner, recorder))
    return lanes
