"""The lanes of a replay in model mode: the user's own model, batch and optimizer on this rank.

Every lane has a module of its own, which the user's factory builds anew: two DDP wrappers around one
module would both hook the same gradient accumulators, and both Reducers would fire in every backward. The
lanes' parameters share one storage and one optimizer updates it, so that all lanes train the same weights
and a lane costs the memory of its Reducer's buckets (the bytes of all gradients), of its module's
buffers, and nothing more: its gradients go when its step is over. The optimizer is the recorder's, with a
learning rate that is as good as zero.
A compiled model is compiled anew in each lane, since DDP's buckets decide how its graph is cut (A8.10).
"""

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.errors import AssignmentError, InputError, MachineError, NotModelledError
from sim.recorder.clocks import Clock, Stamp, clock_for, find_device
from sim.recorder.factory import load_factory
from sim.recorder.training_step import (
    ModelStep,
    build_step,
    check_plain_module,
    count_samples,
    dtype_name,
    without_wrapper,
)
from sim.units import format_size
from sim.validator.jobs import Candidate, ReplayJob
from sim.validator.ranks.cuda import keep_logger_from_waiting
from sim.validator.ranks.link import link_of
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.reducer import manner_of, wrap
from sim.validator.ranks.step import Lane, Recorder, common_start, run_step, sleep_until

_COMPILED = "_orig_mod."  # what torch.compile puts before a parameter's name


def model_lanes(rank: Rank) -> list[Lane]:
    """The lanes: plain and each candidate; where the job says ``probed`` also noop, and traced candidates.

    An emulated link is a communication hook of every candidate: DDP, model and optimizer are the user's, and
    only the wire is a curve.

    Raises:
        InputError: the factory's model is not that of the workload, is wrapped or sharded, or is
            another one at each call.
        MachineError: a GPU is asked for and none is here.
    """
    job: ReplayJob = rank.job
    device = find_device(job.carrier.device)
    clock = clock_for(device)
    owner = _build_step(job, device)
    parameters = _described(owner.model)
    rank.must_agree("parameters", parameters)
    gradients = None if job.workload is None else job.workload.gradients
    if gradients is not None:
        _check_parameters(parameters, [[g.name, list(g.shape), g.dtype] for g in gradients])
    rank.tell("model", about=_about(job, owner))
    _check_room(job, owner.model, device)
    link = None if job.carrier.emulated is None else link_of(job.carrier.emulated, device)
    lanes = [_lane("plain", owner, partial(run_step, owner.model, ModelWork(owner, owner, clock)), 0)]

    def add(candidate: Candidate, recorder: Recorder | None = None) -> Any:
        mine = _build_step(job, device)
        _share_parameters(mine.model, owner.model)
        _check_indices(candidate, len(_trained(mine.model)))
        model, observe = wrap(mine.model, candidate)
        keep_logger_from_waiting(model)
        if recorder is not None:
            model.register_comm_hook(None, recorder.hook)
        elif link is not None and candidate.name != "noop":
            model.register_comm_hook(None, link.hook)
        work = ModelWork(ModelStep(model, owner.batch), owner, clock)
        step = partial(run_step, model, work, recorder, manner_of(candidate))
        lanes.append(_lane(candidate.name, mine, step, len(lanes), observe, recorder is not None))
        rank.tell("built", lane=candidate.name)
        return model

    if job.probed:
        add(Candidate(name="noop")).register_comm_hook(None, noop_hook)
    for candidate in job.candidates:
        add(candidate)
        if job.probed and candidate.is_traced:
            stamps = Recorder(clock.stamp, rank.world_size)
            add(candidate, stamps if link is None else Recorder(clock.stamp, launch=link.launch))
    return lanes


def _lane(
    name: str,
    built: ModelStep,
    step: Callable[[], dict[str, Any]],
    number: int,
    observe: Callable[[], list[list[int]]] | None = None,
    is_traced: bool = False,
) -> Lane:
    """A lane; with a compiled model one that compiles graphs of its own in its first step."""
    if is_compiled(built.model):
        give_own_code(built.model, number)
        step = _compiled_first(step, name)
    return Lane(name=name, step=step, observe=observe, is_traced=is_traced)


def _compiled_first(step: Callable[[], dict[str, Any]], name: str) -> Callable[[], dict[str, Any]]:
    is_checked = False

    def checked() -> dict[str, Any]:
        nonlocal is_checked
        before = graphs_compiled()
        row = step()
        if not is_checked:
            check_compiled_anew(before, name)
            is_checked = True
        return row

    return checked


