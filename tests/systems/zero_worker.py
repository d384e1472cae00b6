"""Real DeepSpeed ZeRO on ranks of their own: cases in, which collectives they launched out.

Usage: ``python -m tests.systems.zero_worker CASES ANSWERS STORE`` with RANK, WORLD_SIZE and
DS_ACCELERATOR=cpu set; the answers of a rank go to ``ANSWERS.<rank>``, a line each. A case is a dict:

- ``model``: ``layers`` (ddp_models), or ``sizes`` and ``used`` of a chain; ``config``, DeepSpeed's own,
  without batch sizes;
- ``groups``: None, or for each optimizer group the positions of its parameters; ``frozen``: positions;
- ``iterations`` (2), each an optimizer step of gradient_accumulation_steps micro-batches.

An answer is a dict: ``parameters`` (those that need a gradient, in the order of module.parameters()),
``events`` (ddp_observing), ``ready`` (the gradients whose hooks fired in the last micro-batch, in order),
``buffers_bytes`` (of the contiguous buffers at the end of a backward), and ``error`` (None, or the type and
text of what DeepSpeed raised).
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn

from tests.systems.answering import answer_each, meet
from tests.systems.ddp_models import Net, batch
from tests.systems.ddp_observing import Diary

Case = dict[str, Any]
Answer = dict[str, Any]


def main() -> None:
    """Answer every case, in the order given."""
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    # Not used in training, and would be compiled here, or import all that compiles: not what is tested.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.compile = lambda function, **_: function
    # Many CPUs have no fast fp16; what is sent does not depend on that.
    type(get_accelerator()).is_fp16_supported = lambda self: True
    meet()
    deepspeed.init_distributed("gloo")
    answer_each(lambda case: Run(case).answer())


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


def build(spec: dict[str, Any]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model of a case and an input for it, the same on all ranks."""
    torch.manual_seed(0)
    if "layers" in spec:
        return Net(spec["layers"], 0), batch(spec["layers"], torch.default_generator)
    return Chain(**spec), (torch.ones(1),)


class Run:
    """One case on one rank."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.net, self.batch = build(case["model"])
        self.everything = list(self.net.parameters())
        for place in case.get("frozen", []):
            self.everything[place].requires_grad_(False)
        self.ready: list[int] = []
        self.diary = Diary()
        self.gathered: list[int] = []
        self.buffers_bytes = 0
        self.buckets: list[Any] = []
        self.groups = self._groups()
        for index, parameter in enumerate(p for p in self.everything if p.requires_grad):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self._hook_began(index))

    def answer(self) -> Answer:
        """Train, and tell."""
        error = None
        self.diary.start()
        self.diary.enter("construction", 0, 0)
        with self._noted():
            try:
                self._train()
            except Exception as caught:  # noqa: BLE001 - DeepSpeed refuses with whatever it has at hand
                error = [type(caught).__name__, str(caught)]
        group_of = {id(p): number for number, group in enumerate(self.groups) for p in group["params"]}
        return {
            "parameters": [
                {
                    "name": name,
                    "shape": list(parameter.shape),
                    "num_bytes": parameter.numel() * parameter.element_size(),
                    "dtype": str(parameter.dtype).removeprefix("torch."),
                    "group": group_of[id(parameter)],
                }
                for name, parameter in self.net.named_parameters()
                if parameter.requires_grad
            ],
            "events": self._events(),
            "ready": self.ready,
            "buffers_bytes": self.buffers_bytes,
            "error": error,
        }

    def _events(self) -> list[dict[str, Any]]:
        """What the diary tells, with the whole size of what is gathered."""
        gathered, events = iter(self.gathered), self.diary.events()
        for event in events:
            if "all_gather" in event["kind"]:
                event |= {"kind": "all_gather", "elements": next(gathered)}
        return events

    def _groups(self) -> list[dict[str, Any]]:
        groups = self.case.get("groups") or [range(len(self.everything))]
        return [{"params": [self.everything[place] for place in group]} for group in groups]

    def _train(self) -> None:
        config = self.case["config"]
        fixed = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # its own one would be compiled
        }
        optimizer = torch.optim.SGD([dict(group) for group in self.groups], lr=1e-3)
        engine, *_ = deepspeed.initialize(model=self.net, optimizer=optimizer, config=config | fixed)
        self.buckets = list(engine.optimizer.ipg_buckets.values())
        for iteration in range(1, self.case.get("iterations", 2) + 1):
            for micro_batch in range(1, config.get("gradient_accumulation_steps", 1) + 1):
                self.ready.clear()
                self.diary.enter("before forward", iteration, micro_batch)
                loss = engine(*self.batch)[0].float().square().mean()
                loss.register_hook(lambda _: self._queue_end())
                self.diary.at("backward")
                engine.backward(loss)
                self.diary.at("step")
                engine.step()
        engine.destroy()

    def _hook_began(self, gradient: int) -> None:
        self.ready.append(gradient)
        self.diary.at("backward", gradient=gradient)

    def _queue_end(self) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: self.diary.at("end of backward"))

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Notes what the flight recorder does not tell: what is gathered, when backward() returns."""
        sender = deepspeed.comm.comm.cdb  # DeepSpeed's backend, which kept torch's function when it was made
        gather, backward = sender.all_gather_function, Tensor.backward

        def noted_gather(*, output_tensor: Tensor, **kwargs: Any) -> Any:
            self.gathered.append(output_tensor.numel())
            return gather(output_tensor=output_tensor, **kwargs)

        def noted_backward(loss: Tensor, *args: Any, **kwargs: Any) -> None:
            backward(loss, *args, **kwargs)
            self.buffers_bytes = sum(buffer.nbytes for one in self.buckets for buffer in one.buffer)
            self.diary.at("after backward")

        sender.all_gather_function = noted_gather
        Tensor.backward = noted_backward  # type: ignore[method-assign]
        try:
            yield
        finally:
            sender.all_gather_function = gather
            Tensor.backward = backward  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
