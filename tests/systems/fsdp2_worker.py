"""Real ``fully_shard``. A case has, beside the model, ``wrapped``: modules by unit, the root apart, and
``settings``, as the simulation takes them. ``ready`` is the order of the same model without FSDP."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from tests.systems.models import build
from tests.systems.real_ranks import Run, answer_each, meet


class Fsdp2Run(Run):
    calls = (
        (dist, "all_gather_single", "all_gather", 0, "output"),
        (dist, "reduce_scatter_single", "reduce_scatter", 1, "input"),
        (dist, "all_reduce", "all_reduce", 0, "tensor"),
    )

    def watch_hooks(self) -> None:
        plain, order = build(self.case, self.rank), list[int]()
        for place, parameter in enumerate(plain.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda _, place=place: order.append(place))
        self.loss(plain).backward()
        self.also["ready"] = [[order]] * self.iterations

    def wrap(self) -> FSDPModule:
        settings, ranks = self.case["settings"], dist.get_world_size()
        dtypes = {name: getattr(torch, of) for name, of in settings.items() if name.endswith("_dtype")}
        names, shape = ("shard",), (ranks,)
        if (replicas := settings.get("replicas", 1)) > 1:
            names, shape = ("replicate", "shard"), (replicas, ranks // replicas)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        more = {"mp_policy": MixedPrecisionPolicy(**dtypes), "mesh": mesh}
        kept = settings.get("reshard_after_forward", True)
        units = [[self.net.get_submodule(name) for name in unit] for unit in self.case["wrapped"]]
        for unit in units:
            fully_shard(unit[0] if len(unit) == 1 else unit, reshard_after_forward=kept, **more)
        model, firsts = fully_shard(self.net, **more), [unit[0] for unit in units]
        for kind, ordered in (("forward", firsts), ("backward", [model, *firsts[::-1]])):
            ahead = settings.get(f"{kind}_prefetch", 0)
            for place, module in enumerate(ordered if ahead else []):
                getattr(module, f"set_modules_to_{kind}_prefetch")(ordered[place + 1 : place + 1 + ahead])
        return model

    def micro_batches(self) -> int:
        return self.case["settings"].get("accumulation_steps", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        self.model.set_requires_gradient_sync(is_last)
        super().micro_batch(is_last=True)

    def step(self) -> None:
        self.model.zero_grad()


if __name__ == "__main__":
    meet()
    answer_each(lambda case: Fsdp2Run(case).answer())
