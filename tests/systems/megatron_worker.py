"""Real Megatron-Core DistributedDataParallel on gloo ranks: cases in, its buckets and collectives out.

Usage: ``python -m tests.systems.megatron_worker CASES ANSWERS STORE`` with RANK and WORLD_SIZE set; the
answers of a rank go to ``ANSWERS.<rank>``, a line each. A case is a dict:

- ``layers``: modules in the order in which forward uses them, with ``declared``, the order of their
  attributes, and ``dtype``; ``width`` of all;
- ``config``: arguments of DistributedDataParallelConfig; ``num_microbatches`` (1).

An answer is a dict: ``parameters`` (in the order of named_parameters()), ``buckets`` (by group: the
parameters' positions and the elements of the buffer's part), ``ready`` (the gradients whose hooks fired in
the last micro-batch, in order), ``events`` (every collective of three steps: iteration, phase, the gradient
in whose hook it was launched, kind, elements, dtype), and ``error``.

What asks for CUDA is put aside: buffers are made where ``torch.cuda.current_device()`` says, which is the CPU
here. Collectives are noted where Megatron calls them, by torch.distributed's own functions.
"""

import contextlib
from collections.abc import Callable, Iterator
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
from torch import Tensor, nn

from tests.systems.answering import answer_each, meet

Case = dict[str, Any]
Answer = dict[str, Any]


def main() -> None:
    """Answer every case, in the order given."""
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    rank, world_size = meet()
    alone = [dist.new_group([one]) for one in range(world_size)][rank]
    answer_each(lambda case: Run(case, alone).answer())


class Net(nn.Module):
    """Linear, LayerNorm and Embedding modules of one width: used in one order, declared in another."""

    def __init__(self, layers: list[dict[str, Any]], width: int) -> None:
        super().__init__()
        self.used = [layer["name"] for layer in layers if not layer.get("unused")]
        for layer in sorted(layers, key=lambda layer: layer["declared"]):
            kind = {"linear": lambda: nn.Linear(width, width), "norm": lambda: nn.LayerNorm(width)}
            made = kind.get(layer["kind"], lambda: nn.Embedding(7, width))()
            self.add_module(layer["name"], made.to(getattr(torch, layer["dtype"])))

    def forward(self, x: Tensor) -> Tensor:
        """A scalar; what is no embedding is applied, an embedding's rows are added."""
        for name in self.used:
            module = getattr(self, name)
            if isinstance(module, nn.Embedding):
                x = x + module(torch.arange(x.shape[0])).to(x.dtype)
            else:
                x = module(x.to(module.weight.dtype)).float()
        return x.square().mean()


class _Group:
    """A process group of which only rank and size are asked."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def wrap(net: nn.Module, config: dict[str, Any], alone: dist.ProcessGroup) -> DistributedDataParallel:
    """Megatron-Core's DDP around ``net``; ``alone`` is this rank's group."""
    groups = ProcessGroupCollection()
    groups.dp = groups.dp_cp = groups.intra_dp_cp = dist.group.WORLD
    groups.expt_dp = groups.intra_expt_dp = dist.group.WORLD
    groups.tp = groups.ep = alone
    groups.pp = _Group(0, 2)
    return DistributedDataParallel(
        TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1),
        DistributedDataParallelConfig(**config),
        net,
        pg_collection=groups,
    )


class Run:
    """One case on one rank."""

    def __init__(self, case: Case, alone: dist.ProcessGroup) -> None:
        self.case = case
        torch.manual_seed(0)
        self.net = Net(case["layers"], case["width"])
        self.names = {id(p): index for index, (_, p) in enumerate(self.net.named_parameters())}
        self.parameters = [
            {
                "name": name,
                "shape": list(p.shape),
                "num_bytes": p.nbytes,
                "dtype": str(p.dtype).removeprefix("torch."),
            }
            for name, p in self.net.named_parameters()
        ]
        self.events: list[dict[str, Any]] = []
        self.ready: list[int] = []
        self.where: dict[str, Any] = {"iteration": 0, "phase": "construction", "gradient": None}
        self.alone = alone

    def answer(self) -> Answer:
        """Train, and tell."""
        error, buckets = None, []
        with self._noted():
            try:
                ddp = wrap(self.net, self.case["config"], self.alone)
                buckets = [
                    [[[self.names[id(p)] for p in b.params_list], b.grad_data.numel()] for b in group.buckets]
                    for group in ddp.bucket_groups
                ]
                for iteration in (1, 2, 3):
                    self._train(ddp, iteration)
            except (AssertionError, RuntimeError, ValueError) as caught:
                error = [type(caught).__name__, str(caught)]
        return {
            "parameters": self.parameters,
            "buckets": buckets,
            "ready": self.ready,
            "events": self.events,
            "error": error,
        }

    def _train(self, ddp: DistributedDataParallel, iteration: int) -> None:
        """One step as Megatron-LM's schedule without pipelining makes it; the optimizer is left out."""
        ddp.zero_grad_buffer()
        count = self.case.get("num_microbatches", 1)
        for number in range(count):
            self.ready.clear()
            with contextlib.nullcontext() if number == count - 1 else ddp.no_sync():
                self.where = {"iteration": iteration, "phase": "forward", "gradient": None}
                loss = ddp(torch.ones(4, self.case["width"]))
                self.where["phase"] = "backward"
                loss.backward()
        self.where |= {"phase": "after backward", "gradient": None}
        ddp.finish_grad_sync()
        self.where["phase"] = "step"
        config = self.case["config"]
        if config.get("use_distributed_optimizer") and not config.get("overlap_param_gather"):
            ddp.start_param_sync()

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Notes hooks as they begin, and every collective that Megatron calls."""
        buffers = param_and_grad_buffer
        known = dist.all_reduce, buffers.dist_reduce_scatter_func, buffers.dist_all_gather_func
        hook_of = DistributedDataParallel._make_backward_post_hook
        run = self

        def noted(kind: str, whole: int, call: Callable[..., Any]) -> Callable[..., Any]:
            def noting(*tensors: Any, **more: Any) -> Any:
                moved = tensors[whole]
                dtype = str(moved.dtype).removeprefix("torch.")
                run.events.append({**run.where, "kind": kind, "elements": moved.numel(), "dtype": dtype})
                return call(*tensors, **more)

            return noting

        def hooked(ddp: DistributedDataParallel, parameter: nn.Parameter) -> Callable[..., None]:
            hook, index = hook_of(ddp, parameter), run.names[id(parameter)]

            def hooking(*unused: Any) -> None:
                run.where["gradient"] = index
                run.ready.append(index)
                hook(*unused)

            return hooking

        dist.all_reduce = noted("all_reduce", 0, known[0])
        buffers.dist_reduce_scatter_func = noted("reduce_scatter", 1, known[1])
        buffers.dist_all_gather_func = noted("all_gather", 0, known[2])
        DistributedDataParallel._make_backward_post_hook = hooked
        try:
            yield
        finally:
            dist.all_reduce, buffers.dist_reduce_scatter_func, buffers.dist_all_gather_func = known
            DistributedDataParallel._make_backward_post_hook = hook_of


if __name__ == "__main__":
    main()
