"""Real torch.compile of a real DistributedDataParallel on one gloo rank: cases in, what was seen out.

A case is a dict:

- ``parts``: what forward goes through, in order: ``{kind, name, …}``. ``linear`` (``inputs``, ``outputs``,
  ``bias``, ``spare``: bytes of its weight's storage beyond it), ``norm``, ``scale``; ``again`` uses the
  part of this name once more; ``gelu``, ``open`` and ``close`` (a residual connection), ``break`` (a graph
  break);
- ``registered``: the parts' names in the order of ``parameters()``; ``frozen``, ``ignored``: parameters;
- ``width``: of the input; ``first_cap``, ``compile_cap``, ``bucket_cap``: bytes; ``options``: of DDP;
  ``backend``: of torch.compile; ``optimize_ddp``.

An answer is a dict: ``parameters`` (name, shape, bytes, of those that need a gradient),
``eager`` (the order in which those that DDP reduces are ready without torch.compile), ``graphs`` (of each the
parameters of its cuts, cuts in the order of backward), ``ready`` (as ``eager``, compiled, of the fourth step;
null: the backward of a compiled graph begins), ``rebuilt`` (the Reducer's buckets).
"""

import re
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch.distributed as dist
from torch import Tensor, nn
from torch._dynamo.backends.distributed import DDPOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.systems.real_ranks import Answer, Case, answer_each, meet

_PARAMETER = re.compile(r"modules_([a-z]+\d+)_parameters_(weight|bias)")
_LINES = {
    "gelu": "x = torch.nn.functional.gelu(x)",
    "open": "kept = x",
    "close": "x = x + kept",
    "break": "torch._dynamo.graph_break()",
}


class Scale(nn.Module):
    """A parameter that is multiplied with."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def make(part: dict[str, Any]) -> nn.Module:
    """One part with parameters."""
    if part["kind"] != "linear":
        return {"norm": nn.LayerNorm, "scale": Scale}[part["kind"]](part["inputs"])
    linear = nn.Linear(part["inputs"], part["outputs"], bias=part["bias"])
    if part["spare"]:
        weight = linear.weight.detach()
        storage = torch.zeros(weight.numel() + part["spare"] // 4)
        storage[: weight.numel()] = weight.flatten()
        linear.weight = nn.Parameter(storage[: weight.numel()].view(weight.shape))
    return linear


def build(case: Case) -> nn.Module:
    """The model, its forward written out part by part: torch.compile goes on behind a graph break, but not in
    a loop."""
    code = [_LINES.get(part["kind"], f"x = self.{part.get('name')}(x)") for part in case["parts"]]
    made: dict[str, Any] = {"torch": torch}
    exec("def forward(self, x):\n    " + "\n    ".join([*code, "return x"]), made)
    model: nn.Module = type("Model", (nn.Module,), {"forward": made["forward"]})()
    parts = {part["name"]: part for part in case["parts"] if "inputs" in part}
    for name in case["registered"]:
        model.add_module(name, make(parts[name]))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in case["frozen"])
    return model


def answer(case: Case) -> Answer:
    """One case on this rank; DDPOptimizer's own ``compile_fn`` is told of, graph by graph."""
    torch._dynamo.reset()
    torch._dynamo.config.optimize_ddp = case["optimize_ddp"]
    dist._DEFAULT_FIRST_BUCKET_BYTES = case["first_cap"]
    torch.manual_seed(0)
    model, batch = build(case), torch.randn(2, case["width"])
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, case["ignored"])
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    ready: list[str | None] = []
    for name, parameter in trained.items():
        if name not in case["ignored"]:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
    model(batch).sum().backward()
    eager, graphs, compile_fn = list(ready), list[list[list[str]]](), DDPOptimizer.compile_fn

    def seen(optimizer: DDPOptimizer, *args: Any, **options: Any) -> Any:
        made = compile_fn(optimizer, *args, **options)
        cuts = [bucket.params for bucket in reversed(optimizer.buckets)]
        named = [[found for name in cut if (found := _PARAMETER.search(name))] for cut in cuts]
        graphs.append([[".".join(one.groups()) for one in cut] for cut in named])
        return made

    cap_mb = case["bucket_cap"] / 2**20
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap_mb, **case.get("options", {}))
    ddp.bucket_bytes_cap = case["compile_cap"]
    with mock.patch.object(DDPOptimizer, "compile_fn", seen):
        compiled = torch.compile(ddp, backend=case["backend"])
        for _ in range(4):
            ddp.zero_grad()
            ready.clear()
            loss = compiled(batch).sum()
            found, left = [], [loss.grad_fn]
            while left:
                node = left.pop()
                if node is not None and node not in found:
                    found.append(node)
                    left += [one for one, _ in node.next_functions]
                    if "CompiledFunction" in node.name():
                        node.register_prehook(lambda _: ready.append(None))
            loss.backward()
    log = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return {
        "parameters": [(name, list(one.shape), one.nbytes) for name, one in trained.items()],
        "eager": eager,
        "graphs": graphs,
        "ready": ready,
        "rebuilt": [[int(index) for index in each.split()] for each in log.split(",") if each.strip()],
    }


if __name__ == "__main__":
    meet()
    answer_each(answer)
