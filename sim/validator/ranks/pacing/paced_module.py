"""A module whose backward keeps a recorded schedule, so that the host is as free as under an accelerator.

Deadlines are absolute: oversleeping once does not delay what follows. The processor time that DDP spends
in its own hooks (copies into buckets, launches) shifts the deadlines that follow, as kernels on the
compute stream would. It is counted from just before to just after each AccumulateGrad node, on which
the Reducer's hook hangs (A3.2); what the node costs without DDP is measured beforehand and taken off. It
is the thread's processor time, not the wall's: under an accelerator these copies do not wait for a core
that the network stack has taken.
"""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_PR_SET_TIMERSLACK = 29


def sharpen_sleep() -> None:
    """Ask Linux to wake this thread on time (timer slack 1 ns); elsewhere nothing changes."""
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return


def sleep_until(deadline_ns: int) -> int:
    """Sleep until ``time.monotonic_ns()`` reaches the deadline; returns the time then."""
    while (now := time.monotonic_ns()) < deadline_ns:
        time.sleep((deadline_ns - now) / 1e9)
    return now


@dataclass(slots=True)
class Schedule:
    """When the nodes of one backward are due, in ns from its start, and what each of them took.

    ``due_ns`` has an entry for each gradient in ready order, and a last one for the end of backward.
    ``hooks_ns`` is the processor time of each AccumulateGrad in this backward, DDP's hook included. What it
    takes without DDP is subtracted before it delays later nodes: ``baseline_ns``, or ``adding_ns`` if the
    backward ``adds`` to gradients and the recorded times contain these additions (``recorded``).
    """

    due_ns: Sequence[int]
    baseline_ns: list[int] = field(default_factory=list)
    adding_ns: list[int] = field(default_factory=list)
    adds: bool = False
    recorded: bool = True
    start: int = 0
    shift: int = 0
    entered: int = 0
    hooks_ns: list[int] = field(default_factory=list)
    ready_ns: list[int] = field(default_factory=list)

    def begin(self, adds: bool = False, recorded: bool = True) -> None:
        """Start the clock of a backward.

        ``adds``: it adds to gradients that exist; ``recorded``: recorded times contain that (A3.12).
        """
        self.adds, self.recorded = adds, recorded
        self.hooks_ns = []
        self.ready_ns = []
        self.shift = 0
        self.start = time.monotonic_ns()

    def node(self, position: int) -> None:
        """Wait until the node at ``position`` is due."""
        now = sleep_until(self.start + self.due_ns[position] + self.shift)
        self.ready_ns.append(now - self.start)

    def enter(self, gradients: object) -> None:
        """A gradient is about to be accumulated."""
        self.entered = time.thread_time_ns()

    def leave(self, inputs: object, outputs: object) -> None:
        """The gradient is accumulated and DDP's hook has returned: DDP's time delays later nodes."""
        taken = time.thread_time_ns() - self.entered
        baseline_ns = self.adding_ns if self.adds and self.recorded else self.baseline_ns
        if baseline_ns:
            self.shift += taken - baseline_ns[len(self.hooks_ns)]
        self.hooks_ns.append(taken)


class _Node(torch.autograd.Function):
    """Identity forward; backward waits until the gradient is due, then hands it out."""

    @staticmethod
    def forward(
        ctx: Any, carry: torch.Tensor, parameter: torch.Tensor, owner: "PacedModule", position: int
    ) -> torch.Tensor:
        ctx.owner, ctx.position = owner, position
        return carry.view_as(carry)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        owner: PacedModule = ctx.owner
        gradient = owner.take_gradient(ctx.position)
        owner.keep(ctx.position)
        return gradients[0], gradient, None, None


class _Tail(torch.autograd.Function):
    """Backward's end: waits until the whole backward is due."""

    @staticmethod
    def forward(ctx: Any, carry: torch.Tensor, owner: "PacedModule") -> torch.Tensor:
        ctx.owner = owner
        return carry.view_as(carry)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        owner: PacedModule = ctx.owner
        owner.keep(len(owner.order))
        return gradients[0], None


