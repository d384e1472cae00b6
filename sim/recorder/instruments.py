"""What is hung onto a training step to see it: forward, backward, optimizer, every gradient.

One set of instruments serves steps that we build and steps that users bring. ``survey`` runs a step
once and learns what is trained; ``measure`` runs it once and times it, with or without a hook on
every parameter. Both leave torch as they found it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from sim.errors import InputError, SimError
from sim.recorder.clocks import Clock, Stamp
from sim.recorder.factory import Step, describe

_INDEX_BYTES = 8  # torch's sparse tensors have int64 indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter that requires grad, as one step showed it.

    ``wire_bytes`` is what a sparse gradient would send (its coalesced indices and values), else None.
    """

    name: str
    tensor: nn.Parameter
    group: int
    sparse: bool
    wire_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a step trains: its module, ``module.parameters()`` that require grad, its optimizers."""

    root: nn.Module
    parameters: tuple[Parameter, ...]
    optimizers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """The times of one step, in ns.

    ``optimizer_ns`` runs from the end of backward to the end of the last optimizer step, so that
    clipping and unscaling are in it; ``inside_optimizer_ns`` counts the optimizers' own steps alone.
    ``firings`` holds ``(gradient, time from the start of backward)`` in the order in which hooks
    fired, and nothing in an iteration without hooks.
    """

    step_ns: int
    forward_ns: int
    loss_ns: int
    backward_ns: int
    optimizer_ns: int
    inside_optimizer_ns: int
    firings: tuple[tuple[int, int], ...] = ()


def survey(step: Step, *, root: nn.Module | None) -> Survey:
    """Run ``step`` once and learn what it trains; without ``root``, find the module it calls.

    Raises:
        InputError: no backward, or several; no module, or several, with trainable parameters; a
            loss that is not finite; a module already wrapped in DistributedDataParallel.
    """
    found: list[nn.Module] = [] if root is None else [root]
    called: dict[int, nn.Module] = {}
    sparse: dict[nn.Parameter, int | None] = {}
    optimizers: dict[int, Optimizer] = {}
    calls = _BackwardCalls()

    def see_module(module: nn.Module, _: Any) -> None:
        called.setdefault(id(module), module)

    def look_at(parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        sparse[parameter] = _sparse_bytes(parameter.grad)

    def see_optimizer(optimizer: Optimizer, *_: Any) -> None:
        optimizers.setdefault(id(optimizer), optimizer)

    with ExitStack() as stack:

        def before_backward() -> None:
            if not found:
                found.append(_outermost(list(called.values())))
            for _, parameter in _trained(found[0]):
                _hook(parameter, look_at, stack)

        if root is None:
            stack.callback(register_module_forward_pre_hook(see_module).remove)
        stack.callback(register_optimizer_step_pre_hook(see_optimizer).remove)
        stack.enter_context(_watched_backward(calls, before=before_backward))
        _run(step)
    calls.check()
    module = found[0]
    groups = {
        id(parameter): number
        for number, group in enumerate(g for o in optimizers.values() for g in o.param_groups)
        for parameter in group["params"]
    }
    parameters = tuple(
        Parameter(
            name=name.replace("_orig_mod.", ""),  # torch.compile's wrapper
            tensor=tensor,
            group=groups.get(id(tensor), 0),
            sparse=sparse.get(tensor) is not None,
            wire_bytes=sparse.get(tensor),
        )
        for name, tensor in _trained(module)
    )
    return Survey(
        root=module,
        parameters=parameters,
        optimizers=tuple(type(optimizer).__name__ for optimizer in optimizers.values()),
    )


def measure(step: Step, *, seen: Survey, clock: Clock, hooked: bool) -> Iteration:
    """Run ``step`` once and time it on ``clock``, with a hook on every parameter if ``hooked``.

    Hooks are put on and taken off outside the timed region.

    Raises:
        InputError: the step did not run one forward and one backward of the module surveyed, its
            loss is not finite, or it raised.
    """
    marks = _Marks(clock=clock)
    calls = _BackwardCalls()
    with ExitStack() as stack:
        before = seen.root.register_forward_pre_hook(marks.before_forward, prepend=True)
        stack.callback(before.remove)
        stack.callback(seen.root.register_forward_hook(marks.after_forward).remove)
        stack.callback(register_optimizer_step_pre_hook(marks.before_optimizer).remove)
        stack.callback(register_optimizer_step_post_hook(marks.after_optimizer).remove)
        stack.enter_context(
            _watched_backward(calls, before=marks.before_backward, after=marks.after_backward)
        )
        if hooked:
            for index, parameter in enumerate(seen.parameters):
                _hook(parameter.tensor, _firing_hook(index, marks.firings, clock.stamp), stack)
        clock.begin()
        start = clock.stamp()
        _run(step)
        end = clock.stamp()
        clock.settle()
    calls.check()
    return marks.read(start, end)


def _hook(parameter: nn.Parameter, hook: Callable[[torch.Tensor], None], stack: ExitStack) -> None:
    """Call ``hook`` whenever the parameter's gradient has been accumulated, until ``stack`` closes."""
    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    stack.callback(handle.remove)


def _firing_hook(
    index: int, firings: list[tuple[int, Stamp]], stamp: Callable[[], Stamp]
) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        firings.append((index, stamp()))

    return hook


