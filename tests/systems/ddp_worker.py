"""Real DistributedDataParallel. A case is a dict:

- ``layers``: the model (ddp_models); ``ddp``: keywords of DistributedDataParallel;
- ``hook``: a communication hook by name, or absent; ``snippet``: lines to run in place of wrapping ``model``;
- ``iterations`` (4), each a step of ``accumulation`` (1) micro-batches, all but the last under no_sync, or
  with ``no_sync`` (True) False none; ``zero_grad_to_none`` (True), ``create_graph`` (False).

An answer also has ``logs``: what DDP logs after each iteration.
"""

import contextlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from tests.systems.ddp_models import Net, batch
from tests.systems.real_ranks import Run, answer_each, meet


def register(ddp: DistributedDataParallel, name: str) -> None:
    """Give ``ddp`` the hook of that name."""
    if name.startswith("builtin_"):
        kind = name.removeprefix("builtin_").upper()
        ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
    elif name == "fp16_wrapped_allreduce":
        hook = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
        ddp.register_comm_hook(dist.group.WORLD, hook)
    else:
        module = debugging_hooks if name == "noop" else default_hooks
        ddp.register_comm_hook(dist.group.WORLD, getattr(module, f"{name}_hook"))


class DdpRun(Run):
    iterations = 4
    enters = "before forward"
    whole_gathers = False

    def build(self) -> nn.Module:
        return Net(self.case["layers"], self.rank)

    def wrap(self) -> None:
        # At AccumulateGrad, not after: DDP's hook fires for an undefined gradient too, others do not.
        self.learned = [one for one in self.net.parameters() if one.requires_grad]
        self.accumulators = [_accumulator(one) for one in self.learned]
        for gradient, accumulator in enumerate(self.accumulators):
            accumulator.register_prehook(lambda _, gradient=gradient: self.hook_began(gradient))
        if "snippet" in self.case:
            names: dict[str, Any] = {"model": self.net}
            exec(compile(self.case["snippet"], "snippet", "exec"), names)
            self.ddp = names["ddp_model"]
        else:
            self.ddp = DistributedDataParallel(self.net, **self.case.get("ddp", {}))
        if "hook" in self.case:
            register(self.ddp, self.case["hook"])
        self.net.register_forward_pre_hook(lambda *_: self.diary.at("forward"))
        self.inputs, self.logs = torch.Generator().manual_seed(self.rank), []
        self.optimizer = torch.optim.SGD(self.learned, lr=1e-3)

    def micro_batches(self) -> int:
        return self.case.get("accumulation", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        self.net.iteration = len(self.ready)
        is_synchronised = is_last or not self.case.get("no_sync", True)
        with contextlib.nullcontext() if is_synchronised else self.ddp.no_sync():
            values, _ = self.ddp(*batch(self.case["layers"], self.inputs))
            loss = values.float().pow(2).mean()
            self.backward(loss, create_graph=self.case.get("create_graph", False))

    def step(self) -> None:
        self.logs.append(dict(self.ddp._get_ddp_logging_data()))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.case.get("zero_grad_to_none", True))

    def more(self) -> dict[str, Any]:
        return {"logs": getattr(self, "logs", [])}


def _accumulator(parameter: Tensor) -> Any:
    node = parameter.expand_as(parameter).grad_fn
    assert node is not None
    return node.next_functions[0][0]


if __name__ == "__main__":
    meet()
    answer_each(lambda case: DdpRun(case).answer())
