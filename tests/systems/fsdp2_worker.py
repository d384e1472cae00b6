"""Real ``fully_shard``. A case is a dict:

- ``embeds``, ``has_head``: what stands before and behind the blocks; ``blocks``: for each the kinds of its
  parts; ``width``; ``dtype``;
- ``wrapped``: modules by unit, the root apart; ``settings``: reshard_after_forward, forward_prefetch,
  backward_prefetch, param_dtype, reduce_dtype, accumulation_steps, replicas, as the simulation takes them.

``ready`` is the order in which the same model makes gradients ready without FSDP.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.systems.real_ranks import Run, answer_each, meet


class Block(nn.Module):
    """Its parts one after the other, all of one width, and a residual connection."""

    def __init__(self, kinds: list[str], width: int) -> None:
        super().__init__()
        parts = (nn.Linear(width, width) if kind == "linear" else nn.LayerNorm(width) for kind in kinds)
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.parts(x)


class Net(nn.Module):
    """Blocks in a list, perhaps behind an embedding and before a head; a scalar comes out."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__()
        width = case["width"]
        self.tokens = nn.Embedding(7, width) if case["embeds"] else None
        self.blocks = nn.ModuleList(Block(kinds, width) for kinds in case["blocks"])
        self.head = nn.Linear(width, 5) if case["has_head"] else None

    def forward(self, x: Tensor) -> Tensor:
        if self.tokens is not None:
            x = self.tokens(torch.arange(x.shape[0]))
        for block in self.blocks:
            x = block(x)
        return (x if self.head is None else self.head(x)).float().square().mean()


class Fsdp2Run(Run):
    calls = (
        (dist, "all_gather_single", "all_gather", 0, "output"),
        (dist, "reduce_scatter_single", "reduce_scatter", 1, "input"),
        (dist, "all_reduce", "all_reduce", 0, "tensor"),
    )

    def build(self) -> nn.Module:
        self.settings, self.dtype = self.case["settings"], getattr(torch, self.case["dtype"])
        plain, self.order = Net(self.case).to(self.dtype), list[int]()
        for place, parameter in enumerate(plain.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: self.order.append(place))
        self.input = torch.ones(3, self.case["width"], dtype=self.dtype)
        plain(self.input).backward()
        return Net(self.case).to(self.dtype)

    def wrap(self) -> None:
        dtypes = ("param_dtype", "reduce_dtype")
        named = {name: getattr(torch, self.settings[name]) for name in dtypes if name in self.settings}
        names, shape = ("shard",), (dist.get_world_size(),)
        if (replicas := self.settings.get("replicas", 1)) > 1:
            names, shape = ("replicate", "shard"), (replicas, shape[0] // replicas)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        more = {"mp_policy": MixedPrecisionPolicy(**named), "mesh": mesh}
        kept = self.settings.get("reshard_after_forward", True)
        units = [[self.net.get_submodule(name) for name in unit] for unit in self.case["wrapped"]]
        for unit in units:
            fully_shard(unit[0] if len(unit) == 1 else unit, reshard_after_forward=kept, **more)
        fully_shard(self.net, **more)
        firsts = [unit[0] for unit in units]
        for kind, ordered in (("forward", firsts), ("backward", firsts[::-1])):
            ahead = self.settings.get(f"{kind}_prefetch", 0)
            for place, module in enumerate(ordered if ahead else []):
                getattr(module, f"set_modules_to_{kind}_prefetch")(ordered[place + 1 : place + 1 + ahead])
            if ahead and kind == "backward":
                self.net.set_modules_to_backward_prefetch(ordered[:ahead])

    def micro_batches(self) -> int:
        return self.settings.get("accumulation_steps", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        self.net.set_requires_gradient_sync(is_last)
        self.backward(1 * self.net(self.input))  # whose hook comes before FSDP's own on what it gives back

    def step(self) -> None:
        self.net.zero_grad()

    def more(self) -> dict[str, Any]:
        return {"ready": [[self.order]] * self.iterations}


if __name__ == "__main__":
    meet()
    answer_each(lambda case: Fsdp2Run(case).answer())
