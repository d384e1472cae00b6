"""Real DistributedDataParallel on ranks of their own: cases in, which collectives it launched out.

Usage: ``python -m tests.systems.ddp_worker CASES ANSWERS STORE`` with RANK and WORLD_SIZE set; the answers of
a rank go to ``ANSWERS.<rank>``, a line each. A case is a dict:

- ``layers``: the model (ddp_models);
- ``ddp``: keywords of DistributedDataParallel;
- ``hook``: {"name": ...} (ddp_hooks), or absent; ``snippet``: lines to run in place of wrapping ``model``;
- ``iterations`` (4), each a step of ``accumulation`` (1) micro-batches, all but the last under no_sync, or
  with ``no_sync`` (True) False none;
- ``zero_grad_to_none`` (True), ``create_graph`` (False).

An answer is a dict: ``parameters`` (those that need a gradient, in the order that DDP gives them),
``frozen``, ``buffers``, ``events`` (ddp_observing), ``ready`` (for each iteration and micro-batch the
gradients whose hooks fired, in order, a gradient twice where its hook fired twice), ``logs`` (what DDP logs
after each iteration), and ``error``: None, or what was raised and where.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.systems.answering import answer_each, meet
from tests.systems.ddp_hooks import register
from tests.systems.ddp_models import Net, batch
from tests.systems.ddp_observing import Diary

Case = dict[str, Any]
Answer = dict[str, Any]


def main() -> None:
    """Answer every case, in the order given."""
    rank, _ = meet()
    answer_each(lambda case: Run(case, rank).answer())


class Run:
    """One case on one rank."""

    def __init__(self, case: Case, rank: int) -> None:
        torch.manual_seed(0)
        self.case, self.rank = case, rank
        self.net = Net(case["layers"], rank)
        self.learned = [p for p in self.net.parameters() if p.requires_grad]
        self.ready: list[list[list[int]]] = []
        self.logs: list[dict[str, Any]] = []
        self.diary = Diary()
        self.inputs = torch.Generator().manual_seed(rank)
        # At AccumulateGrad, not after: DDP's hook fires for an undefined gradient too, others do not.
        self.accumulators = [_accumulator(p) for p in self.learned]
        for gradient, accumulator in enumerate(self.accumulators):
            accumulator.register_prehook(lambda _, gradient=gradient: self._hook_began(gradient))

    def answer(self) -> Answer:
        """Train, and tell."""
        error = None
        self.diary.start()
        self.diary.enter("construction", 0, 0)
        with _roots_noted(self.diary):
            try:
                ddp = self._wrap()
                self._train(ddp)
            except (RuntimeError, ValueError, TypeError, AssertionError) as caught:
                last = self.diary.marks[-1]
                error = {
                    "type": type(caught).__name__,
                    "text": str(caught),
                    "phase": last.phase,
                    "iteration": last.iteration,
                    "micro_batch": last.micro_batch,
                }
        if "snippet" in self.case:
            os.environ.pop(
                "DDP_SET_LAST_BUCKET_CAP", None
            )  # which some lines set, and the next case is not to see
        sparse = {id(m.weight) for m in self.net.modules() if isinstance(m, nn.Embedding) and m.sparse}
        facts = [
            {"order": order, "needs_gradient": p.requires_grad, "sparse": id(p) in sparse, **_facts(name, p)}
            for order, (name, p) in enumerate(self.net.named_parameters())
        ]
        return {
            "parameters": [parameter for parameter in facts if parameter["needs_gradient"]],
            "frozen": [parameter for parameter in facts if not parameter["needs_gradient"]],
            "buffers": [_facts(name, buffer) for name, buffer in self.net.named_buffers()],
            "events": self.diary.events(),
            "ready": self.ready,
            "logs": self.logs,
            "error": error,
        }

    def _wrap(self) -> DistributedDataParallel:
        if "snippet" in self.case:
            names: dict[str, Any] = {"model": self.net}
            exec(compile(self.case["snippet"], "snippet", "exec"), names)
            ddp = names["ddp_model"]
        else:
            ddp = DistributedDataParallel(self.net, **self.case.get("ddp", {}))
        if "hook" in self.case:
            register(ddp, **self.case["hook"])
        self.net.register_forward_pre_hook(lambda *_: self.diary.at("forward"))
        return ddp

    def _train(self, ddp: DistributedDataParallel) -> None:
        optimizer = torch.optim.SGD(self.learned, lr=1e-3)
        for iteration in range(1, self.case.get("iterations", 4) + 1):
            self._step(ddp, iteration)
            self.logs.append(dict(ddp._get_ddp_logging_data()))
            self.diary.at("step")
            optimizer.step()
            optimizer.zero_grad(set_to_none=self.case.get("zero_grad_to_none", True))

    def _step(self, ddp: DistributedDataParallel, iteration: int) -> None:
        self.net.iteration = iteration
        self.ready.append([])
        micro_batches = self.case.get("accumulation", 1)
        for micro_batch in range(1, micro_batches + 1):
            self.ready[-1].append([])
            is_synchronised = micro_batch == micro_batches or not self.case.get("no_sync", True)
            with contextlib.nullcontext() if is_synchronised else ddp.no_sync():
                self.diary.enter("before forward", iteration, micro_batch)
                values, _ = ddp(*batch(self.case["layers"], self.inputs))
                loss = values.float().pow(2).mean()
                loss.register_hook(lambda _: self._queue_end())
                self.diary.at("backward")
                loss.backward(create_graph=self.case.get("create_graph", False))
                self.diary.at("after backward")

    def _hook_began(self, gradient: int) -> None:
        self.ready[-1][-1].append(gradient)
        self.diary.at("backward", gradient=gradient)

    def _queue_end(self) -> None:
        # Queued before DDP queues its own callback, and so runs just before it.
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.diary.at("end of backward"))


def _accumulator(parameter: Tensor) -> Any:
    node = parameter.expand_as(parameter).grad_fn
    assert node is not None
    return node.next_functions[0][0]


def _facts(name: str, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "numel": tensor.numel(),
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "num_bytes": tensor.numel() * tensor.element_size(),
    }


@contextlib.contextmanager
def _roots_noted(diary: Diary) -> Iterator[None]:
    """The flight recorder tells no roots; whatever DDP sends from a rank but 0 goes through this one call."""
    broadcast = dist._broadcast_coalesced

    def noted(group: Any, tensors: Any, size: int, root: int = 0) -> None:
        last = diary.marks[-1]
        diary.at(last.phase, gradient=last.gradient, root=root)
        broadcast(group, tensors, size, root)
        diary.at(last.phase, gradient=last.gradient)

    dist._broadcast_coalesced = noted
    try:
        yield
    finally:
        dist._broadcast_coalesced = broadcast


if __name__ == "__main__":
    main()
