"""Lanes of modules whose backward keeps a recorded schedule; the host is as free as under an accelerator.

On the CPU nodes of backward sleep. Deadlines are absolute: oversleeping once does not delay what follows. The
processor time that DDP spends in its own hooks (copies into buckets, launches) shifts the deadlines that
follow, as kernels on the compute stream would. It is counted from just before to just after each
AccumulateGrad node, on which the Reducer's hook hangs (A3.2); what the node costs without DDP is measured
beforehand and taken off. It is the thread's processor time, not the wall's: under an accelerator these copies
do not wait for a core that the network stack has taken.

On a GPU nodes enqueue kernels of known length on the compute stream, so that the host runs ahead as it does
in training, and what DDP adds (copies, waits) are real kernels on the same stream that delay what follows by
themselves. Where the host does not get ahead, because nodes and hooks cost it more than the schedule gives
them, the GPU waits for it: the plain backward is then longer than recorded.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sim.nouns.assignment import Assignment
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.recorder.clocks import Stamp, clock_for
from sim.validator.jobs import Candidate
from sim.validator.ranks.link import spin_on
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.reducer import candidate_lanes
from sim.validator.ranks.step import (
    Lane,
    Work,
    common_start,
    keep_freed_memory,
    run_step,
    sleep_until,
)

_BASELINE_REPEATS = 5
# The host's head start in each step on a GPU: enough to be ahead of it from the first kernel on.
_HEAD_START_NS = 3_000_000


@dataclass(slots=True)
class Schedule:
    """When the nodes of one backward are due, in ns from its start, and what each of them took.

    ``due_ns`` has an entry for each gradient in ready order, and a last one for the end of backward.
    ``hooks_ns`` is the processor time of each AccumulateGrad in this backward, DDP's hook included. What it
    takes without DDP is subtracted before it delays later nodes: ``baseline_ns``, or ``adding_ns`` if the
    backward ``adds`` to gradients and the recorded times contain these additions (``recorded``, A3.12).
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
        """Start the clock of a backward."""
        self.adds, self.recorded = adds, recorded
        self.hooks_ns, self.ready_ns, self.shift = [], [], 0
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
    """Identity forward; backward waits until its gradient, or the end without one, is due; hands it out."""

    @staticmethod
    def forward(
        ctx: Any, carry: Tensor, parameter: Tensor | None, owner: "PacedModule", position: int
    ) -> Tensor:
        ctx.owner, ctx.position = owner, position
        return carry.view_as(carry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        owner: PacedModule = ctx.owner
        gradient = owner.take_gradient(ctx.position) if ctx.position < len(owner.order) else None
        owner.keep(ctx.position)
        return gradients[0], gradient, None, None


class PacedModule(nn.Module, Work):
    """The recorded parameters, with a forward and a backward that keep the recorded times by sleeping.

    Args:
        parameters: storage of each parameter by index; several modules may share it.
        gradients: preallocated gradient of each parameter by index; handed out as fresh aliases, so
            that AccumulateGrad takes them without a copy.
        order: indices in ready order.
        due_ns: ready times along ``order`` and the end of backward, ns.
        forward_ns: length of forward, counted from ``forward_start_ns`` (set before each step); if there are
            buffers, from the start of ``forward``, since DDP broadcasts them before.
        buffers: tensors that DDP broadcasts before each forward (A3.16).
        optimizer_ns: what an optimizer takes at the end of a step.

    ``addends`` are handed out in place of ``gradients`` if parameters have gradients already.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        order: Sequence[int],
        due_ns: Sequence[int],
        forward_ns: int,
        buffers: Sequence[Tensor] = (),
        optimizer_ns: int = 0,
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(tensor) for tensor in parameters])
        for number, buffer in enumerate(buffers):
            self.register_buffer(f"buffer_{number}", buffer)
        self.has_buffers = bool(buffers)
        self.order = list(order)
        self.schedule = Schedule(due_ns=due_ns)
        self.forward_ns, self.optimizer_ns = forward_ns, optimizer_ns
        self.forward_start_ns = 0
        self.addends: Sequence[Tensor] = gradients
        self._gradients = list(gradients)
        self._watched: list[Any] = []  # AccumulateGrad nodes, which only live while something holds them
        self._carry = torch.zeros(1)
        self._forward_took_ns = 0

    def watch_hooks(self) -> None:
        """From now on count what DDP's hooks take; call it after DDP has been built on this module."""
        for weight in self.weights if not self._watched else ():
            node = weight.expand_as(weight).grad_fn.next_functions[0][0]
            node.register_prehook(self.schedule.enter)
            node.register_hook(self.schedule.leave)
            self._watched.append(node)

    def take_gradient(self, position: int) -> Tensor:
        """A fresh alias of the preallocated gradient that is due at ``position`` in ready order."""
        handed_out = self.addends if self.schedule.adds else self._gradients
        return handed_out[self.order[position]].detach()

    def keep(self, position: int) -> None:
        """Hold backward until the node at ``position`` is due."""
        self.schedule.node(position)

    def forward(self, carry: Tensor) -> Tensor:
        """Append the chain of nodes to ``carry``, then sleep for the rest of forward's time."""
        start = time.monotonic_ns() if self.has_buffers else self.forward_start_ns
        carry = self.chain(carry)
        sleep_until(start + self.forward_ns)
        return carry

    def chain(self, carry: Tensor) -> Tensor:
        """Append to ``carry`` the nodes that backward walks; that of the first-ready gradient comes last."""
        for position in range(len(self.order), -1, -1):
            weight = self.weights[self.order[position]] if position < len(self.order) else None
            carry = _Node.apply(carry, weight, self, position)  # type: ignore[no-untyped-call]
        return carry

    def start(self) -> Stamp:
        """Sleep until the common start."""
        self._carry = torch.zeros(1, requires_grad=True)
        self.forward_start_ns = common_start()
        sleep_until(self.forward_start_ns)
        return self.forward_start_ns

    def loss(self, model: Any) -> Tensor:
        """Go forward through ``model``."""
        worked = time.thread_time_ns()
        loss: Tensor = model(self._carry).sum()
        self._forward_took_ns = time.thread_time_ns() - worked
        return loss

    def begin_backward(self, loss: Tensor, *, is_last: bool, recorded: bool) -> Stamp:
        """Start the clock; ``recorded``: the recorded times contain additions to gradients that exist."""
        self.schedule.begin(self.weights[self.order[0]].grad is not None, recorded)
        return self.schedule.start

    def end_backward(self) -> Stamp:
        """Now; the next micro-batch's forward starts here."""
        self.forward_start_ns = time.monotonic_ns()
        return self.forward_start_ns

    def finish(self, synchronised: Stamp) -> Stamp:
        """Sleep through the optimizer's share."""
        return sleep_until(synchronised + self.optimizer_ns)

    def noted(self) -> dict[str, Any]:
        """Beside the end of backward processor times: ``forward``, and ``hooks`` (each AccumulateGrad)."""
        return {
            "backward_end": self.schedule.start + self.schedule.ready_ns[-1],
            "forward": self._forward_took_ns,
            "hooks": self.schedule.hooks_ns,
        }


class KernelPacedModule(PacedModule):
    """A paced module that enqueues kernels instead of sleeping; ``hooks`` are empty."""

    begin_backward = Work.begin_backward
    end_backward = Work.end_backward

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        device = self.weights[0].device
        self.clock, self._spin = clock_for(device), spin_on(device)
        self._pulse = torch.zeros(1, device=device)
        self._enqueued_ns = 0
        self._backward_end: Stamp = None

    def start(self) -> Stamp:
        """A stamp that the streams of all ranks reach together, some time after the host goes on."""
        self._carry = torch.zeros(1, device=self._pulse.device, requires_grad=True)
        self.clock.settle()
        dist.all_reduce(self._pulse)  # no rank's stream goes on before all have come here
        self._spin(_HEAD_START_NS)
        return self.clock.stamp()

    def forward(self, carry: Tensor) -> Tensor:
        """One kernel for all of forward, enqueued first, so that the GPU is busy while the chain is made."""
        self._spin(self.forward_ns)
        self._enqueued_ns = 0
        return self.chain(carry)

    def keep(self, position: int) -> None:
        """Enqueue what is left up to the node at ``position``; what no kernel is short enough for waits."""
        due_ns = self.schedule.due_ns
        self._enqueued_ns += self._spin(due_ns[position] - self._enqueued_ns)
        if position == len(due_ns) - 1:
            self._backward_end = self.clock.stamp()

    def finish(self, synchronised: Stamp) -> Stamp:
        """A kernel for the optimizer's share."""
        self._spin(self.optimizer_ns)
        return self.clock.stamp()

    def noted(self) -> dict[str, Any]:
        """The end of backward."""
        return {"backward_end": self._backward_end, "forward": 0, "hooks": []}


def paced_module(parameters: Sequence[Tensor], *arguments: Any) -> PacedModule:
    """A module that keeps time on the device of its ``parameters``; arguments as of ``PacedModule``."""
    return (KernelPacedModule if parameters[0].is_cuda else PacedModule)(parameters, *arguments)


def count_hooks(modules: Sequence[PacedModule], plain: PacedModule, adds: bool = False) -> None:
    """Once every DDP is built: count DDP's hooks in ``modules`` from now on, on the host.

    What ``plain`` needs without DDP (median) is taken off; ``adds``: some module adds to gradients that
    exist, the time of which is measured as well. On a GPU there is nothing to take off: the host's cost of a
    node is hidden behind the kernels before it.
    """
    if isinstance(plain, KernelPacedModule):
        return
    for module in (plain, *modules):
        module.watch_hooks()
    baseline_ns = _hooks_ns(plain)
    adding_ns = _hooks_ns(plain, set_to_none=False) if adds else []
    for module in modules:
        module.schedule.baseline_ns, module.schedule.adding_ns = baseline_ns, adding_ns


def _hooks_ns(plain: PacedModule, **manner: Any) -> list[int]:
    """The median of what each AccumulateGrad takes in some steps; the first is left out."""
    hooks = [run_step(plain, plain, **manner)["hooks"] for _ in range(_BASELINE_REPEATS)]
    return [sorted(column)[len(column) // 2] for column in zip(*hooks[1:], strict=True)]


def paced_lanes(rank: Rank) -> list[Lane]:
    """The lanes: plain, noop, and each candidate, once more as a traced one where it can be traced.

    All share parameters, the gradients that they hand out, and the baseline that is measured here. Freed
    memory is kept, as by a GPU's caching allocator: hooks make buffers anew, and fresh pages are slow.
    """
    keep_freed_memory()
    workload: Workload = rank.job.workload
    tensors, order = tensors_of(workload, rank.device), workload.order()
    gradients = [torch.full_like(tensor, 0.5) for tensor in tensors]
    adds = any(one.adds for one in rank.job.candidates)
    # Zeros, so that sums over many steps stay what they are.
    addends = [torch.zeros_like(tensor) for tensor in tensors] if adds else gradients
    due_ns = [*(workload.gradients[index].ready_ns or 0 for index in order), workload.backward_ns]
    modules: list[PacedModule] = []

    def module() -> PacedModule:
        buffers = [
            torch.zeros(size, dtype=getattr(torch, one.dtype), device=rank.device)
            for one in workload.buffers
            for size in (one.num_bytes // DTYPE_BYTES[one.dtype],)
        ]
        forward_ns = workload.forward_ns + workload.loss_ns
        after_ns = workload.optimizer_ns + workload.rest_ns
        made = paced_module(tensors, gradients, order, due_ns, forward_ns, buffers, after_ns)
        made.addends = addends
        modules.append(made)
        return made

    def make() -> tuple[PacedModule, Callable[[Any], Work]]:
        made = module()
        return made, lambda model: made

    plain = module()
    # Where parameters are unused, only DDP with a static graph runs without the costs of searching for them.
    switches = {"static_graph": True} if len(order) < len(tensors) else {}
    quiet = Assignment(policy="ddp", bucket_indices=((0,),), ddp_kwargs=switches)
    lanes = [Lane(name="plain", step=partial(run_step, plain, plain))]
    lanes += candidate_lanes(rank, make, noop=Candidate(name="noop", assignment=quiet))
    count_hooks(modules, plain, adds=adds)
    return lanes


def tensors_of(workload: Workload, device: torch.device) -> list[Tensor]:
    """A tensor for each gradient, by index."""
    return [
        torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device) for one in workload.gradients
    ]
