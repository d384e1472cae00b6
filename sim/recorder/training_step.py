"""A training step of ``(model, batch)``, and its Workload; what is told of modules and machines.

``record`` runs the step some twenty times and writes down what backward does, and when. Steps in which every
gradient is watched (when is it ready?) alternate with steps in which a few are, those that come last (how
long do forward, backward and optimizer take?), so that both see the same machine. The cost of our own hooks
is then taken out: ready times are scaled by plain backward over watched backward.
"""

import platform
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._pytree import tree_map_only

from sim.errors import InputError, MachineError, NotModelledError, SimError
from sim.machine import cpu_model
from sim.nouns.checks import Legal
from sim.nouns.recording import RecordedStep
from sim.nouns.workload import Buffer, Gradient, Workload
from sim.recorder.clocks import Clock, clock_for
from sim.recorder.models import Pair, describe
from sim.recorder.watch import StepWatch
from sim.recorder.watched_workload import workload_of_backwards
from sim.units import median_ns

DTYPES = ("float32", "bfloat16", "float16", "float64")
_SHARDED = (DistributedDataParallel, DataParallel, FullyShardedDataParallel, FSDPModule, DTensor)

# As good as zero, so that the user's weights and loss stay what they were. (SparseAdam refuses 0.)
_LEARNING_RATE = 1e-12
_FEW = 4  # gradients that tell the end of backward: a step may skip a layer
_INDEX_BYTES = 8  # torch's sparse tensors have int64 indices


class ModelStep:
    """zero_grad, forward, backward, optimizer, over one model and one batch.

    ``model(*batch)`` for a tuple or list, ``model(**batch)`` for a mapping, ``model(batch)`` for a
    tensor. The optimizer is AdamW, with SparseAdam for parameters whose gradient is sparse; it is
    made after the first backward, which tells them apart.
    """

    def __init__(self, model: nn.Module, batch: Any) -> None:
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
        return find_loss(self.model(*([self.batch] if isinstance(self.batch, Tensor) else self.batch)))

    def update(self) -> None:
        """Let the optimizer apply the gradients that the parameters hold."""
        if not self._optimizers:
            parts: dict[Any, list[Tensor]] = {torch.optim.AdamW: [], torch.optim.SparseAdam: []}
            for _, tensor in trained(self.model):
                is_sparse = tensor.grad is not None and tensor.grad.is_sparse
                parts[torch.optim.SparseAdam if is_sparse else torch.optim.AdamW].append(tensor)
            self._optimizers = [kind(part, lr=_LEARNING_RATE) for kind, part in parts.items() if part]
        for optimizer in self._optimizers:
            optimizer.step()


def build_step(given: Any, *, device: torch.device, dtype: str | None) -> ModelStep:
    """The step of ``(model, batch)``, in training mode; both are moved to ``device`` and cast to ``dtype``
    (module and floating inputs; None leaves them).

    Raises:
        InputError: an illegal dtype, a model that is wrapped or sharded, or no pair.
    """
    if dtype is not None:
        Legal(words=DTYPES).take("dtype", dtype)
    if not (isinstance(given, (tuple, list)) and len(given) == 2 and isinstance(given[0], nn.Module)):
        kind = type(given).__name__
        raise InputError(f"factory: a {kind} is not legal; return (model, batch); sim.record records a loop")
    model, batch = given
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