def chain_node(
    carry: torch.Tensor, parameter: torch.Tensor, owner: "PacedModule", position: int
) -> torch.Tensor:
    """Append to ``carry`` the node whose backward makes the gradient at ``position`` in ready order."""
    chained: torch.Tensor = _Node.apply(carry, parameter, owner, position)  # type: ignore[no-untyped-call]
    return chained


def chain_tail(carry: torch.Tensor, owner: "PacedModule") -> torch.Tensor:
    """Append to ``carry`` the node whose backward ends the recorded backward."""
    chained: torch.Tensor = _Tail.apply(carry, owner)  # type: ignore[no-untyped-call]
    return chained


class PacedModule(nn.Module):
    """The recorded parameters, with a forward and a backward that keep the recorded times.

    Args:
        parameters: storage of each parameter by index; several modules may share it.
        gradients: preallocated gradient of each parameter by index; handed out as fresh aliases, so
            that AccumulateGrad takes them without a copy.
        order: indices in ready order.
        due_ns: ready times along ``order`` and the end of backward, ns.
        forward_ns: length of forward, counted from ``forward_start_ns`` (set before each step); if there are
            buffers, from the start of ``forward``, since DDP broadcasts them before.
        buffers: tensors that DDP broadcasts before each forward (A3.16).

    ``addends`` are handed out in place of ``gradients`` if parameters have gradients already.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        order: Sequence[int],
        due_ns: Sequence[int],
        forward_ns: int,
        buffers: Sequence[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(tensor) for tensor in parameters])
        for number, buffer in enumerate(buffers):
            self.register_buffer(f"buffer_{number}", buffer)
        self.has_buffers = bool(buffers)
        self.order = list(order)
        self.schedule = Schedule(due_ns=due_ns)
        self.forward_ns = forward_ns
        self.forward_start_ns = 0
        self.addends: Sequence[torch.Tensor] = gradients
        self._gradients = list(gradients)
        self._watched: list[Any] = []  # AccumulateGrad nodes, which only live while something holds them

    def watch_hooks(self) -> None:
        """From now on count what DDP's hooks take; call it after DDP has been built on this module."""
        if self._watched:
            return
        for weight in self.weights:
            node = weight.expand_as(weight).grad_fn.next_functions[0][0]
            node.register_prehook(self.schedule.enter)
            node.register_hook(self.schedule.leave)
            self._watched.append(node)

    def begin_backward(self, recorded: bool = True) -> None:
        """Start the clock; ``recorded``: the recorded times contain additions to gradients that exist."""
        self.schedule.begin(self.weights[self.order[0]].grad is not None, recorded)

    def take_gradient(self, position: int) -> torch.Tensor:
        """A fresh alias of the preallocated gradient that is due at ``position`` in ready order."""
        handed_out = self.addends if self.schedule.adds else self._gradients
        return handed_out[self.order[position]].detach()

    def keep(self, position: int) -> None:
        """Hold backward until the node at ``position`` is due."""
        self.schedule.node(position)

    def forward(self, carry: torch.Tensor) -> torch.Tensor:
        """Append the chain of nodes to ``carry``, then sleep for the rest of forward's time."""
        start = time.monotonic_ns() if self.has_buffers else self.forward_start_ns
        carry = self.chain(carry)
        sleep_until(start + self.forward_ns)
        return carry

    def chain(self, carry: torch.Tensor) -> torch.Tensor:
        """Append to ``carry`` the nodes that backward walks; that of the first-ready gradient comes last."""
        carry = chain_tail(carry, self)
        for position in range(len(self.order) - 1, -1, -1):
            carry = chain_node(carry, self.weights[self.order[position]], self, position)
        return carry
