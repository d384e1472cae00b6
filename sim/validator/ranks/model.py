"""The lanes of a replay in model mode: the user's own model, batch and optimizer on this rank.

Every lane has a module of its own, which the user's factory builds anew: two DDP wrappers around one
module would both hook the same gradient accumulators, and both Reducers would fire in every backward. The
lanes' parameters share one storage and one optimizer updates it, so that all lanes train the same weights
and a lane costs the memory of its Reducer's buckets (the bytes of all gradients), of its module's
buffers, and nothing more: its gradients go when its step is over. The optimizer is the recorder's, with a
learning rate that is as good as zero.
A compiled model is compiled anew in each lane, since DDP's buckets decide how its graph is cut (A8.10).
"""

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn

from sim.errors import AssignmentError, InputError, NotModelledError
from sim.recorder.clocks import Clock, Stamp, clock_for
from sim.recorder.models import load_factory
from sim.recorder.training_step import ModelStep, build_step, dtype_name, trained
from sim.validator.jobs import Candidate, ReplayJob
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.reducer import candidate_lanes, without_wrapper
from sim.validator.ranks.step import Lane, Work, run_step


def model_lanes(rank: Rank) -> list[Lane]:
    """The lanes: plain and each candidate; where the job says ``probed`` also noop, and traced candidates.

    Over an emulated link DDP, model and optimizer are the user's, and only the wire is a curve.

    Raises:
        InputError: the factory's model is not that of the workload, is wrapped or sharded, or is
            another one at each call.
    """
    job: ReplayJob = rank.job
    owner = _build_step(job, rank.device)
    parameters = _described(owner.model)
    rank.must_agree("parameters", parameters)
    if job.workload is not None:
        recorded = [[g.name, list(g.shape), g.dtype] for g in job.workload.gradients]
        _check_parameters(parameters, recorded)
    for candidate in job.candidates:
        _check_indices(candidate, len(parameters))
    rank.tell("model", about=_about(job, owner))
    count, clock = itertools.count(1), clock_for(rank.device)
    compiles = is_compiled(owner.model)

    def make() -> tuple[nn.Module, Callable[[Any], Work]]:
        mine = _build_step(job, rank.device)
        _share_parameters(mine.model, owner.model)
        if compiles:
            give_own_code(mine.model, next(count))
        return mine.model, lambda model: ModelWork(ModelStep(model, owner.batch), owner, clock, compiles)

    if compiles:
        give_own_code(owner.model, 0)
    plain = partial(run_step, owner.model, ModelWork(owner, owner, clock, compiles))
    noop = Candidate(name="noop") if job.probed else None
    others = candidate_lanes(rank, make, noop=noop, divisor=rank.world_size)
    return [Lane(name="plain", step=plain), *others]


class ModelWork(Work):
    """A real training step of ``lane``: every micro-batch is the same batch.

    Nothing inside it waits for a GPU: stamps are read when the step is over. The end of backward is taken in
    a callback that autograd runs after all other nodes and before DDP waits for its buckets (A3.9). The
    gradients are handed to ``owner``, whose optimizer updates the storage that all lanes share. One that
    ``compiles`` has to compile graphs of its own in its first step.
    """

    def __init__(self, lane: ModelStep, owner: ModelStep, clock: Clock, compiles: bool) -> None:
        self.clock, self._lane, self._owner, self._compiles = clock, lane, owner, compiles
        self._over: Stamp = None
        self._graphs = 0

    def parameters(self) -> Iterable[nn.Parameter]:
        """The lane's."""
        return self._lane.model.parameters()

    def start(self) -> Stamp:
        """Here, at the common start."""
        self._graphs = graphs_compiled()
        return super().start()

    def loss(self, model: Any) -> torch.Tensor:
        """The lane's."""
        return self._lane.loss()

    def begin_backward(self, loss: torch.Tensor, *, is_last: bool, recorded: bool) -> Stamp:
        """The loss has its gradient first, so this callback is queued, and runs, ahead of DDP's."""
        if is_last:
            loss.register_hook(self._await_end)  # type: ignore[no-untyped-call]
        return self.clock.stamp()

    def _await_end(self, _: torch.Tensor) -> None:
        def over() -> None:
            self._over = self.clock.stamp()

        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(over)

    def finish(self, synchronised: Stamp) -> Stamp:
        """The owner's optimizer steps on the lane's gradients."""
        for theirs, mine in zip(self._owner.model.parameters(), self.parameters(), strict=True):
            theirs.grad = mine.grad
        self._owner.update()
        return self.clock.stamp()

    def noted(self) -> dict[str, Any]:
        """The end of backward; the owner lets go of the lane's gradients."""
        self._owner.model.zero_grad(set_to_none=True)
        if self._compiles and graphs_compiled() == self._graphs:
            raise NotModelledError(
                "model: torch.compile gave one lane the graph of another; replay the model without "
                "torch.compile"
            )
        self._compiles = False
        return {"backward_end": self._over}