class ModelWork:
    """A real training step of ``lane``: every micro-batch is the same batch.

    Nothing inside it waits for a GPU: stamps are read when the step is over. The end of backward is taken in
    a callback that autograd runs after all other nodes and before DDP waits for its buckets (A3.9). The
    gradients are handed to ``owner``, whose optimizer updates the storage that all lanes share.
    """

    def __init__(self, lane: ModelStep, owner: ModelStep, clock: Clock) -> None:
        self.clock = clock
        self._lane, self._owner = lane, owner
        self._over: Stamp = None

    def parameters(self) -> Iterable[nn.Parameter]:
        """The lane's."""
        return self._lane.model.parameters()

    def start(self) -> Stamp:
        """Here, at the common start."""
        self.clock.settle()
        sleep_until(common_start())
        return self.clock.stamp()

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

    def end_backward(self) -> Stamp:
        """Here."""
        return self.clock.stamp()

    def finish(self, synchronised: Stamp) -> Stamp:
        """The owner's optimizer steps on the lane's gradients."""
        if self._lane is not self._owner:
            for theirs, mine in zip(self._owner.model.parameters(), self.parameters(), strict=True):
                theirs.grad = mine.grad
        self._owner.update()
        return self.clock.stamp()

    def noted(self) -> dict[str, Any]:
        """The end of backward; the owner lets go of the lane's gradients."""
        self._owner.model.zero_grad(set_to_none=True)
        return {"backward_end": self._over}


def _build_step(job: ReplayJob, device: torch.device) -> ModelStep:
    """The factory's model, from the same seed on every rank and for every lane."""
    torch.manual_seed(job.seed)
    random.seed(job.seed)
    asked = job.model
    assert asked is not None
    made = load_factory(asked.factory, arguments=asked.arguments)
    step, model = build_step(made, device=device, dtype=asked.dtype)
    if model is None or not isinstance(step, ModelStep):
        raise InputError(
            f"model: {asked.factory} returned a training step of its own; model mode wraps the model in DDP "
            f"itself: give a factory that returns (model, batch)"
        )
    check_plain_module(model)
    return step


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    named = model.named_parameters()
    return [(name.replace(_COMPILED, ""), tensor) for name, tensor in named if tensor.requires_grad]


def _described(model: nn.Module) -> list[list[Any]]:
    """Name, shape and dtype of every parameter that is trained."""
    return [[name, list(tensor.shape), dtype_name(tensor)] for name, tensor in _trained(model)]


def _check_parameters(real: Sequence[Sequence[Any]], recorded: Sequence[Sequence[Any]]) -> None:
    """Raise ``InputError`` unless names, shapes and dtypes are those of the workload.

    A module around all of the model, such as one that adds the loss, is no other model.
    """
    if len(real) != len(recorded):
        raise InputError(f"model: it has {len(real)} parameters to train, the workload {len(recorded)}")
    there = [[name.replace(_COMPILED, ""), *facts] for name, *facts in recorded]
    unlike = [one != two for one, two in zip(without_wrapper(real), without_wrapper(there), strict=True)]
    for index, (mine, (name, shape, dtype)) in enumerate(zip(real, there, strict=True)):
        if unlike[index]:
            raise InputError(
                f"model: parameter {index} is {mine[0]} {mine[1]} of {mine[2]}, in the workload "
                f"{name} {shape} of {dtype}; record this model, or give the arguments it was recorded with"
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
    pairs = list(zip(model.parameters(), owner.parameters(), strict=False))
    same = len(pairs) == len(list(model.parameters())) == len(list(owner.parameters()))
    if not same or any(mine.shape != theirs.shape for mine, theirs in pairs):
        raise InputError("model: the factory built another model at its second call; it must be the same")
    for mine, theirs in pairs:
        mine.data = theirs.data


def _check_room(job: ReplayJob, model: nn.Module, device: torch.device) -> None:
    """Raise ``MachineError`` where the buckets of all lanes and one set of gradients do not fit on the GPU.

    Activations come to it, which are not known before the first step.
    """
    if device.type != "cuda":
        return
    lanes = job.lanes - 1
    copy = sum(tensor.numel() * tensor.element_size() for _, tensor in _trained(model))
    free, _ = torch.cuda.mem_get_info(device)
    if (lanes + 1) * copy > free:
        fewer = "--steps-only halves the lanes, and " if job.probed else ""
        raise MachineError(
            f"memory: {lanes} lanes hold the buckets of a DDP each, {format_size(copy)}, beside one set of "
            f"gradients, and {format_size(free)} are free on {device}; {fewer}fewer candidates take less"
        )


def _about(job: ReplayJob, owner: ModelStep) -> dict[str, Any]:
    """What is written down about the model."""
    asked, parameters = job.model, [tensor for _, tensor in _trained(owner.model)]
    assert asked is not None
    return {
        "factory": asked.factory,
        "arguments": asked.arguments,
        "module": type(owner.model).__name__,
        "compiled": is_compiled(owner.model),
        "parameters": sum(tensor.numel() for tensor in parameters),
        "dtype": asked.dtype or "as built",
        "device": job.carrier.device,
        "samples": count_samples(owner.batch),
        "threads": torch.get_num_threads(),
    }


def is_compiled(model: nn.Module) -> bool:
    """Whether ``model`` or a part of it went through torch.compile."""
    dynamo: Any = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is None:
        return False
    return any(
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


def check_compiled_anew(before: int, lane: str) -> None:
    """Raise ``NotModelledError`` unless graphs were compiled since ``before``."""
    if graphs_compiled() == before:
        raise NotModelledError(
            f"model: torch.compile gave lane {lane!r} the graph of another lane; replay the model without "
            f"torch.compile"
        )
