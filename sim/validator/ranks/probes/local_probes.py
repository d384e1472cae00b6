"""What DDP of one workload costs on this machine: copies and launches.

Copies are those of the workload's own tensors, so that the bandwidth holds the cost of the calls too.
"""

import gc
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.validator.ranks.lanes.paced_lanes import pacer_for
from sim.validator.ranks.pacing.paced_module import PacedModule, sharpen_sleep
from sim.validator.ranks.pacing.stepping import Pacer
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.wrapping.wrap import build

_MIB = 1 << 20
_SPACING_NS = {"cpu": 2_000_000, "cuda": 200_000}  # between gradients: more than DDP's hook costs the host
_SWEEP_BYTES = 192 * _MIB
_SMALL_BYTES, _SMALL_COUNT = 4096, 24
_DROPPED = 3
_FREE_LINK = {"points": [[0, 0]], "channels": 1, "channel_slowdown": 1.0}


def probe_machine(rank: Rank) -> None:
    """Measure copies into and out of buckets, and launches: one event, ``local``, of samples in ns."""
    sharpen_sleep()
    gc.disable()
    job = rank.job
    rank.tell("local", **local_costs(pacer_for(rank), job["shapes"], job["dtypes"], job["repeats"]))


def local_costs(pacer: Pacer, shapes: list[list[int]], dtypes: list[str], repeats: int) -> dict[str, Any]:
    """Copies of these gradients and launches: samples in ns, and whether launches hold up what computes."""
    repeats += _DROPPED
    return {
        **_copies(pacer, shapes, dtypes, repeats),
        "launch_ns": _launches(pacer, repeats),
        "launch_blocks_compute": pacer.device.type == "cpu",
    }


def _module(pacer: Pacer, tensors: list[torch.Tensor], gradients: list[torch.Tensor]) -> PacedModule:
    spacing = _SPACING_NS[pacer.device.type]
    count = len(tensors)
    due = [spacing * (place + 1) for place in range(count + 1)]
    return pacer.module(tensors, gradients, list(range(count))[::-1], due, spacing)


def _copies(pacer: Pacer, shapes: list[list[int]], dtypes: list[str], repeats: int) -> dict[str, Any]:
    """Samples in ns, after sweeping the caches, from DDP with the noop hook, which sends nothing.

    ``copy_in_ns``: how much later backward ends than without DDP. ``copy_out_ns``: the time from the end of
    backward until all gradients are available.
    """
    tensors = [
        torch.zeros(shape, dtype=getattr(torch, dtype), device=pacer.device)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    broom = torch.zeros(_SWEEP_BYTES // 4, device=pacer.device)
    copy_bytes = sum(tensor.nbytes for tensor in tensors)
    plain, noop = _module(pacer, tensors, gradients), _module(pacer, tensors, gradients)
    ddp = build(noop, {"bucket_cap_mb": copy_bytes // _MIB + 2})
    ddp.register_comm_hook(None, noop_hook)
    pacer.prepare(ddp)
    pacer.settle([noop], plain, 0)
    copy_in, copy_out = [], []
    for repeat in range(repeats):
        broom.add_(1)
        without = pacer.step(plain, plain, 0)
        broom.add_(1)
        row = pacer.step(ddp, noop, 0)
        if repeat >= _DROPPED:
            copy_in.append(row["backward_end"] - without["backward_end"])
            copy_out.append(row["sync_end"] - row["backward_end"])
    return {"copy_bytes": copy_bytes, "copy_in_ns": copy_in, "copy_out_ns": copy_out}


def _launches(pacer: Pacer, repeats: int) -> list[int]:
    """Samples of what one launch takes, ns, with a small bucket for each gradient.

    On the CPU it is the processor time of a gradient's hooks, minus theirs with one bucket for all. On a GPU
    it is the time from a bucket's being ready to the end of a collective that lasts no time on its stream.
    """
    tensors = [torch.zeros(_SMALL_BYTES // 4, device=pacer.device) for _ in range(_SMALL_COUNT)]
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    plain, each, whole = (_module(pacer, tensors, gradients) for _ in range(3))
    each_ddp = build(each, {"bucket_cap_mb": 1 / _MIB})
    whole_ddp = build(whole, {"bucket_cap_mb": 1})
    link = pacer.link(_FREE_LINK)
    recorder = pacer.recorder(link)
    on_host = pacer.device.type == "cpu"
    each_ddp.register_comm_hook(None, link.hook if on_host else recorder.hook)
    whole_ddp.register_comm_hook(None, link.hook)
    for ddp in (each_ddp, whole_ddp):
        pacer.prepare(ddp)
    pacer.settle([each, whole], plain, 0)
    samples: list[int] = []
    for repeat in range(repeats):
        apart = pacer.step(each_ddp, each, 0, None if on_host else recorder)
        together = pacer.step(whole_ddp, whole, 0)
        if repeat < _DROPPED:
            continue
        if on_host:
            pairs = zip(apart["hooks"][:-1], together["hooks"][:-1], strict=True)
            samples += [one - other for one, other in pairs]
        else:
            samples += [end - ready for ready, _, end in apart["buckets"]]
    return samples
