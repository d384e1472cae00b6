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
them, the GPU waits for it: the plain backward is then longer than recorded, which the event ``pacing`` tells.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.recorder.clocks import Clock, EventClock, Stamp
from sim.validator.jobs import Candidate, ReplayJob
from sim.validator.ranks.cuda import Spin, check_sums, keep_busy, keep_logger_from_waiting
from sim.validator.ranks.link import EmulatedLink, link_of
from sim.validator.ranks.rank import Rank
from sim.validator.ranks.reducer import adds_to_gradients, build, manner_of, observed_buckets, wrap
from sim.validator.ranks.step import (
    PLAIN,
    Lane,
    Manner,
    Recorder,
    all_reduce,
    common_start,
    keep_freed_memory,
    meet,
    run_step,
    sleep_until,
)

_BASELINE_REPEATS = 5
# The host's head start in each step on a GPU: enough to be ahead of it from the first kernel on.
_HEAD_START_NS = 3_000_000
_DELAY_CYCLES = 20_000_000  # some 10 ms, so that a sum comes out wrong if it does not wait for the stream


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
    def forward(ctx: Any, carry: Tensor, parameter: Tensor, owner: "PacedModule", position: int) -> Tensor:
        ctx.owner, ctx.position = owner, position
        return carry.view_as(carry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        owner: PacedModule = ctx.owner
        gradient = owner.take_gradient(ctx.position)
        owner.keep(ctx.position)
        return gradients[0], gradient, None, None


class _Tail(torch.autograd.Function):
    """Backward's end: waits until the whole backward is due."""

    @staticmethod
    def forward(ctx: Any, carry: Tensor, owner: "PacedModule") -> Tensor:
        ctx.owner = owner
        return carry.view_as(carry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        owner: PacedModule = ctx.owner
        owner.keep(len(owner.order))
        return gradients[0], None


class PacedModule(nn.Module):
    """The recorded parameters, with a forward and a backward that keep the recorded times: a ``Work``.

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

    clock: Clock = Clock()

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
        if self._watched:
            return
        for weight in self.weights:
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
        carry = _Tail.apply(carry, self)  # type: ignore[no-untyped-call]
        for position in range(len(self.order) - 1, -1, -1):
            carry = _Node.apply(carry, self.weights[self.order[position]], self, position)  # type: ignore[no-untyped-call]
        return carry

    def start(self) -> Stamp:
        """Sleep until the common start."""
        self._carry = torch.zeros(1, device=self.weights[0].device, requires_grad=True)
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


class CudaPacedModule(PacedModule):
    """A paced module whose forward and backward enqueue kernels instead of sleeping; ``hooks`` are empty.

    Args as of ``PacedModule``, with tensors on the GPU, and:
        spin: enqueues a kernel of so many ns.
        clock: where times are stamped.
        meets: whether there are several ranks, whose streams start a step together.
    """

    def __init__(self, *arguments: Any, spin: Spin, clock: Clock, meets: bool) -> None:
        super().__init__(*arguments)
        self.clock = clock
        self._spin = spin
        self._pulse = torch.zeros(1, device=self.weights[0].device) if meets else None
        self._enqueued_ns = 0
        self._backward_end: Stamp = None

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

    def start(self) -> Stamp:
        """A stamp that the streams of all ranks reach together, some time after the host goes on."""
        self._carry = torch.zeros(1, device=self.weights[0].device, requires_grad=True)
        self.clock.settle()
        if self._pulse is not None:
            dist.all_reduce(self._pulse)  # no rank's stream goes on before all have come here
        self._spin(_HEAD_START_NS)
        return self.clock.stamp()

    def begin_backward(self, loss: Tensor, *, is_last: bool, recorded: bool) -> Stamp:
        """Here; what adds to gradients is refused beforehand, as its kernels are in no schedule."""
        return self.clock.stamp()

    def end_backward(self) -> Stamp:
        """Here."""
        return self.clock.stamp()

    def finish(self, synchronised: Stamp) -> Stamp:
        """A kernel for the optimizer's share."""
        self._spin(self.optimizer_ns)
        return self.clock.stamp()

    def noted(self) -> dict[str, Any]:
        """The end of backward."""
        return {"backward_end": self._backward_end, "forward": 0, "hooks": []}


def set_baseline(
    modules: Sequence[PacedModule], plain: PacedModule, repeats: int = _BASELINE_REPEATS, adds: bool = False
) -> None:
    """Count DDP's hooks in every module from now on, less what ``plain`` needs without DDP (median).

    ``adds``: some module adds to gradients that exist; the time of that is measured as well.
    """
    for module in (plain, *modules):
        module.watch_hooks()

    def baseline(manner: Manner) -> list[int]:
        hooks = [run_step(plain, plain, manner=manner)["hooks"] for _ in range(repeats)]
        return [sorted(column)[len(column) // 2] for column in zip(*hooks[1:], strict=True)]

    baseline_ns = baseline(PLAIN)
    adding_ns = baseline(Manner(set_to_none=False)) if adds else []
    for module in modules:
        module.schedule.baseline_ns = baseline_ns
        module.schedule.adding_ns = adding_ns


class Pacer:
    """Makes what keeps the schedule of paced steps on this rank; on the CPU the host, by sleeping."""

    device = torch.device("cpu")

    def module(self, *arguments: Any) -> PacedModule:
        """A module that keeps the schedule; arguments as of ``PacedModule``."""
        return PacedModule(*arguments)

    def link(self, hardware: Any) -> EmulatedLink:
        """The emulated link of ``hardware``."""
        return link_of(hardware, self.device)

    def recorder(self, link: EmulatedLink | None) -> Recorder:
        """A communication hook that reduces, over ``link`` where there is one, and stamps what it sees."""
        return Recorder(launch=all_reduce if link is None else link.launch)

    def settle(self, modules: Sequence[PacedModule], plain: PacedModule, adds: bool = False) -> None:
        """Make ready for steps once every DDP is built: count DDP's hooks, less what nodes cost without."""
        set_baseline(modules, plain, adds=adds)

    def state(self) -> dict[str, Any]:
        """What is known now of how well the schedule is kept; empty where nothing drifts."""
        return {}


class CudaPacer(Pacer):
    """A GPU, by kernels, timed by events on its streams.

    Args:
        device: the GPU, set as the current one.
        rank: this rank; ranks that share a GPU must not measure how long its kernels last at once.
        world_size: number of ranks; several start each step behind one tiny all-reduce.
        uses_nccl: whether NCCL carries CUDA tensors; else gloo does.
        clock: for tests; else events on the current stream.
    """

    def __init__(
        self, device: torch.device, rank: int, world_size: int, uses_nccl: bool, clock: Clock | None = None
    ) -> None:
        self.device = device
        self._world_size = world_size
        self._clock = clock or EventClock(device)
        self._spin = _in_turn(rank, world_size, lambda: Spin(device))
        self._ends = None if uses_nccl else torch.Stream(device)

    def module(self, *arguments: Any) -> PacedModule:
        """A module that enqueues kernels."""
        return CudaPacedModule(*arguments, spin=self._spin, clock=self._clock, meets=self._world_size > 1)

    def link(self, hardware: Any) -> EmulatedLink:
        """A link of kernels on side streams."""
        return link_of(hardware, self.device, self._spin)

    def recorder(self, link: EmulatedLink | None) -> Recorder:
        """Stamps by events: ready and launch on the compute stream, the end where the collective ends.

        NCCL's callback, and the emulated link's, runs on a side stream behind the collective. gloo's runs
        on a thread of its own when the sum is back in the host's memory, where the current stream is
        the compute stream and full of work to come; its ends are stamped on a stream that is empty, the
        copy to the GPU not included.
        """
        if link is not None:
            return Recorder(self._clock.stamp, launch=link.launch)
        return Recorder(self._clock.stamp, stamp_end=None if self._ends is None else self._stamp_beside)

    def settle(self, modules: Sequence[PacedModule], plain: PacedModule, adds: bool = False) -> None:
        """Nothing to take off: the host's cost of a node is hidden behind the kernels before it."""

    def state(self) -> dict[str, Any]:
        """What a kernel takes beside the time that it is to last."""
        return {"spin_overhead_ns": self._spin.overhead_ns}

    def _stamp_beside(self) -> Stamp:
        assert self._ends is not None
        event = torch.Event(self.device, enable_timing=True)
        event.record(self._ends)
        return event


def _in_turn(rank: int, world_size: int, measure: Callable[[], Spin]) -> Spin:
    """What ``measure`` returns, called on one rank after the other."""
    rates = []
    for turn in range(world_size):
        if turn == rank:
            rates.append(measure())
        if world_size > 1:
            meet()
    return rates[0]


def pacer_for(rank: Rank) -> Pacer:
    """The pacer of this rank's device.

    Raises:
        MachineError: the backend sums wrongly on this GPU, or its kernels keep no time.
    """
    carrier = rank.job.carrier
    if carrier.device != "cuda":
        return Pacer()
    device = torch.device("cuda", torch.cuda.current_device())
    if rank.world_size > 1 and not carrier.uses_nccl:
        check_sums(rank.rank, rank.world_size, device, lambda: keep_busy(_DELAY_CYCLES))
    return CudaPacer(device, rank.rank, rank.world_size, carrier.uses_nccl)


def paced_lanes(rank: Rank) -> list[Lane]:
    """The lanes: plain, noop, and each candidate, once more as a traced one where it can be traced.

    The baseline that all lanes share is measured here. With an emulated link every lane of DDP has a
    communication hook: that of an untraced candidate is the link's without stamps, and the noop lane shows
    what Python adds to a launch. Freed memory is kept, as by a GPU's caching allocator: hooks make buffers
    anew in each step, and fresh pages are slow.
    """
    keep_freed_memory()
    job: ReplayJob = rank.job
    workload, emulated = job.workload, job.carrier.emulated
    assert workload is not None
    pacer = pacer_for(rank)
    made = Modules(pacer, workload, adds=any(map(adds_to_gradients, job.candidates)))
    link = None if emulated is None else pacer.link(emulated)
    plain = made.module()

    def plain_step() -> dict[str, Any]:
        """A step without DDP; where the schedule may drift, how well it was kept is told beside it."""
        row = run_step(plain, plain)
        if state := pacer.state():
            rank.tell("pacing", planned_ns=workload.backward_ns, backward_ns=row["backward_end"], **state)
        return row

    # Where parameters are unused, only DDP with a static graph runs without the costs of searching for them.
    noop, switches = made.module(), {"static_graph": True} if made.has_unused else {}
    noop_ddp = build(noop, switches)
    noop_ddp.register_comm_hook(None, noop_hook)
    keep_logger_from_waiting(noop_ddp)
    lanes = [
        Lane(name="plain", step=plain_step),
        Lane(
            name="noop",
            step=partial(run_step, noop_ddp, noop),
            observe=partial(observed_buckets, noop_ddp),
        ),
    ]

    def add(candidate: Candidate, recorder: Recorder | None) -> None:
        module = made.module()
        model, observe = wrap(module, candidate)
        keep_logger_from_waiting(model)
        if (carried := recorder or link) is not None:
            model.register_comm_hook(None, carried.hook)
        step = partial(run_step, model, module, recorder, manner_of(candidate))
        lanes.append(Lane(name=candidate.name, step=step, observe=observe, is_traced=recorder is not None))

    for candidate in job.candidates:
        add(candidate, None)
        if candidate.is_traced:
            add(candidate, pacer.recorder(link))
    pacer.settle(made.modules, plain, adds=made.adds)
    return lanes


class Modules:
    """Makes the module of each lane; all share their parameters and the gradients that they hand out.

    ``adds``: some of them add to gradients that exist.
    """

    def __init__(self, pacer: Pacer, workload: Workload, *, adds: bool) -> None:
        self._pacer, self._workload, self.adds = pacer, workload, adds
        self._tensors = tensors_of(workload, pacer.device)
        self._gradients = [torch.full_like(tensor, 0.5) for tensor in self._tensors]
        # Zeros, so that sums over many steps stay what they are.
        self._addends = [torch.zeros_like(tensor) for tensor in self._tensors] if adds else None
        self.has_unused = len(workload.order()) < len(self._tensors)
        self.modules: list[PacedModule] = []

    def module(self) -> PacedModule:
        """One more module."""
        workload = self._workload
        ready = [workload.gradients[index].ready_ns for index in workload.order()]
        buffers = [
            torch.zeros(
                one.num_bytes // DTYPE_BYTES[one.dtype],
                dtype=getattr(torch, one.dtype),
                device=self._pacer.device,
            )
            for one in workload.buffers
        ]
        made = self._pacer.module(
            self._tensors,
            self._gradients,
            workload.order(),
            [*(time for time in ready if time is not None), workload.backward_ns],
            workload.forward_ns + workload.loss_ns,
            buffers,
            workload.optimizer_ns,
        )
        if self._addends is not None:
            made.addends = self._addends
        self.modules.append(made)
        return made


def tensors_of(workload: Workload, device: torch.device) -> list[Tensor]:
    """A tensor for each gradient, by index."""
    return [
        torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device) for one in workload.gradients
    ]
