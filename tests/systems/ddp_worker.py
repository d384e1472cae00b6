"""Real DistributedDataParallel. A case has, beside the model, ``ddp``: its keywords, or ``snippet``: lines to
run on ``model``; ``hook``: one by its name; ``zero_grad_to_none`` (True), ``create_graph`` (False).
An answer also has ``logs``: what DDP logs after each iteration."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks
from torch.nn.parallel import DistributedDataParallel

from tests.systems.real_ranks import Run, answer_each, meet

HOOKS = {**vars(default_hooks), **vars(debugging_hooks)}
HOOKS["fp16_wrapped_allreduce_hook"] = default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)


def register(ddp: DistributedDataParallel, name: str) -> None:
    """Give ``ddp`` the hook of that name."""
    if name.startswith("builtin_"):
        ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, name[len("builtin_") :].upper()))
    else:
        ddp.register_comm_hook(dist.group.WORLD, HOOKS[f"{name}_hook"])


class DdpRun(Run):
    iterations = 4
    enters = "before forward"
    whole_gathers = False

    def watch_hooks(self) -> None:
        """At AccumulateGrad, not after: DDP's hook fires for an undefined gradient too, others do not."""
        self.accumulators: Any = [one.expand_as(one).grad_fn.next_functions[0][0] for one in self.learned()]
        for gradient, accumulator in enumerate(self.accumulators):
            accumulator.register_prehook(lambda _, gradient=gradient: self.hook_began(gradient))

    def wrap(self) -> DistributedDataParallel:
        names = {"model": self.net}
        exec(self.case.get("snippet", ""), names)
        ddp = names.get("ddp_model") or DistributedDataParallel(self.net, **self.case.get("ddp", {}))
        if "hook" in self.case:
            register(ddp, self.case["hook"])
        self.net.register_forward_pre_hook(lambda *_: self.diary.at("forward"))
        self.optimizer = torch.optim.SGD(self.learned(), lr=1e-3)
        return ddp

    def backward(self, loss: Tensor) -> None:
        loss.backward(create_graph=self.case.get("create_graph", False))

    def step(self) -> None:
        self.also.setdefault("logs", []).append(dict(self.model._get_ddp_logging_data()))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.case.get("zero_grad_to_none", True))


if __name__ == "__main__":
    meet()
    answer_each(lambda case: DdpRun(case).answer())