@dataclass(slots=True, kw_only=True)
class _Marks:
    """Stamps of one step as they are made; ``read`` turns them into times."""

    clock: Clock
    forward_start: Stamp = None
    forward_end: Stamp = None
    backward_start: Stamp = None
    backward_end: Stamp = None
    optimizer_start: Stamp = None
    optimizer_spans: list[tuple[Stamp, Stamp]] = field(default_factory=list)
    firings: list[tuple[int, Stamp]] = field(default_factory=list)

    def before_forward(self, *_: Any) -> None:
        if self.forward_start is None and self.backward_start is None:
            self.forward_start = self.clock.stamp()

    def after_forward(self, *_: Any) -> None:
        if self.backward_start is None:  # not a recomputation inside backward
            self.forward_end = self.clock.stamp()

    def before_backward(self) -> None:
        self.backward_start = self.clock.stamp()

    def after_backward(self) -> None:
        self.backward_end = self.clock.stamp()

    def before_optimizer(self, *_: Any) -> None:
        self.optimizer_start = self.clock.stamp()

    def after_optimizer(self, *_: Any) -> None:
        if self.backward_end is not None:  # optimizers that step inside backward are part of it
            self.optimizer_spans.append((self.optimizer_start, self.clock.stamp()))

    def read(self, start: Stamp, end: Stamp) -> Iteration:
        if self.forward_start is None or self.forward_end is None:
            raise InputError("step: the module ran no forward before backward; each step must call it")
        between = self.clock.between_ns
        optimizer = 0
        inside = 0
        if self.optimizer_spans:
            optimizer = between(self.backward_end, self.optimizer_spans[-1][1])
            # a step with a closure (LBFGS) starts ahead of the backward inside it
            since = [max(0, between(start, first)) for first, _ in self.optimizer_spans]
            until = [between(start, last) for _, last in self.optimizer_spans]
            ended = between(start, self.backward_end)
            inside = sum(last - max(first, ended) for first, last in zip(since, until, strict=True))
        return Iteration(
            step_ns=between(start, end),
            forward_ns=between(self.forward_start, self.forward_end),
            loss_ns=between(self.forward_end, self.backward_start),
            backward_ns=between(self.backward_start, self.backward_end),
            optimizer_ns=optimizer,
            inside_optimizer_ns=inside,
            firings=tuple((index, between(self.backward_start, stamp)) for index, stamp in self.firings),
        )


@dataclass(slots=True)
class _BackwardCalls:
    """Outermost calls of backward in one step, and what they started from."""

    count: int = 0
    depth: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)

    def check(self) -> None:
        """One call, from a finite loss. Raises ``InputError`` otherwise."""
        if self.count == 0:
            raise InputError(
                "step: backward never ran; call loss.backward() once in each step "
                "(torch.autograd.grad makes no gradient ready)"
            )
        if self.count > 1:
            raise InputError(
                f"step: backward ran {self.count} times; a step has one (record a single micro-batch)"
            )
        for loss in self.losses:
            if not bool(torch.isfinite(loss).all()):
                value = loss.item() if loss.numel() == 1 else "not finite"
                raise InputError(f"step: the loss is {value}; its times would mislead; give a finite loss")


@contextmanager
def _watched_backward(
    calls: _BackwardCalls,
    *,
    before: Callable[[], None],
    after: Callable[[], None] | None = None,
) -> Iterator[None]:
    """Call ``before`` and ``after`` around the outermost ``backward`` (``Tensor.backward`` ends there too).

    A re-entrant checkpoint calls backward inside backward, on autograd's thread: the depth is
    therefore counted over all threads.
    """
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        outermost = calls.depth == 0
        if outermost:
            calls.count += 1
            roots = [tensors] if isinstance(tensors, torch.Tensor) else tensors
            calls.losses = [root.detach() for root in roots if isinstance(root, torch.Tensor)]
            if calls.count == 1:
                before()
        calls.depth += 1
        try:
            original(tensors, *args, **kwargs)
        finally:
            calls.depth -= 1
        if outermost and calls.count == 1 and after is not None:
            after()

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


def _run(step: Step) -> None:
    try:
        step()
    except SimError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"step: it raised {describe(error)}") from error


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """``module.parameters()`` that require grad, de-duplicated, with their first names."""
    return [(name, tensor) for name, tensor in module.named_parameters() if tensor.requires_grad]


def _outermost(called: list[nn.Module]) -> nn.Module:
    """The one module, among those called, that trains something and lies in no other one."""
    inner = {id(part) for module in called for part in module.modules() if part is not module}
    roots = [module for module in called if id(module) not in inner and _trained(module)]
    if len(roots) == 1:
        return roots[0]
    if not roots:
        raise InputError("step: no module with trainable parameters ran forward; call one as model(...)")
    names = ", ".join(type(module).__name__ for module in roots[:4])
    more = ", ..." if len(roots) > 4 else ""
    raise InputError(
        f"step: {len(roots)} separate modules with trainable parameters ran forward ({names}{more}); train "
        f"one module, call it as model(...) and not by its parts, and freeze the others"
    )


def _sparse_bytes(gradient: torch.Tensor | None) -> int | None:
    """Bytes of a sparse gradient's coalesced indices and values; None for a dense one."""
    if gradient is None or not gradient.is_sparse:
        return None
    whole = gradient.detach().coalesce()
    values = whole.values()
    return int(whole.indices().numel() * _INDEX_BYTES + values.numel() * values.element_size())
