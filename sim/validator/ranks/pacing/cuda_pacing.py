"""The recorded schedule on a GPU: kernels of known length on the compute stream stand for backward's own.

The nodes of a paced backward enqueue them, so that the host runs ahead as it does in training, and what DDP
adds (copies, waits) are real kernels on the same stream that delay what follows by themselves. Where the
host does not get ahead, because nodes and hooks cost it more than the schedule gives them, the GPU waits for
it: the plain backward is then longer than recorded, which ``CudaPacer.state`` tells beside the schedule.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError, MachineError
from sim.recorder.clocks import Clock, EventClock, Stamp
from sim.validator.ranks.pacing.emulated_link import EmulatedLink, link_of
from sim.validator.ranks.pacing.paced_module import PacedModule
from sim.validator.ranks.pacing.spinning import Spin
from sim.validator.ranks.pacing.stepping import PLAIN, Manner, Pacer, Recorder, drop_gradients, meet

# The host's head start in each step: enough to be ahead of the GPU from the first kernel on.
_HEAD_START_NS = 3_000_000
_NEVER = 2**31 - 1


class CudaPacedModule(PacedModule):
    """A paced module whose forward and backward enqueue kernels instead of sleeping.

    Args as of ``PacedModule``, with tensors on the GPU, and:
        spin: enqueues a kernel of so many ns.
        clock: where the end of backward is stamped.
    """

    def __init__(self, *arguments: Any, spin: Spin, clock: Clock) -> None:
        super().__init__(*arguments)
        self.backward_end: Stamp = None
        self._spin = spin
        self._clock = clock
        self._enqueued_ns = 0

    def forward(self, carry: torch.Tensor) -> torch.Tensor:
        """One kernel for all of forward, enqueued first, so that the GPU is busy while the chain is made."""
        self._spin(self.forward_ns)
        self._enqueued_ns = 0
        return self.chain(carry)

    def keep(self, position: int) -> None:
        """Enqueue what is left up to the node at ``position``; what no kernel is short enough for waits."""
        due_ns = self.schedule.due_ns
        self._enqueued_ns += self._spin(due_ns[position] - self._enqueued_ns)
        if position == len(due_ns) - 1:
            self.backward_end = self._clock.stamp()


def keep_logger_from_waiting(model: Any) -> None:
    """DDP's logger waits for the host in forward: always up to iteration 11, then never again (A4.3)."""
    if isinstance(model, DistributedDataParallel):
        model._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]


