"""Real Megatron-Core DistributedDataParallel; a case has, beside the model, ``config`` of its own class.

An answer also has ``buckets`` (by group: the parameters' positions and the elements of the buffer's part).
What asks for CUDA is put aside: buffers are made where ``torch.cuda.current_device()`` says, the CPU here.
"""

from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import distributed as core
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer import TransformerConfig

from tests.systems.real_ranks import Run, answer_each, meet


class MegatronRun(Run):
    iterations = 3
    calls = (
        (dist, "all_reduce", "all_reduce", 0, "tensor"),
        (param_and_grad_buffer, "dist_reduce_scatter_func", "reduce_scatter", 1, "input"),
        (param_and_grad_buffer, "dist_all_gather_func", "all_gather", 0, "output"),
    )
    alone: Any = None  # this rank's own group

    def wrap(self) -> core.DistributedDataParallel:
        groups, config = ProcessGroupCollection(), core.DistributedDataParallelConfig(**self.case["config"])
        groups.dp = groups.dp_cp = groups.intra_dp_cp = dist.group.WORLD
        groups.expt_dp = groups.intra_expt_dp = dist.group.WORLD
        groups.tp = groups.ep = self.alone
        groups.pp = SimpleNamespace(rank=lambda: 0, size=lambda: 2)  # no more is asked of it
        job = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1)
        ddp = core.DistributedDataParallel(job, config, self.net, pg_collection=groups)
        at = {id(one): place for place, one in enumerate(self.net.parameters())}
        buckets = [bucket for group in ddp.bucket_groups for bucket in group.buckets]
        self.also["buckets"] = [[[at[id(p)] for p in b.params_list], b.grad_data.numel()] for b in buckets]
        return ddp

    def micro_batch(self, *, is_last: bool) -> None:
        """As Megatron-LM's schedule without pipelining makes it; the optimizer is left out."""
        if len(self.ready[-1]) == 1:
            self.model.zero_grad_buffer()
        super().micro_batch(is_last=is_last)
        if is_last:
            self.model.finish_grad_sync()

    def step(self) -> None:
        config = self.case["config"]
        if config.get("use_distributed_optimizer") and not config.get("overlap_param_gather"):
            self.model.start_param_sync()


if __name__ == "__main__":
    torch.cuda.current_device = lambda: torch.device("cpu")
    rank, world_size = meet()
    MegatronRun.alone = [dist.new_group([one]) for one in range(world_size)][rank]
    answer_each(lambda case: MegatronRun(case).answer())
