"""Real torch.compile of a DDP with the Python reducer, on gloo ranks: cases in, what was seen out.

Usage: ``python -m tests.systems.python_reducer_worker CASES ANSWERS STORE`` with RANK and WORLD_SIZE set; the
answers go to ``ANSWERS.<rank>``, a line each. A case is one of ``compiled_worker``'s chains, and besides:

- ``cap_mb``: ``bucket_cap_mb``, or null; ``backend``: of torch.compile;
- ``reorders``: Inductor's ``reorder_for_peak_memory``;
- ``kernels``: whether g++ compiles Inductor's kernels, which takes a minute; without, they do nothing, and
  which collectives there are, in which order and between which matrix products, is the same.

An answer is a dict: ``parameters`` and ``eager`` as ``compiled_worker`` says; ``events``, of the third step,
``gradient`` is how many products of the size of a weight came before; ``averaged``: gradients are the mean
over ranks.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
import torch._inductor.kernel.mm
import torch.distributed as dist
from torch import Tensor
from torch._dynamo.compiled_autograd import _enable
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.select_algorithm import extern_kernels
from torch.nn.parallel import DistributedDataParallel

from tests.systems.answering import answer_each, meet
from tests.systems.compiled_worker import Answer, Case, Model, forward_of
from tests.systems.ddp_observing import Diary

_STEPS = 3
_compile_kernel = AsyncCompile.cpp_pybinding
_multiply = extern_kernels.mm


class Run:
    """One case on this rank."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.diary = Diary()
        self.products = 0
        torch._dynamo.reset()
        torch.manual_seed(0)
        self.model = type("Model", (Model,), {"forward": forward_of(case)})(case)
        self.batch = torch.randn(2, case["width"])
        self.trained = {name: one for name, one in self.model.named_parameters() if one.requires_grad}
        self.smallest = min(case["widths"]) ** 2

    def answer(self) -> Answer:
        """What was seen."""
        ready: list[str] = []
        hooks = [
            one.register_post_accumulate_grad_hook(lambda _, name=name: ready.append(name))
            for name, one in self.trained.items()
        ]
        self.model(self.batch).sum().backward()
        for hook in hooks:
            hook.remove()
        self.batch += dist.get_rank()
        self.model.zero_grad()
        self.model(self.batch).sum().backward()
        expected = [one.grad.clone() for one in self.trained.values() if one.grad is not None]
        for gradient in expected:
            dist.all_reduce(gradient)
        events = self._train()
        pairs = zip(expected, self.trained.values(), strict=True)
        return {
            "parameters": [(name, list(one.shape), one.nbytes) for name, one in self.trained.items()],
            "eager": ready,
            "events": events,
            "averaged": all(
                one.grad is not None and torch.allclose(mean / dist.get_world_size(), one.grad, atol=1e-4)
                for mean, one in pairs
            ),
        }

    def _train(self) -> list[dict[str, Any]]:
        case = self.case
        extern_kernels.mm = self._product
        AsyncCompile.cpp_pybinding = _compile_kernel if case["kernels"] else _without_kernel  # type: ignore[method-assign]
        ddp = DistributedDataParallel(self.model, bucket_cap_mb=case["cap_mb"])
        forward = self._compiled(ddp)
        with torch._inductor.config.patch(reorder_for_peak_memory=case["reorders"]):
            for number in range(_STEPS):
                self.diary.start()
                self.diary.enter("backward", number + 1, 1)
                self.products = 0
                ddp.zero_grad()
                with _enable(self._compiled):
                    forward(self.batch).sum().backward()
        return self.diary.events()

    def _compiled(self, of: Any) -> Callable[..., Any]:
        made: Callable[..., Any] = torch.compile(of, backend=self.case["backend"], fullgraph=True)
        return made

    def _product(self, *factors: Tensor, out: Tensor) -> Tensor:
        made: Tensor = _multiply(*factors, out=out)
        if out.numel() >= self.smallest:
            self.products += 1
            self.diary.at("backward", gradient=self.products)
        return made


def _without_kernel(compiler: AsyncCompile, argtypes: list[str], source_code: str) -> Callable[..., None]:
    return lambda *arguments: None


def main() -> None:
    """Answer every case, in the order given."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{Path(sys.argv[3]).parent}/inductor.{os.environ['RANK']}"
    torch._dynamo.config.optimize_ddp = "python_reducer"
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.force_disable_caches = True
    torch._inductor.config.cpp.vec_isa_ok = True
    meet()
    answer_each(lambda case: Run(case).answer())


if __name__ == "__main__":
    main()
