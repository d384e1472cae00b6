"""Real DeepSpeed ZeRO, with DS_ACCELERATOR=cpu. A case is a dict:

- ``model``: ``layers`` (ddp_models), or ``sizes`` and ``used`` of a chain; ``config``, DeepSpeed's own,
  without batch sizes;
- ``groups``: None, or for each optimizer group the positions of its parameters; ``frozen``: positions.
"""

import os
from typing import Any
from unittest import mock

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from tests.systems.ddp_models import Net, batch
from tests.systems.real_ranks import Run, answer_each, meet


class Chain(nn.Module):
    """Parameters of any size, used one after the other: the one used last is ready first."""

    def __init__(self, sizes: list[int], used: list[int]) -> None:
        super().__init__()
        self.pieces = nn.ParameterList(nn.Parameter(torch.full((size,), 0.01)) for size in sizes)
        self.used = used

    def forward(self, x: Tensor) -> tuple[Tensor]:
        for place in self.used:
            x = x * (1 + self.pieces[place].sum() / 1000)
        return (x,)


class ZeroRun(Run):
    def build(self) -> nn.Module:
        spec = self.case["model"]
        net = Net(spec["layers"], 0) if "layers" in spec else Chain(**spec)
        inputs = batch(spec["layers"], torch.default_generator) if "layers" in spec else (torch.ones(1),)
        self.batch, everything = inputs, list(net.parameters())
        for place in self.case.get("frozen", []):
            everything[place].requires_grad_(False)
        groups = self.case.get("groups") or [range(len(everything))]
        self.groups = [{"params": [everything[place] for place in group]} for group in groups]
        return net

    def wrap(self) -> None:
        self.watch_hooks()
        fixed = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # its own one would be compiled
        }
        optimizer = torch.optim.SGD([dict(group) for group in self.groups], lr=1e-3)
        config = self.case["config"] | fixed
        self.engine, *_ = deepspeed.initialize(model=self.net, optimizer=optimizer, config=config)

    def micro_batches(self) -> int:
        return self.case["config"].get("gradient_accumulation_steps", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        loss = self.engine(*self.batch)[0].float().square().mean()
        self.diary.ends_backward(loss)
        self.diary.at("backward")
        backward = Tensor.backward

        def noted(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            backward(loss, *args, **kwargs)
            self.diary.at("after backward")  # DeepSpeed's own backward() goes on

        with mock.patch.object(Tensor, "backward", noted):
            self.engine.backward(loss)
        self.diary.at("step")
        self.engine.step()

    def facts(self, name: str, tensor: Tensor) -> dict[str, Any]:
        group = [k for k, of in enumerate(self.groups) if any(one is tensor for one in of["params"])]
        return super().facts(name, tensor) | {"group": group[0]}


if __name__ == "__main__":
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    # Not used in training, and would be compiled here, or import all that compiles: not what is tested.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.compile = lambda function, **_: function
    # Many CPUs have no fast fp16; what is sent does not depend on that.
    type(get_accelerator()).is_fp16_supported = lambda self: True
    meet()
    deepspeed.init_distributed("gloo")
    answer_each(lambda case: ZeroRun(case).answer())
