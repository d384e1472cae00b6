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
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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
from sim.validator.ranks.pacing.cuda_pacing import keep_logger_from_waiting
from sim.validator.ranks.pacing.emulated_link import link_of
from sim.validator.ranks.pacing.paced_module import sleep_until
from sim.validator.ranks.pacing.stepping import (
    PLAIN,
    Lane,
    Manner,
    Recorder,
    clear_gradients,
    common_start,
    drop_gradients,
)
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.wrapping.wrap import manner_of, stock_ddp, wrap

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
    job = rank.job
    device = find_device(job["device"])
    clock = clock_for(device)
    owner = _build_step(job, device)
    parameters = _described(owner.model)
    rank.must_agree("parameters", parameters)
    _check_parameters(parameters, job["parameters"])
    rank.tell("model", about=_about(job, owner))
    _check_room(job, owner.model, device)
    link = None if job["link"] is None else link_of(job["link"], device)
    lanes = [_lane("plain", owner, partial(run_model_step, owner, owner, clock), 0)]

    def add(name: str, candidate: dict[str, Any], recorder: Recorder | None) -> Any:
        mine = _build_step(job, device)
        _share_parameters(mine.model, owner.model)
        _check_indices(name, candidate["bucket_indices"], len(_trained(mine.model)))
        wrapped = wrap(mine.model, candidate)
        keep_logger_from_waiting(wrapped.model)
        if recorder is not None:
            wrapped.model.register_comm_hook(None, recorder.hook)
        elif link is not None and name != "noop":
            wrapped.model.register_comm_hook(None, link.hook)
        lane = ModelStep(wrapped.model, owner.batch)
        step = partial(run_model_step, lane, owner, clock, recorder, manner_of(candidate))
        lanes.append(_lane(name, mine, step, len(lanes), wrapped.observe, recorder is not None))
        rank.tell("built", lane=name)
        return wrapped.model

    def recorder() -> Recorder:
        if link is None:
            return Recorder(clock.stamp, rank.world_size)
        return Recorder(clock.stamp, launch=link.launch)

    if job["probed"]:
        add("noop", stock_ddp("noop"), None).register_comm_hook(None, noop_hook)
    for candidate in job["candidates"]:
        add(candidate["name"], candidate, None)
        if job["probed"] and candidate["traced"]:
            add(candidate["name"], candidate, recorder())
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


def run_model_step(
    lane: ModelStep,
    owner: ModelStep,
    clock: Clock,
    recorder: Recorder | None = None,
    manner: Manner = PLAIN,
) -> dict[str, Any]:
    """One real training step of ``lane`` from a common start; times in ns.

    Gradients are cleared before it, as ``manner`` says; every micro-batch is the same batch. Nothing inside
    it waits for a GPU: stamps are read when the step is over. ``backward_end`` is taken in a callback that
    autograd runs after all other nodes and before DDP waits for its buckets (A3.9). The gradients are handed
    to ``owner``, whose optimizer updates the storage that all lanes share.

    Returns:
        ``step`` (from the common start), ``backward_end`` and ``sync_end`` (gradients available),
        both from the start of the last micro-batch's backward, and with a recorder ``buckets``: [ready,
        launch, end] each.
    """
    clear_gradients(lane.model, manner.set_to_none)
    over: list[Stamp] = []
    if recorder is not None:
        recorder.rows.clear()
    clock.settle()
    sleep_until(common_start())
    start = clock.stamp()
    engine: Any = torch.autograd.Variable._execution_engine
    model: Any = lane.model

    def begin(_: torch.Tensor) -> None:
        """The loss has its gradient first, so this callback is queued, and runs, ahead of DDP's."""
        engine.queue_callback(lambda: over.append(clock.stamp()))

    with manner.surroundings():
        for left in reversed(range(manner.accumulation_steps)):
            with model.no_sync() if left else nullcontext():
                loss = lane.loss()
                if not left:
                    loss.register_hook(begin)  # type: ignore[no-untyped-call]
                backward = clock.stamp()
                loss.backward()  # type: ignore[no-untyped-call]
    synchronised = clock.stamp()
    if lane is not owner:
        for theirs, mine in zip(owner.model.parameters(), lane.model.parameters(), strict=True):
            theirs.grad = mine.grad
    owner.update()
    end = clock.stamp()
    clock.settle()
    owner.model.zero_grad(set_to_none=True)
    drop_gradients(lane.model, lane.model, manner.set_to_none)
    row: dict[str, Any] = {
        "step": clock.between_ns(start, end),
        "backward_end": clock.between_ns(backward, over[0]),
        "sync_end": clock.between_ns(backward, synchronised),
    }
    if recorder is not None:
        row["buckets"] = recorder.by_bucket(partial(clock.between_ns, backward))
    return row


