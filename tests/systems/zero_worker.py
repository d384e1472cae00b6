"""Real DeepSpeed ZeRO, with DS_ACCELERATOR=cpu. A case has, beside the model, ``config``, DeepSpeed's own,
without batch sizes, and ``groups``: None, or for each optimizer group the positions of its parameters."""

import os
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor

from tests.systems.real_ranks import Run, answer_each, meet

FIXED = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,  # its own one would be compiled
}


class ZeroRun(Run):
    def wrap(self) -> deepspeed.DeepSpeedEngine:
        everything = list(self.net.parameters())
        places = self.case.get("groups") or [range(len(everything))]
        self.groups = [[everything[place] for place in group] for group in places]
        optimizer = torch.optim.SGD([{"params": group} for group in self.groups], lr=1e-3)
        config = self.case["config"] | FIXED
        return deepspeed.initialize(model=self.net, optimizer=optimizer, config=config)[0]

    def micro_batches(self) -> int:
        return self.case["config"].get("gradient_accumulation_steps", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        super().micro_batch(is_last=True)  # it counts them itself
        self.diary.at("step")
        self.model.step()

    def backward(self, loss: Tensor) -> None:
        self.model.backward(loss)

    def facts(self, name: str, tensor: Tensor) -> dict[str, Any]:
        group = [k for k, of in enumerate(self.groups) if any(one is tensor for one in of)]
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
