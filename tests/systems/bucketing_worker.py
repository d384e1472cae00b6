"""Real DDP on a group of one rank, in a process of its own: a file of cases in, what the Reducer did out.

A case: ``model`` ({kind, ...}), and either ``kwargs`` for DistributedDataParallel or a ``snippet`` to
execute with ``model`` in its namespace. An answer:
``parameters`` ([numel, itemsize, dtype, sparse]), ``ready_order``, ``buckets`` (the Reducer's log of the
rebuilt ones), ``by_iteration`` (buckets in launch order, as the communication hook saw them).
"""

import gc
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ITERATIONS = 4


class Net(nn.Module):
    """Layers in sequence; each casts its input to its own dtype."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            weight = next(layer.parameters())
            x = layer(x if isinstance(layer, nn.Embedding) else x.to(weight.dtype))
        return x.float().sum()


class WithEmpty(nn.Module):
    """Linear layers with a parameter of no elements between them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 8)
        self.nothing = nn.Parameter(torch.empty(0))
        self.two = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x) + self.nothing.sum()).sum()


def build(spec: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    """The model of a case and an input for it."""
    kind = spec["kind"]
    if kind == "mlp":
        dims = spec["dims"]
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(dims)]
        for layer, dtype in zip(layers, spec.get("dtypes", []), strict=False):
            layer.to(getattr(torch, dtype))
        return Net(layers), torch.ones(2, dims[0])
    if kind == "norms":
        width = spec["width"]
        layers = [layer for _ in range(3) for layer in (nn.LayerNorm(width), nn.Linear(width, width))]
        return Net(layers), torch.ones(2, width)
    if kind == "embedding":
        return (
            Net([nn.Embedding(1000, 64, sparse=True), nn.Linear(64, 256), nn.Linear(256, 64)]),
            torch.tensor([[1, 2, 3]]),
        )
    assert kind == "empty"
    return WithEmpty(), torch.ones(2, 8)


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Train a few iterations and say what happened."""
    model, batch = build(case["model"])
    parameters = list(model.parameters())
    index = {id(parameter): place for place, parameter in enumerate(parameters)}
    if "snippet" in case:
        names: dict[str, Any] = {"model": model}
        exec(compile(case["snippet"], "snippet", "exec"), names)
        ddp = names["ddp_model"]
    else:
        ddp = DistributedDataParallel(model, **case["kwargs"])
    sparse = any(isinstance(module, nn.Embedding) and module.sparse for module in model.modules())
    seen: list[tuple[int, list[int]]] = []

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        seen.append((bucket.index(), [index[id(p)] for p in bucket.parameters()]))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    if not sparse:
        ddp.register_comm_hook(None, hook)
    by_iteration = []
    for _ in range(ITERATIONS):
        seen.clear()
        ddp(batch).backward()
        by_iteration.append([bucket for _, bucket in seen])
        ddp.zero_grad()
    log = ddp._get_ddp_logging_data()
    buckets = [
        [int(place) for place in bucket.split()]
        for bucket in str(log["rebuilt_per_bucket_param_indices"]).split(",")
    ]
    order = [
        int(place) for place in str(log["prev_iteration_grad_ready_order_indices"]).replace(",", " ").split()
    ]
    answer = {
        "parameters": [
            [
                p.numel(),
                p.element_size(),
                str(p.dtype).removeprefix("torch."),
                p.is_sparse or (sparse and k == 0),
            ]
            for k, p in enumerate(parameters)
        ],
        "ready_order": order,
        "buckets": buckets,
        "by_iteration": by_iteration,
    }
    del ddp
    gc.collect()
    return answer


def main() -> None:
    """Answer every case of the first file, into the second."""
    torch.set_num_threads(1)
    asked, answered = map(Path, sys.argv[1:])
    cases = json.loads(asked.read_text())
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        answers = {name: run(case) for name, case in cases.items()}
        dist.barrier()
        gc.collect()
        dist.destroy_process_group()
    answered.write_text(json.dumps(answers))
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


if __name__ == "__main__":
    main()
