"""Real ``fully_shard`` on gloo ranks: cases in, which collectives they launched out.

Usage: ``python -m tests.systems.fsdp2_worker CASES ANSWERS STORE`` with RANK and WORLD_SIZE set; the answers
of a rank go to ``ANSWERS.<rank>``, a line each. A case is a dict:

- ``embeds``, ``has_head``: what stands before and behind the blocks; ``blocks``: for each the kinds of its
  parts; ``width``; ``dtype``;
- ``wrapped``: modules by unit, the root apart; ``settings``: reshard_after_forward, forward_prefetch,
  backward_prefetch, param_dtype, reduce_dtype, accumulation_steps, replicas, as the simulation takes them.

An answer is a dict: ``parameters`` (name, shape, bytes, dtype), ``ready`` (gradients in the order in which
the same model makes them ready without FSDP), ``events`` (iteration, micro_batch, phase, kind, elements,
dtype), ``groups`` (the ranks of each event's group), ``error``.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from tests.systems.answering import answer_each, meet

Case = dict[str, Any]
Answer = dict[str, Any]
# By what torch calls it: what it is, and the argument that holds all that travels.
_CALLS = {
    "all_gather_single": ("all_gather", 0, "output"),
    "reduce_scatter_single": ("reduce_scatter", 1, "input"),
    "all_reduce": ("all_reduce", 0, "tensor"),
}


def main() -> None:
    """Answer every case, in the order given."""
    meet()
    answer_each(lambda case: Run(case).answer())


class Block(nn.Module):
    """Its parts one after the other, all of one width."""

    def __init__(self, kinds: list[str], width: int) -> None:
        super().__init__()
        made = {"linear": lambda: nn.Linear(width, width), "norm": lambda: nn.LayerNorm(width)}
        self.parts = nn.Sequential(*(made[kind]() for kind in kinds))

    def forward(self, x: Tensor) -> Tensor:
        """A residual block."""
        return x + self.parts(x)


class Net(nn.Module):
    """Blocks in a list, perhaps behind an embedding and before a head."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        width = case["width"]
        self.tokens = nn.Embedding(7, width) if case["embeds"] else None
        self.blocks = nn.ModuleList(Block(kinds, width) for kinds in case["blocks"])
        self.head = nn.Linear(width, 5) if case["has_head"] else None

    def forward(self, x: Tensor) -> Tensor:
        """A scalar."""
        if self.tokens is not None:
            x = self.tokens(torch.arange(x.shape[0]))
        for block in self.blocks:
            x = block(x)
        return (x if self.head is None else self.head(x)).float().square().mean()


class Run:
    """One case on one rank."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.settings = case["settings"]
        self.events: list[dict[str, Any]] = []
        self.groups: list[list[int]] = []
        self.where: dict[str, Any] = {"iteration": 0, "micro_batch": 1, "phase": "construction"}
        self.dtype = getattr(torch, case["dtype"])

    def answer(self) -> Answer:
        """Train, and tell."""
        net, error = self._net(), None
        parameters = [
            {"name": name, "shape": list(p.shape), "num_bytes": p.nbytes, "dtype": self.case["dtype"]}
            for name, p in net.named_parameters()
        ]
        ready = self._ready()
        with self._noted():
            try:
                self._wrap(net)
                for iteration in (1, 2):
                    self._train(net, iteration)
            except (AssertionError, RuntimeError, ValueError) as caught:
                error = [type(caught).__name__, str(caught)]
        return {
            "parameters": parameters,
            "ready": ready,
            "events": self.events,
            "groups": self.groups,
            "error": error,
        }

    def _net(self) -> Net:
        torch.manual_seed(0)
        return Net(self.case).to(self.dtype)

    def _input(self) -> Tensor:
        return torch.ones(3, self.case["width"], dtype=self.dtype)

    def _ready(self) -> list[int]:
        net, order = self._net(), []
        for index, parameter in enumerate(net.parameters()):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: order.append(index))
        net(self._input()).backward()
        return order

    def _wrap(self, net: Net) -> None:
        named = {name: getattr(torch, self.settings[name]) for name in _DTYPES if name in self.settings}
        more: dict[str, Any] = {"mp_policy": MixedPrecisionPolicy(**named)}
        names: tuple[str, ...] = ("shard",)
        shape: tuple[int, ...] = (dist.get_world_size(),)
        if (replicas := self.settings.get("replicas", 1)) > 1:
            names, shape = ("replicate", "shard"), (replicas, shape[0] // replicas)
        more["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=names)
        kept = self.settings.get("reshard_after_forward", True)
        units = [[net.get_submodule(name) for name in unit] for unit in self.case["wrapped"]]
        for unit in units:
            fully_shard(unit[0] if len(unit) == 1 else unit, reshard_after_forward=kept, **more)
        fully_shard(net, **more)
        firsts = [unit[0] for unit in units]
        for kind, ordered in (("forward", firsts), ("backward", firsts[::-1])):
            ahead = self.settings.get(f"{kind}_prefetch", 0)
            for place, module in enumerate(ordered if ahead else []):
                getattr(module, f"set_modules_to_{kind}_prefetch")(ordered[place + 1 : place + 1 + ahead])
            if ahead and kind == "backward":
                net.set_modules_to_backward_prefetch(ordered[:ahead])

    def _train(self, net: Net, iteration: int) -> None:
        count = self.settings.get("accumulation_steps", 1)
        for number in range(1, count + 1):
            net.set_requires_gradient_sync(number == count)
            self.where = {"iteration": iteration, "micro_batch": number, "phase": "forward"}
            loss = net(self._input())
            self.where["phase"] = "backward"
            loss.backward()
        for parameter in net.parameters():
            parameter.grad = None

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Notes every collective that FSDP2 calls, and when autograd's final callback begins."""
        known = {name: getattr(dist, name) for name in _CALLS}
        callback, run = FSDPState._root_post_backward_final_callback, self

        def noted(name: str) -> Callable[..., Any]:
            kind, place, word = _CALLS[name]

            def noting(*args: Any, **more: Any) -> Any:
                whole = more[word] if word in more else args[place]
                dtype = str(whole.dtype).removeprefix("torch.")
                run.groups.append(dist.get_process_group_ranks(more["group"]))
                run.events.append({**run.where, "kind": kind, "elements": whole.numel(), "dtype": dtype})
                return known[name](*args, **more)

            return noting

        def called(state: FSDPState) -> None:
            run.where["phase"] = "end of backward"
            callback(state)

        for name in _CALLS:
            setattr(dist, name, noted(name))
        FSDPState._root_post_backward_final_callback = called  # type: ignore[method-assign]
        try:
            yield
        finally:
            for name, call in known.items():
                setattr(dist, name, call)
            FSDPState._root_post_backward_final_callback = callback  # type: ignore[method-assign]


_DTYPES = ("param_dtype", "reduce_dtype")

if __name__ == "__main__":
    main()
