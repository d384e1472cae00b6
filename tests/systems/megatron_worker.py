"""Real Megatron-Core DistributedDataParallel. A case is a dict: ``layers`` (ddp_models), ``config`` (of its
DistributedDataParallelConfig), ``num_microbatches`` (1).

An answer also has ``buckets`` (by group: the parameters' positions and the elements of the buffer's part).
What asks for CUDA is put aside: buffers are made where ``torch.cuda.current_device()`` says, the CPU here.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    param_and_grad_buffer,
)
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig
from torch import nn

from tests.systems.ddp_models import Net, batch
from tests.systems.real_ranks import Run, answer_each, meet


class _Group:
    """A process group of which only rank and size are asked."""

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2


class MegatronRun(Run):
    iterations = 3
    calls = (
        (dist, "all_reduce", "all_reduce", 0, "tensor"),
        (param_and_grad_buffer, "dist_reduce_scatter_func", "reduce_scatter", 1, "input"),
        (param_and_grad_buffer, "dist_all_gather_func", "all_gather", 0, "output"),
    )
    alone: Any = None  # this rank's own group

    def build(self) -> nn.Module:
        return Net(self.case["layers"], 0)

    def wrap(self) -> None:
        self.watch_hooks()
        self.config, groups = self.case["config"], ProcessGroupCollection()
        groups.dp = groups.dp_cp = groups.intra_dp_cp = dist.group.WORLD
        groups.expt_dp = groups.intra_expt_dp = dist.group.WORLD
        groups.tp = groups.ep = self.alone
        groups.pp = _Group()
        self.ddp = DistributedDataParallel(
            TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1),
            DistributedDataParallelConfig(**self.config),
            self.net,
            pg_collection=groups,
        )

    def micro_batches(self) -> int:
        return self.case.get("num_microbatches", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        """As Megatron-LM's schedule without pipelining makes it; the optimizer is left out."""
        if len(self.ready[-1]) == 1:
            self.ddp.zero_grad_buffer()
        with contextlib.nullcontext() if is_last else self.ddp.no_sync():
            values, _ = self.ddp(*batch(self.case["layers"], torch.default_generator))
            self.backward(values.float().square().mean())
        if is_last:
            self.ddp.finish_grad_sync()

    def step(self) -> None:
        if self.config.get("use_distributed_optimizer") and not self.config.get("overlap_param_gather"):
            self.ddp.start_param_sync()

    def more(self) -> dict[str, Any]:
        names = {id(one): index for index, one in enumerate(self.net.parameters())}
        groups = self.ddp.bucket_groups if hasattr(self, "ddp") else []
        buckets = [bucket for group in groups for bucket in group.buckets]
        return {"buckets": [[[names[id(p)] for p in b.params_list], b.grad_data.numel()] for b in buckets]}


if __name__ == "__main__":
    torch.cuda.current_device = lambda: torch.device("cpu")
    rank, world_size = meet()
    MegatronRun.alone = [dist.new_group([one]) for one in range(world_size)][rank]
    answer_each(lambda case: MegatronRun(case).answer())