def record(
    pair: Pair,
    *,
    name: str | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    warmup: int = 3,
    repeats: int = 10,
    progress: Callable[[int, int], None] = lambda done, of: None,
    factory_spec: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Workload:
    """Record a training step of ``(model, batch)`` as a Workload, called after the module's class by default.

    Args:
        pair: what ``load_factory`` returns; the model is put into training mode, and trained by AdamW with a
            learning rate that is as good as zero.
        device: ``cpu`` or ``cuda``, where both go; on a GPU all times are those of its stream.
        dtype: for the module and its floating inputs; None leaves them.
        warmup: iterations that are run first and dropped, at least 1.
        repeats: iterations with hooks, and as many without, at least 1.
        progress: called with (iterations done, iterations in all).
        factory_spec: ``MODULE:FACTORY``, for the provenance; ``arguments`` are those of the factory.

    Returns:
        A Workload of medians, in ns; ``samples`` are the ready times of each hooked iteration, corrected by
        the same factor. Gradients that no backward reaches have ``ready_ns`` None.

    Raises:
        InputError: an illegal argument, or a step that cannot be recorded (it raises, has no
            backward or several, its loss is not finite).
        MachineError: a GPU that is not here.
    """
    Legal(least=1).take("warmup", warmup)
    Legal(least=1).take("repeats", repeats)
    place = find_device(device)
    step, clock = build_step(pair, device=place, dtype=dtype), clock_for(place)
    timed: dict[bool, list[RecordedStep]] = {True: [], False: []}  # by whether all gradients were watched
    total = warmup + 2 * repeats

    progress(0, total)
    _, fired = measure(step, step.model, Clock())
    if step.last_loss is not None and not bool(torch.isfinite(step.last_loss)):
        loss = step.last_loss.item()
        raise InputError(f"step: the loss is {loss}; its times would mislead; give a finite loss")
    for done in range(1, total):
        progress(done, total)
        # plain watched watched plain ...: a drifting machine favours neither
        is_watched = (done - warmup) % 4 in (1, 2)
        times, _ = measure(step, step.model, clock, hooked=None if is_watched else fired[-_FEW:])
        if done >= warmup:
            timed[is_watched].append(times)
    progress(total, total)

    provenance = {
        "source": "bucketsim record",
        **surroundings(place),
        "threads": torch.get_num_threads(),
        "warmup": warmup,
        "repeats": repeats,
        "dtype": dtype or "as built",
        "step": "built from (model, batch): train(), AdamW (SparseAdam for sparse gradients), lr 1e-12",
        "factory": factory_spec,
        "arguments": dict(arguments or {}),
    }
    return workload_of_steps(step.model, timed[False], timed[True], fired, name=name, provenance=provenance)


def find_device(name: str) -> torch.device:
    """``cpu``, or with ``cuda`` this process's GPU. Raises ``MachineError`` where there is none."""
    Legal(words=("cpu", "cuda")).take("device", name)
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise MachineError(f"device: {name!r} is not here; torch {torch.__version__} sees no GPUs")
    return torch.device("cuda", torch.cuda.current_device())


def measure(
    step: Callable[[], object], model: nn.Module, clock: Clock, *, hooked: Sequence[int] | None = None
) -> tuple[RecordedStep, tuple[int, ...]]:
    """Run ``step`` once, which leaves its gradients on ``model``: its times on ``clock``, and the order in
    which gradients came. Only those ``hooked`` are watched, None: all. Raises ``InputError`` where nothing
    requires grad, or the step raised or did not run one forward and one backward of ``model``.
    """
    tensors = [tensor for _, tensor in trained(model)]
    if not tensors:
        raise InputError(f"step: {type(model).__name__} has no parameter that requires grad")
    watch = StepWatch(model, tensors, clock, hooked=hooked)
    clock.settle()
    watch.open()
    try:
        step()
        watch.step()
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"step: it raised {describe(error)}") from error
    finally:
        watch.close()
    clock.settle()
    count = sum(len(stamps.backwards) for stamps in watch.steps)
    if count != 1:
        raise InputError(f"step: backward of the module ran {count} times; it has to run once in each step")
    return watch.steps[0].recorded(clock, len(tensors)), watch.steps[0].fired()