def _build_step(job: dict[str, Any], device: torch.device) -> ModelStep:
    """The factory's model, from the same seed on every rank and for every lane."""
    torch.manual_seed(job["seed"])
    random.seed(job["seed"])
    step, model = build_step(
        load_factory(job["factory"], arguments=job["arguments"]), device=device, dtype=job["dtype"]
    )
    if model is None or not isinstance(step, ModelStep):
        raise InputError(
            f"model: {job['factory']} returned a training step of its own; model mode wraps the model in DDP "
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


def _check_parameters(real: Sequence[Sequence[Any]], recorded: Sequence[Sequence[Any]] | None) -> None:
    """Raise ``InputError`` unless names, shapes and dtypes are those of the workload; None: unknown.

    A module around all of the model, such as one that adds the loss, is no other model.
    """
    if recorded is None:
        return
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


def _check_indices(name: str, buckets: Sequence[Sequence[int]] | None, count: int) -> None:
    """Raise ``AssignmentError`` unless injected buckets hold every parameter of the model once."""
    if buckets is not None and sorted(i for bucket in buckets for i in bucket) != list(range(count)):
        raise AssignmentError(
            f"candidate {name!r}: its buckets are not those of this model, which trains {count} parameters"
        )


def _share_parameters(model: nn.Module, owner: nn.Module) -> None:
    """Let the parameters of ``model`` use the storage of ``owner``'s."""
    pairs = list(zip(model.parameters(), owner.parameters(), strict=False))
    same = len(pairs) == len(list(model.parameters())) == len(list(owner.parameters()))
    if not same or any(mine.shape != theirs.shape for mine, theirs in pairs):
        raise InputError("model: the factory built another model at its second call; it must be the same")
    for mine, theirs in pairs:
        mine.data = theirs.data


def _check_room(job: dict[str, Any], model: nn.Module, device: torch.device) -> None:
    """Raise ``MachineError`` where the buckets of all lanes and one set of gradients do not fit on the GPU.

    Activations come to it, which are not known before the first step.
    """
    if device.type != "cuda":
        return
    traced = sum(candidate["traced"] for candidate in job["candidates"]) + 1 if job["probed"] else 0
    lanes = len(job["candidates"]) + traced
    copy = sum(tensor.numel() * tensor.element_size() for _, tensor in _trained(model))
    free, _ = torch.cuda.mem_get_info(device)
    if (lanes + 1) * copy > free:
        fewer = "--steps-only halves the lanes, and " if job["probed"] else ""
        raise MachineError(
            f"memory: {lanes} lanes hold the buckets of a DDP each, {format_size(copy)}, beside one set of "
            f"gradients, and {format_size(free)} are free on {device}; {fewer}fewer candidates take less"
        )


def _about(job: dict[str, Any], owner: ModelStep) -> dict[str, Any]:
    """What is written down about the model."""
    parameters = [tensor for _, tensor in _trained(owner.model)]
    return {
        "factory": job["factory"],
        "arguments": job["arguments"],
        "module": type(owner.model).__name__,
        "compiled": is_compiled(owner.model),
        "parameters": sum(tensor.numel() for tensor in parameters),
        "dtype": job["dtype"] or "as built",
        "device": job["device"],
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