class CudaPacer(Pacer):
    """Paced steps on one GPU, timed by events on its streams.

    Args:
        device: the GPU, set as the current one.
        rank: this rank; ranks that share a GPU must not measure how long its kernels last at once.
        world_size: number of ranks; several start each step behind one tiny all-reduce.
        backend: what carries CUDA tensors, ``nccl`` or ``gloo``.
        clock: for tests; else events on the current stream.
    """

    def __init__(
        self, device: torch.device, rank: int, world_size: int, backend: str, clock: Clock | None = None
    ) -> None:
        self.device = device
        self._world_size = world_size
        self._backend = backend
        self._clock = clock or EventClock(device)
        self._spin = _in_turn(rank, world_size, lambda: Spin(device))
        self._ends = torch.Stream(device) if backend == "gloo" else None
        self._pulse = torch.zeros(1, device=device)

    def module(self, *arguments: Any) -> PacedModule:
        """A module that enqueues kernels."""
        return CudaPacedModule(*arguments, spin=self._spin, clock=self._clock)

    def link(self, described: Mapping[str, Any]) -> EmulatedLink:
        """A link of kernels on side streams."""
        return link_of(described, self.device, self._spin)

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

    def prepare(self, model: Any) -> None:
        """Keep DDP's logger from waiting."""
        keep_logger_from_waiting(model)

    def settle(
        self, modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, adds: bool = False
    ) -> None:
        """Nothing to take off: the host's cost of a node is hidden behind the kernels before it."""

    def step(
        self,
        model: Any,
        module: PacedModule,
        optimizer_ns: int,
        recorder: Recorder | None = None,
        manner: Manner = PLAIN,
    ) -> dict[str, Any]:
        """One step whose times are device times, read when it is over; ``hooks`` is empty.

        Of ``manner`` only ``environment`` is heeded: the kernels that add to gradients are in no schedule.
        """
        assert isinstance(module, CudaPacedModule)
        for parameter in module.parameters():
            parameter.grad = None
        carry = torch.zeros(1, device=self.device, requires_grad=True)
        if recorder is not None:
            recorder.rows.clear()
        clock = self._clock
        start = self._start()
        with manner.surroundings():
            loss = model(carry).sum()
        backward = clock.stamp()
        loss.backward()
        synchronised = clock.stamp()
        self._spin(optimizer_ns)
        end = clock.stamp()
        clock.settle()
        drop_gradients(module, model, set_to_none=True)
        row: dict[str, Any] = {
            "step": clock.between_ns(start, end),
            "backward_end": clock.between_ns(backward, module.backward_end),
            "sync_end": clock.between_ns(backward, synchronised),
            "hooks": [],
        }
        if recorder is not None:
            row["buckets"] = recorder.by_bucket(partial(clock.between_ns, backward))
        return row

    def state(self) -> dict[str, Any]:
        """What a kernel takes beside the time that it is to last."""
        return {"spin_overhead_ns": self._spin.overhead_ns}

    def _start(self) -> Stamp:
        """A stamp that the streams of all ranks reach together, some time after the host goes on."""
        self._clock.settle()
        if self._world_size > 1:
            dist.all_reduce(self._pulse)  # no rank's stream goes on before all have come here
        self._spin(_HEAD_START_NS)
        return self._clock.stamp()

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


def choose_gpu(place: int) -> int:
    """The GPU of the rank at ``place`` among those of its machine, of the GPUs that it is let see.

    Launchers show a rank all GPUs of the machine, or its own only, so that their number says nothing of how
    many ranks there may be.

    Raises:
        MachineError: it sees none.
    """
    gpus = torch.cuda.device_count()
    if not gpus:
        raise MachineError(f"device: cuda is not here; torch {torch.__version__} sees 0 GPUs")
    return place % gpus


def check_apart(gpus: Sequence[str]) -> None:
    """Refuse NCCL with several ranks on one GPU before it hangs or fails in its own words (Part C).

    Args:
        gpus: what tells the GPU of each rank from all others anywhere.

    Raises:
        InputError: two ranks have the same.
    """
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) < rank:
            raise InputError(
                f"ranks: {first} and {rank} over NCCL on one GPU, {gpu}, are not legal: NCCL refuses that "
                f"('Duplicate GPU detected'); start no more ranks on a machine than it has GPUs, "
                f"set LOCAL_RANK, or give gloo as the backend"
            )


def check_sums(
    rank: int, world_size: int, device: torch.device, delay: Callable[[], object] | None = None
) -> None:
    """All-reduce known numbers and compare: gloo on CUDA has returned wrong sums (Part C).

    ``delay`` enqueues something slow ahead of the numbers, so that a sum that does not wait for them is seen.

    Raises:
        MachineError: a wrong sum, with the figures.
    """
    for numel in (1, 1000, 1 << 20):
        for repeat in range(3):
            tensor = torch.full((numel,), -1.0, device=device)
            if delay is not None:
                delay()
            tensor.fill_(rank + 1 + repeat)
            dist.all_reduce(tensor, async_op=True).get_future().wait()
            exact = float(world_size * (world_size + 1) // 2 + repeat * world_size)
            wrong = int((tensor != exact).sum().item())
            if wrong:
                seen = tensor[tensor != exact][0].item()
                raise MachineError(
                    f"all-reduce on {device}: {wrong} of {numel} sums are wrong ({seen:g} instead of "
                    f"{exact:g}) on rank {rank}; this torch {torch.__version__} cannot be measured with "
                    f"this backend"
                )