def workload_of_steps(
    model: nn.Module,
    plain: Sequence[RecordedStep],
    watched: Sequence[RecordedStep],
    fired: Sequence[int],
    *,
    name: str | None,
    provenance: Mapping[str, Any],
) -> Workload:
    """A Workload of ``model``, which still has the gradients of its last step: medians of ``plain`` steps,
    and ready times of those that were ``watched``. ``fired`` is the order in which gradients came. Raises
    ``InputError`` where forward or backward took no time.
    """
    named = trained(model)
    wires = [_sparse_bytes(tensor.grad) for _, tensor in named]
    times = {
        "plain_backward_ns": [one.backwards[0].backward_ns for one in plain],
        "hooked_backward_ns": [one.backwards[0].backward_ns for one in watched],
        "forward_ns": [one.backwards[0].forward_ns for one in plain],
        "step_ns": [one.step_ns for one in plain],
    }
    typical = {what: median_ns(each) for what, each in times.items()}
    for what, value in typical.items():
        if value <= 0:
            raise InputError(f"step: its {what} is {value}; a step must take measurable time")
    return workload_of_backwards(
        name or type(getattr(model, "_orig_mod", model)).__name__,
        [
            Gradient(index=k, **facts(*named[k]), ready_ns=None, sparse=wire is not None, wire_bytes=wire)
            for k, wire in enumerate(wires)
        ],
        [one.backwards[0] for one in watched],
        pace=typical["hooked_backward_ns"] / typical["plain_backward_ns"],
        fired=fired,
        forward_ns=typical["forward_ns"],
        optimizer_ns=median_ns([one.optimizer_ns or 0 for one in plain]),
        buffers=buffers_in(model.buffers()),
        provenance={
            **provenance,
            "module": type(model).__name__,
            "parameters": sum(tensor.numel() for _, tensor in named),
            "tensors": len(named),
            "backward_starts": "at the end of forward; a loss computed outside of the module is in it",
            **{
                what: {"min": min(each), "median": typical[what], "max": max(each)}
                for what, each in times.items()
            },
        },
    )


def _sparse_bytes(gradient: Tensor | None) -> int | None:
    """What a sparse gradient would send, its coalesced indices and values; None for a dense one."""
    if gradient is None or not gradient.is_sparse:
        return None
    whole = gradient.detach().coalesce()
    return int(whole.indices().numel() * _INDEX_BYTES + whole.values().nbytes)


# ---- what is told of modules and machines


def ddp_in(module: object) -> DistributedDataParallel:
    """The DistributedDataParallel in ``module``, which may be ``torch.compile``'s or Fabric's.

    Raises:
        InputError: no module. NotModelledError: one that has no buckets in one Reducer, on one device.
    """
    inner: Any = module
    for within in ("_forward_module", "_orig_mod"):  # Fabric's, then torch.compile's
        inner = getattr(inner, within, inner)
    kind = type(inner).__name__
    if not isinstance(inner, nn.Module):
        raise InputError(f"ddp: a {kind} is not legal; give a DistributedDataParallel")
    if not isinstance(inner, DistributedDataParallel):
        raise NotModelledError(f"ddp: a {kind} has no buckets of DistributedDataParallel")
    if inner.is_multi_device_module or inner.device.type not in ("cpu", "cuda"):
        raise NotModelledError(f"device: {inner.device}: the model must lie on the CPU or on one GPU")
    if inner._use_python_reducer or inner._delay_all_reduce_all_params:
        raise NotModelledError("optimize_ddp: 'python_reducer', or a delay of all parameters, has no Reducer")
    return inner


def check_plain_module(model: nn.Module) -> None:
    """Raise ``InputError`` where ``model``, or a part of it, is wrapped or sharded: DDP, FSDP, DTensor."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is not legal; give a torch.nn.Module")
    for name, part in (*model.named_modules(), *model.named_parameters()):
        if kind := next((one.__name__ for one in _SHARDED if isinstance(part, one)), None):
            where = f"{name!r} in it " if name else ""
            raise InputError(f"model: {where}is wrapped or sharded by {kind} already; give the plain module")


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


def surroundings(device: torch.device) -> dict[str, Any]:
    """Date, versions and hardware, for a Workload's provenance."""
    return {
        "tool_version": next((one.version for one in distributions(name="bucketsim")), None),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "device": str(device),
        **({"device_name": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}),
    }
