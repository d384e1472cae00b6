"""What every real rank does around its system: it meets its peers, answers one case after another, and ends.

``python -m tests.systems.WORKER CASES ANSWERS STORE`` with RANK and WORLD_SIZE set; the answers of a rank go
to ``ANSWERS.<rank>``, a line each. A worker makes a ``Run`` of its system: how it wraps the model, and how
its steps differ. What it launches is told from one clock: the flight recorder writes down every collective
with its time, or calls of the system's own functions are noted; the loop says where it is.
"""

import bisect
import contextlib
import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _dump_fr_trace_json

from tests.systems.models import build, loss_of

Case = dict[str, Any]
Answer = dict[str, Any]
_DTYPES = {
    **{"Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Double": "float64"},
    **{"Int": "int32", "Long": "int64", "Byte": "uint8"},
}


def meet() -> tuple[int, int]:
    """This rank and how many there are, in a group over gloo."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    store = dist.FileStore(sys.argv[3], world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    return rank, world_size


def answer_each(answer: Callable[[Any], Any]) -> NoReturn:
    """Write what each case comes to, in the order given, and end the process."""
    gc.freeze()
    with open(f"{sys.argv[2]}.{os.environ['RANK']}", "w") as file:
        for case in json.loads(Path(sys.argv[1]).read_text()):
            print(json.dumps(answer(case)), file=file, flush=True)
            gc.collect()  # a DDP is freed by cycle collection only, and its Reducer keeps its buckets
            dist.barrier()
    os._exit(0)  # gloo's threads may crash the interpreter's own exit


class Diary:
    """Where the loop was when, and what was launched there.

    Events are ``kind``, ``elements``, ``dtype``, ``root``, ``phase``, ``gradient`` (in whose hook), and
    ``iteration`` (from 1; 0 before the first) and ``micro_batch`` (from 1).
    """

    def __init__(self) -> None:
        self.marks: list[tuple[int, dict[str, Any]]] = []
        self.called: list[dict[str, Any]] = []
        self.at("construction", iteration=0, micro_batch=0)

    def at(self, phase: str, gradient: int | None = None, **where: int) -> None:
        """From now on the loop is in ``phase``, in the hook of ``gradient``, and ``where`` it is."""
        before = self.marks[-1][1] if self.marks else {}
        self.marks.append((time.time_ns(), before | where | {"phase": phase, "gradient": gradient}))

    def ends_backward(self, loss: Tensor) -> None:
        """Backward of ``loss`` ends in a callback ahead of those that systems queue later."""
        engine: Any = torch.autograd.Variable._execution_engine
        loss.register_hook(lambda _: engine.queue_callback(lambda: self.at("end of backward")))

    @contextlib.contextmanager
    def noting(self, *calls: tuple[Any, str, str, int, str]) -> Iterator[None]:
        """Note each call of (module, name), which is a collective of a kind; its argument at the place, or of
        the word, is all that travels."""
        with contextlib.ExitStack() as stack:
            for module, name, *how in calls:
                noted = partial(self._noted, getattr(module, name), *how)
                stack.enter_context(mock.patch.object(module, name, noted))
            yield

    def _noted(self, call: Any, kind: str, place: int, word: str, *args: Any, **more: Any) -> Any:
        whole = more[word] if word in more else args[place]
        group = dist.get_process_group_ranks(more["group"]) if "group" in more else None
        self.called.append(self._event(kind, whole.numel(), whole.dtype) | {"group": group})
        return call(*args, **more)

    def _event(self, kind: str, elements: int, dtype: object, at: int = -1) -> dict[str, Any]:
        facts = {"kind": kind, "elements": elements, "dtype": str(dtype).removeprefix("torch.")}
        return facts | {"root": 0 if kind == "broadcast" else None} | self.marks[at][1]

    def events(self, *, whole_gathers: bool) -> list[dict[str, Any]]:
        """What was called, or else what the flight recorder has; with ``whole_gathers`` an all-gather is as
        large as what is there afterwards."""
        if self.called:
            return self.called
        entries: list[dict[str, Any]] = json.loads(_dump_fr_trace_json()).get("entries", [])
        entries.sort(key=lambda entry: entry["record_id"])
        times, events = [at for at, _ in self.marks], []
        if entries and entries[0]["record_id"] and entries[0]["time_created_ns"] >= times[0]:
            raise OverflowError("the flight recorder forgot some collectives: TORCH_FR_BUFFER_SIZE")
        for entry in (one for one in entries if one["time_created_ns"] >= times[0]):
            kind = entry["profiling_name"].removeprefix("gloo:").removeprefix("sparse_")
            sizes = "output_sizes" if whole_gathers and kind == "all_gather" else "input_sizes"
            elements = sum(torch.Size(size).numel() for size in entry[sizes])
            at = bisect.bisect_right(times, entry["time_created_ns"]) - 1
            events.append(self._event(kind, elements, _DTYPES[entry["input_dtypes"][0]], at))
        return events


class Run:
    """One case on one rank; a system says how it wraps the model, and in what its steps differ.

    ``enters``: where a micro-batch begins. ``calls``: what is noted in place of the flight recorder's entries
    (``Diary.noting``). ``ready``: by iteration and micro-batch, the gradients whose hooks fired, in order.
    ``also``: further facts of the answer, as the system finds them.
    """

    iterations = 2
    enters = "forward"
    whole_gathers = True
    calls: ClassVar[tuple[Any, ...]] = ()

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case, self.rank, self.also = case, dist.get_rank(), Answer()
        self.net = build(case, self.rank)
        self.inputs = torch.Generator().manual_seed(self.rank)
        self.ready: list[list[list[int]]] = []
        self.diary = Diary()

    def wrap(self) -> Any:
        """The model, given to the system."""
        raise NotImplementedError

    def watch_hooks(self) -> None:
        """Tell the gradients as they come, of a model that is not wrapped yet."""
        for index, parameter in enumerate(self.learned()):
            parameter.register_post_accumulate_grad_hook(lambda _, index=index: self.hook_began(index))

    def micro_batches(self) -> int:
        return self.case.get("micro_batches", 1)

    def micro_batch(self, *, is_last: bool) -> None:
        """Forward and backward; all but the last under no_sync, or none if the case has it False."""
        is_synchronised = is_last or not self.case.get("no_sync", True)
        with contextlib.nullcontext() if is_synchronised else self.model.no_sync():
            loss = self.loss(self.model)
            self.diary.ends_backward(loss)
            self.diary.at("backward")
            backward = Tensor.backward

            def noted(loss: Tensor, *args: Any, **kwargs: Any) -> None:
                backward(loss, *args, **kwargs)
                self.diary.at("after backward")  # a system's own backward() goes on

            with mock.patch.object(Tensor, "backward", noted):
                self.backward(loss)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        """What follows the last micro-batch."""

    def learned(self) -> list[nn.Parameter]:
        return [one for one in self.net.parameters() if one.requires_grad]

    def loss(self, model: nn.Module) -> Tensor:
        return loss_of(model, self.net.batch(self.inputs))

    def hook_began(self, gradient: int) -> None:
        self.ready[-1][-1].append(gradient)
        self.diary.at("backward", gradient)

    def answer(self) -> Answer:
        """Train, and tell: parameters, buffers, events, ready orders, and what was raised where, if any."""
        error = None
        with self.diary.noting(*self.calls):
            try:
                self.watch_hooks()
                self.model = self.wrap()
                for iteration in range(1, self.iterations + 1):
                    self._train(iteration)
            except Exception as caught:  # noqa: BLE001 - systems refuse with whatever they have at hand
                text = f"{caught}" if str(caught) else repr(caught)
                error = {"type": type(caught).__name__, "text": text, **self.diary.marks[-1][1]}
        named = [*self.net.named_parameters()]
        facts = [self.facts(name, one) | {"trained": one.requires_grad} for name, one in named]
        return {
            "parameters": [one for one in facts if one["trained"]],
            "frozen": [one for one in facts if not one["trained"]],
            "buffers": [self.facts(name, buffer) for name, buffer in self.net.named_buffers()],
            "events": self.diary.events(whole_gathers=self.whole_gathers),
            "ready": self.ready,
            "error": error,
            **self.also,
        }

    def _train(self, iteration: int) -> None:
        self.ready.append([])
        self.net.iteration, count = iteration, self.micro_batches()
        for number in range(1, count + 1):
            self.ready[-1].append([])
            self.diary.at(self.enters, iteration=iteration, micro_batch=number)
            self.micro_batch(is_last=number == count)
        self.diary.at("step")
        self.step()

    def facts(self, name: str, tensor: Tensor) -> dict[str, Any]:
        """What is told of a tensor."""
        tables = (one for one in self.net.modules() if isinstance(one, nn.Embedding))
        return {
            "name": name,
            "numel": tensor.numel(),
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "num_bytes": tensor.numel() * tensor.element_size(),
            "sparse": any(one.sparse and one.weight is tensor for one in tables),
        }