def _build_step(job: ReplayJob, device: torch.device) -> ModelStep:
    """The factory's model, from the same seed on every rank and for every lane."""
    torch.manual_seed(job.seed)
    random.seed(job.seed)
    asked = job.model
    assert asked is not None
    made = load_factory(asked.factory, arguments=asked.arguments)
    return build_step(made, device=device, dtype=asked.dtype)


def _described(model: nn.Module) -> list[list[Any]]:
    """Name, shape and dtype of every parameter that is trained."""
    return [[name, list(tensor.shape), dtype_name(tensor)] for name, tensor in trained(model)]


def _check_parameters(real: Sequence[Sequence[Any]], recorded: Sequence[Sequence[Any]]) -> None:
    """Raise ``InputError`` unless names, shapes and dtypes are those of the workload.

    A module around all of the model, such as one that adds the loss, is no other model.
    """
    if len(real) != len(recorded):
        raise InputError(f"model: it has {len(real)} parameters to train, the workload {len(recorded)}")
    inner = zip(without_wrapper(real), without_wrapper(recorded), strict=True)
    for index, (mine, theirs) in enumerate(inner):
        if mine != theirs:
            (name, shape, dtype), (known, *facts) = real[index], recorded[index]
            raise InputError(
                f"model: parameter {index} is {name} {shape} of {dtype}, in the workload {known} {facts[0]} "
                f"of {facts[1]}; record this model, or give the arguments it was recorded with"
            )


def _check_indices(candidate: Candidate, count: int) -> None:
    """Raise ``AssignmentError`` unless injected buckets hold every parameter of the model once."""
    if candidate.assignment is None or not candidate.is_injected:
        return
    if sorted(i for bucket in candidate.assignment.bucket_indices for i in bucket) != list(range(count)):
        raise AssignmentError(
            f"candidate {candidate.name!r}: its buckets are not those of this model, which trains "
            f"{count} parameters"
        )


def _share_parameters(model: nn.Module, owner: nn.Module) -> None:
    """Let the parameters of ``model`` use the storage of ``owner``'s."""
    mine, theirs = list(model.parameters()), list(owner.parameters())
    if [one.shape for one in mine] != [one.shape for one in theirs]:
        raise InputError("model: the factory built another model at its second call; it must be the same")
    for one, other in zip(mine, theirs, strict=True):
        one.data = other.data


def _about(job: ReplayJob, owner: ModelStep) -> dict[str, Any]:
    """What is written down about the model."""
    asked = job.model
    assert asked is not None
    return {
        "factory": asked.factory,
        "arguments": asked.arguments,
        "module": type(owner.model).__name__,
        "compiled": is_compiled(owner.model),
        "parameters": sum(tensor.numel() for _, tensor in trained(owner.model)),
        "dtype": asked.dtype or "as built",
        "device": job.carrier.device,
        "threads": torch.get_num_threads(),
    }


def is_compiled(model: nn.Module) -> bool:
    """Whether ``model`` or a part of it went through torch.compile."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and any(
        isinstance(module, dynamo.OptimizedModule) or module._compiled_call_impl is not None
        for module in model.modules()
    )


def give_own_code(model: nn.Module, number: int) -> None:
    """Let every module of the user's own classes run a copy of its ``forward``; ``number`` is the lane's."""
    classes: dict[type[nn.Module], type[nn.Module]] = {}
    for module in model.modules():
        kind = type(module)
        if kind.__module__.partition(".")[0] == "torch" or not isinstance(kind.forward, FunctionType):
            continue
        if kind not in classes:
            classes[kind] = type(kind.__name__, (kind,), {"forward": _copied(kind.forward, number)})
        module.__class__ = classes[kind]


def _copied(function: FunctionType, number: int) -> FunctionType:
    code = function.__code__.replace(co_name=f"{function.__code__.co_name}_{number}")
    copy = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def graphs_compiled() -> int:
    """How many graphs Dynamo has captured in this process."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
