"""A neighbour: all-reduces of one size, or one candidate's paced steps, back to back until it is ended."""

import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from sim.validator.ranks.lanes.paced_lanes import Modules
from sim.validator.ranks.pacing.paced_module import sharpen_sleep
from sim.validator.ranks.pacing.pacers import HostPacer
from sim.validator.ranks.pacing.stepping import run_step
from sim.validator.ranks.process.rank_like import RankLike
from sim.validator.ranks.wrapping.wrap import manner_of, wrap


def occupy(rank: RankLike) -> None:
    """Do the same step for ever; an event each, with its duration in ns on this rank."""
    sharpen_sleep()
    gc.disable()
    for step_ns in steps(rank):
        rank.tell("step", step_ns=step_ns)


def steps(rank: RankLike) -> Iterator[int]:
    """Durations of one step after the other, ns, without end; nothing lies between two of them."""
    step = _all_reduces(rank.job["num_bytes"]) if "num_bytes" in rank.job else _paced(rank)
    while True:
        yield step()


def _all_reduces(num_bytes: int) -> Callable[[], int]:
    tensor = torch.zeros(max(1, num_bytes // 4))

    def step() -> int:
        start = time.monotonic_ns()
        dist.all_reduce(tensor)
        return time.monotonic_ns() - start

    return step


def _paced(rank: RankLike) -> Callable[[], int]:
    """Steps of the job's one candidate; as in training, only collectives keep the ranks together."""
    job = rank.job
    (candidate,) = job["candidates"]
    pacer = HostPacer()
    made = Modules(pacer, job)
    plain, module = made.module(), made.module()
    model: Any = wrap(module, candidate).model
    pacer.settle([module], plain, job["optimizer_ns"], adds=made.adds)
    manner = manner_of(candidate)

    def step() -> int:
        row = run_step(model, module, job["optimizer_ns"], manner=manner, begin=time.monotonic_ns)
        return int(row["step"])

    return step
