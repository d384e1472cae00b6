"""What is trained and where: a step of ``(model, batch)``; facts of modules and machines."""

import platform
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._pytree import tree_map_only

from sim.errors import InputError
from sim.machine import cpu_model
from sim.nouns.checks import one_of
from sim.nouns.workload import Buffer
from sim.recorder.models import check_pair

DTYPES = ("float32", "bfloat16", "float16", "float64")
_WRAPPERS = (DistributedDataParallel, DataParallel, FullyShardedDataParallel, FSDPModule)

# As good as zero, so that the user's weights and loss stay what they were. (SparseAdam refuses 0.)
_LEARNING_RATE = 1e-12


class ModelStep:
    """zero_grad, forward, backward, optimizer, over one model and one batch.

    ``model(*batch)`` for a tuple or list, ``model(**batch)`` for a mapping, ``model(batch)`` for a
    tensor. The optimizer is AdamW, with SparseAdam for parameters whose gradient is sparse; it is
    made after the first backward, which tells them apart.
    """

    def __init__(self, model: nn.Module, batch: object) -> None:
        if not isinstance(batch, (tuple, list, Mapping, Tensor)):
            kind = type(batch).__name__
            raise InputError(f"batch: a {kind} is not legal; give a tuple or list, a dict or a tensor")
        self.model, self.batch = model, batch
        self.last_loss: Tensor | None = None
        self._optimizers: list[torch.optim.Optimizer] = []

    def __call__(self) -> None:
        """Run one step."""
        self.model.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self.last_loss = loss.detach()
        self.update()

    def loss(self) -> Tensor:
        """Run forward; the scalar loss."""
        if isinstance(self.batch, Mapping):
            return find_loss(self.model(**self.batch))
        return find_loss(
            self.model(self.batch) if isinstance(self.batch, Tensor) else self.model(*self.batch)
        )

    def update(self) -> None:
        """Let the optimizer apply the gradients that the parameters hold."""
        if not self._optimizers:
            tensors = [tensor for _, tensor in trained(self.model)]
            sparse = [one for one in tensors if one.grad is not None and one.grad.is_sparse]
            dense = [one for one in tensors if one.grad is None or not one.grad.is_sparse]
            for kind, part in ((torch.optim.AdamW, dense), (torch.optim.SparseAdam, sparse)):
                self._optimizers += [kind(part, lr=_LEARNING_RATE)] if part else []
        for optimizer in self._optimizers:
            optimizer.step()


def build_step(given: Any, *, device: torch.device, dtype: str | None) -> ModelStep:
    """The step of ``(model, batch)``, in training mode; both are moved to ``device`` and cast to ``dtype``
    (module and floating inputs; None leaves them).

    Raises:
        InputError: an illegal dtype or batch, a model that is wrapped or sharded, or no pair.
    """
    if dtype is not None:
        one_of("dtype", dtype, DTYPES)
    model, batch = check_pair(given, "step")
    check_plain_module(model)
    number = None if dtype is None else getattr(torch, dtype)

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(device=device, dtype=number if tensor.is_floating_point() else None)

    batch = tree_map_only(Tensor, move, dict(batch) if isinstance(batch, Mapping) else batch)
    return ModelStep(model.to(device=device, dtype=number).train(), batch)


def find_loss(output: Any) -> Tensor:
    """The scalar loss in a model's output. Raises ``InputError`` where nothing there is one, and trains."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise InputError(
            f"model: its output, a {type(output).__name__}{shape}, is no scalar loss, and has none as .loss "
            f"or ['loss']; wrap it in a module that returns the loss; Your own job, in the manual, shows how"
        )
    if not loss.requires_grad:
        raise InputError("model: its loss does not require grad; some parameter must, and not under no_grad")
    return loss


def check_plain_module(model: nn.Module) -> None:
    """Raise ``InputError`` where ``model``, or a part of it, is wrapped or sharded: DDP, FSDP, DTensor."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is not legal; give a torch.nn.Module")
    for name, module in model.named_modules():
        if kind := next((one.__name__ for one in _WRAPPERS if isinstance(module, one)), None):
            where = f"model: module {name!r}" if name else "model:"
            raise InputError(f"{where} is wrapped or sharded by {kind} already; give the plain module")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise InputError(f"model: parameter {name!r} is a DTensor; give a module with plain parameters")


def trained(model: nn.Module, ignored: Collection[str] = ()) -> list[tuple[str, nn.Parameter]]:
    """``model.parameters()`` that require grad, de-duplicated, by first names without torch.compile's."""
    return [
        (name.replace("_orig_mod.", ""), tensor)
        for name, tensor in model.named_parameters()
        if tensor.requires_grad and name not in ignored
    ]


def facts(name: str, tensor: Tensor) -> dict[str, Any]:
    """What is told of a parameter, by the names that nouns have for it."""
    return {
        "name": name,
        "shape": tuple(tensor.shape),
        "dtype": dtype_name(tensor),
        "num_bytes": tensor.nbytes,
        "device": str(tensor.device),
    }


def sparse_tables(model: nn.Module) -> list[nn.Embedding | nn.EmbeddingBag]:
    """Embeddings whose gradients are sparse."""
    tables = (one for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag))
    return [table for table in tables if table.sparse]


def dtype_name(tensor: Tensor) -> str:
    """``"float32"``, without torch's name before it."""
    return str(tensor.dtype).removeprefix("torch.")


def buffers_in(tensors: Iterable[Tensor]) -> tuple[Buffer, ...]:
    """Bytes of tensors, by dtype in the order of their first."""
    totals: dict[str, int] = {}
    for tensor in tensors:
        totals[dtype_name(tensor)] = totals.get(dtype_name(tensor), 0) + tensor.nbytes
    return tuple(Buffer(dtype=dtype, num_bytes=size) for dtype, size in totals.items())


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists and mappings, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


def without_wrapper(parameters: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows of a name and facts, named within the module that holds all: a wrapper may add a loss to it."""
    paths = [str(name).split(".") for name, *_ in parameters]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    return [[path[shared:], *row[1:]] for path, row in zip(paths, parameters, strict=True)]


def surroundings(device: torch.device) -> dict[str, Any]:
    """Date, versions and hardware, for a Workload's provenance."""
    facts: dict[str, Any] = {
        "tool_version": next((one.version for one in distributions(name="bucketsim")), None),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "device": str(device),
    }
    if device.type == "cuda":
        facts["device_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
    return facts
