"""Micro-runs on real ranks that measure the machine: what ``bucketsim calibrate`` runs on each rank.

None of them replays a candidate: the curve comes from bare all-reduces, copies and launches from
small paced modules of their own.
"""

import gc
import time
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.validator.building import build
from sim.validator.pacing import PacedModule, sharpen_sleep
from sim.validator.stepping import gather, run_step, set_baseline

_MIB = 1 << 20
_SPACING_NS = 4_000_000
# A transformer layer's kind of tensors: large weights beside small biases and norms, whose cost is the call.
_LAYER_BYTES = (2 * _MIB, 4096, _MIB, 4096, _MIB // 2, 4096)
_SWEEP_BYTES = 192 * _MIB


class RankLike(Protocol):
    """What a task needs of its rank."""

    job: dict[str, Any]
    rank: int
    world_size: int

    def tell(self, event: str, **content: Any) -> None:
        """Append one event to the job's event file (rank 0 only)."""


def calibrate(rank: RankLike) -> None:
    """Measure curves, channel sharing, copies and launches, one event each."""
    sharpen_sleep()
    gc.disable()
    job = rank.job
    for index in range(job["rounds"]):
        rank.tell("progress", done=index, total=job["rounds"] + 3, what="curve")
        for size in job["sizes"]:
            samples = _time_all_reduces(size, _repeats(size, job), rank)
            rank.tell("all_reduce", num_bytes=size, samples_ns=samples)
        for size in job["broadcast_sizes"]:
            samples = _time_broadcasts(size, _repeats(size, job), rank)
            rank.tell("broadcast", num_bytes=size, samples_ns=samples)
        for size in job["pair_sizes"]:
            rank.tell("pair", num_bytes=size, **_time_pairs(size, rank))
    rank.tell("progress", done=job["rounds"], total=job["rounds"] + 3, what="copies")
    rank.tell("copies", **_copies(rank))
    rank.tell("progress", done=job["rounds"] + 1, total=job["rounds"] + 3, what="launch")
    rank.tell("launch", samples_ns=_launches(rank))


def _repeats(size: int, job: dict[str, Any]) -> int:
    """More repeats for small messages, whose times scatter most; large ones are paid for by the byte."""
    return int(max(1, min(job["small_repeats"], job["bytes_per_round"] // max(size, 1))))


def _shortest(samples: list[int], rank: RankLike) -> list[int]:
    """Per call, the shortest duration over ranks: from the last arriver on, that is the transfer."""
    return [min(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def _time_all_reduces(size: int, repeats: int, rank: RankLike) -> list[int]:
    tensor = torch.full((max(1, size // 4),), 0.5)
    samples = []
    dist.all_reduce(tensor)
    for _ in range(repeats):
        start = time.monotonic_ns()
        dist.all_reduce(tensor, async_op=True).wait()
        samples.append(time.monotonic_ns() - start)
        tensor.mul_(0.5)
    return _shortest(samples, rank)


def _time_broadcasts(size: int, repeats: int, rank: RankLike) -> list[int]:
    tensor = torch.full((max(1, size // 4),), 0.5)
    dist.broadcast(tensor, src=0)
    samples = []
    for _ in range(repeats):
        dist.barrier()
        start = time.monotonic_ns()
        dist.broadcast(tensor, src=0)
        samples.append(time.monotonic_ns() - start)
    # The source may return before the others have it: the slowest rank tells.
    return [max(column) for column in zip(*gather(samples, rank.world_size), strict=True)]


def _time_pairs(size: int, rank: RankLike) -> dict[str, list[int]]:
    """One all-reduce alone and two at once, interleaved, warm; ns from first launch to last end."""
    tensors = [torch.full((size // 4,), 0.5) for _ in range(2)]
    times: dict[int, list[int]] = {1: [], 2: []}
    for count in (2, *(1, 2, 2, 1) * 2):
        start = time.monotonic_ns()
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors[:count]]
        for work in works:
            work.wait()
        times[count].append(time.monotonic_ns() - start)
        for tensor in tensors:
            tensor.mul_(0.5)
    del times[2][0]  # the first warms up
    return {"alone_ns": _shortest(times[1], rank), "both_ns": _shortest(times[2], rank)}


def _module(sizes: list[int]) -> PacedModule:
    """A paced module whose gradients come one after the other, ``_SPACING_NS`` apart."""
    tensors = [torch.full((size // 4,), 0.5) for size in sizes]
    gradients = [torch.full((size // 4,), 0.5) for size in sizes]
    order = list(range(len(sizes)))[::-1]
    due = [_SPACING_NS * (place + 1) for place in range(len(sizes) + 1)]
    return PacedModule(tensors, gradients, order, due, forward_ns=_SPACING_NS)


def _excess(row: dict[str, Any], module: PacedModule) -> list[int]:
    """What DDP added between the nodes, ns per gap."""
    return [max(0, gap - base) for gap, base in zip(row["gaps"], module.schedule.baseline_ns, strict=True)]


def _copies(rank: RankLike) -> dict[str, Any]:
    """Copy-in: gaps of stock DDP before its only bucket is launched. Copy-out: after backward, noop hook.

    Caches are swept before each step: a training step touches more memory than they hold, so its
    gradients and buckets are cold. Large and small tensors are mixed as in real models, so that the
    bandwidth holds the cost of the calls too.
    """
    broom = torch.zeros(_SWEEP_BYTES // 4)
    sizes = [size for _ in range(12) for size in _LAYER_BYTES]
    plain, stock, noop = _module(sizes), _module(sizes), _module(sizes)
    set_baseline([stock, noop], plain, 0, repeats=6)
    whole = {"bucket_cap_mb": sum(sizes) // _MIB + 2}
    stock_ddp = build(stock, whole)
    noop_ddp = build(noop, whole)
    noop_ddp.register_comm_hook(None, noop_hook)
    copy_in, copy_out = [], []
    for repeat in range(rank.job["copy_repeats"] + 3):
        broom.add_(1)
        into = _excess(run_step(stock_ddp, stock, 0), stock)
        broom.add_(1)
        out = run_step(noop_ddp, noop, 0)
        if repeat >= 3:
            copy_in.append(sum(into[:-1]))
            copy_out.append(out["sync_end"] - out["backward_end"])
    ready_first = sizes[::-1]
    return {
        "copy_in_bytes": sum(ready_first[:-1]),
        "copy_in_ns": copy_in,
        "copy_out_bytes": sum(sizes),
        "copy_out_ns": copy_out,
    }


def _launches(rank: RankLike) -> list[int]:
    """Launch cost on the autograd thread: one small bucket per gradient against one bucket for all."""
    sizes = [4096] * 24
    plain, each, whole = _module(sizes), _module(sizes), _module(sizes)
    set_baseline([each, whole], plain, 0, repeats=6)
    each_ddp = build(each, {"bucket_cap_mb": 1 / _MIB})
    whole_ddp = build(whole, {"bucket_cap_mb": 1})
    costs: list[int] = []
    for repeat in range(rank.job["copy_repeats"] + 3):
        apart = _excess(run_step(each_ddp, each, 0), each)
        together = _excess(run_step(whole_ddp, whole, 0), whole)
        if repeat >= 3:
            costs += [one - other for one, other in zip(apart[:-1], together[:-1], strict=True)]
    return costs
