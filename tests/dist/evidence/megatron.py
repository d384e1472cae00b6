"""Real Megatron-Core DistributedDataParallel around a paced tree of modules (A9), on the CPU over gloo.

Its hooks add gradients to its buffers, launch and wait for real. Two things of it are put aside: buffers lie
where ``torch.cuda.current_device()`` says, which is told to be the CPU, and collectives that it hands over
together are launched one by one, because gloo copies what it coalesces, and NCCL does not.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from sim.validator.ranks.pacing.paced_module import sleep_until
from sim.validator.ranks.pacing.replay_lane import Lane
from sim.validator.ranks.pacing.stepping import common_start
from tests.dist.evidence.paced_tree import PacedTree, run_tree_forward

_alone: list[Any] = []  # this rank's process group of one, made once


def megatron_lane(candidate: dict[str, Any], tree: PacedTree, forward_ns: int, optimizer_ns: int) -> Lane:
    """A candidate of policy ``megatron`` around the root of ``tree``."""
    with _on_the_cpu():
        ddp = _wrap(candidate["settings"], tree)
    index = {id(weight): place for place, weight in enumerate(tree.paced.weights)}
    return Lane(
        name=candidate["name"],
        step=partial(_step, ddp, candidate["settings"], tree, forward_ns, optimizer_ns),
        observe=lambda: [
            [index[id(weight)] for weight in bucket.params_list]
            for group in ddp.bucket_groups
            for bucket in group.buckets
        ],
    )


def _wrap(settings: dict[str, Any], tree: PacedTree) -> Any:
    # It imports Megatron-Core, which not every rank has.
    from tests.systems.megatron_worker import wrap

    config = {name: value for name, value in settings.items() if name != "num_microbatches"}
    return wrap(tree.root, config, _group_of_one())


def _group_of_one() -> Any:
    if not _alone:
        _alone.extend(dist.new_group([rank]) for rank in range(dist.get_world_size()))
    return _alone[dist.get_rank()]


@contextmanager
def _on_the_cpu() -> Iterator[None]:
    known = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    try:
        yield
    finally:
        torch.cuda.current_device = known


class _UnderWay(list[dist.Work]):
    """Collectives that were handed over together, as Megatron waits for them: the lane stands still."""

    def __init__(self, tree: PacedTree) -> None:
        super().__init__()
        self._tree = tree

    def wait(self) -> None:
        """Wait for all of them."""
        began = time.monotonic_ns()
        for work in self:
            work.wait()
        self._tree.stand_still(time.monotonic_ns() - began)


@contextmanager
def _one_by_one(tree: PacedTree) -> Iterator[None]:
    """Meanwhile what Megatron coalesces is launched one by one.

    A reduce-scatter over gloo begins with a copy of its input on the launching thread, which is part of its
    curve; the lane is not held up by it.
    """
    buffers: Any = import_module("megatron.core.distributed.param_and_grad_buffer")
    known = buffers._coalescing_manager
    waiting = distributed_c10d._world.pg_coalesce_state

    @contextmanager
    def launching(group: dist.ProcessGroup, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        under_way = _UnderWay(tree)
        waiting[group] = []
        yield under_way
        for one in waiting.pop(group):
            tensors = [one.tensor] if one.dst_tensor is None else [one.dst_tensor, one.tensor]
            more = {} if one.redop is None else {"op": one.redop}
            began = time.thread_time_ns()
            under_way.append(one.op(*tensors, group=group, async_op=True, **more))
            if one.redop is not None and one.dst_tensor is not None:
                tree.stand_still(began - time.thread_time_ns())
        if not async_ops:
            under_way.wait()

    buffers._coalescing_manager = launching
    try:
        yield
    finally:
        buffers._coalescing_manager = known


def _step(
    ddp: Any, settings: dict[str, Any], tree: PacedTree, forward_ns: int, optimizer_ns: int
) -> dict[str, Any]:
    """One step from a common start, as Megatron-LM's schedule without pipelining makes it; times as of
    ``run_step``."""
    schedule = tree.paced.schedule
    count = settings.get("num_microbatches", 1)
    start = common_start()
    sleep_until(start)
    ddp.zero_grad_buffer()
    with _one_by_one(tree):
        for number in range(count):
            tree.begin_forward()
            quiet: Callable[[], Any] = nullcontext if number == count - 1 else ddp.no_sync
            with quiet():
                loss = run_tree_forward(tree, ddp, forward_ns)
                tree.begin_backward()
                loss.backward()  # type: ignore[no-untyped-call]
        ddp.finish_grad_sync()
        sync_end = time.monotonic_ns()
        shards = settings.get("use_distributed_optimizer", False)
        whole = sum(weight.numel() for weight in tree.paced.weights)
        owned = sum(b.grad_data.numel() for g in ddp.bucket_groups for b in g.buckets)
        share = owned / dist.get_world_size() / whole if shards else 1
        sleep_until(sync_end + round(optimizer_ns * share))
        if shards and not settings.get("overlap_param_gather", False):
            ddp.start_param_sync()
    return {
        "step": time.monotonic_ns() - start,
        "backward_end": schedule.ready_ns[-1],
        "sync_end": sync_end - schedule.start,
    }
