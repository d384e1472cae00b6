"""The recorded schedule on a GPU: kernels of known length on the compute stream stand for backward's own.

The nodes of a paced backward enqueue them, so that the host runs ahead as it does in training, and what DDP
adds (copies, waits) are real kernels on the same stream that delay what follows by themselves. Where the
host does not get ahead, because nodes and hooks cost it more than the schedule gives them, the GPU waits for
it: the plain backward is then longer than recorded, which ``CudaPacer.state`` tells beside the schedule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError, MachineError
from sim.recorder.clocks import Clock, CudaClock, Stamp
from sim.units import NS_PER_MS
from sim.validator.ranks.pacing.emulated_link import CudaLink, EmulatedLink, curve_from
from sim.validator.ranks.pacing.paced_module import PacedModule
from sim.validator.ranks.pacing.replay_lane import Manner
from sim.validator.ranks.pacing.stepping import PLAIN, Recorder, drop_gradients

# The host's head start in each step: enough to be ahead of the GPU from the first kernel on.
_HEAD_START_NS = 3_000_000
_WARM_UP_CYCLES = 100_000_000  # some 50 ms, in which the clock comes up
_SHORT_CYCLES, _LONG_CYCLES = 20_000, 2_000_000
_CHAIN = 32
_REPEATS = 7
_NEVER = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpinRate:
    """What ``torch.cuda._sleep`` takes on one GPU, as measured.

    A kernel of ``c`` cycles, one behind the other, takes ``overhead_ns + c * ns_per_cycle``.
    """

    overhead_ns: float
    ns_per_cycle: float

    def cycles(self, duration_ns: int) -> int:
        """Cycles of a kernel that lasts ``duration_ns``, overhead included; 0 where none is short enough."""
        return max(0, round((duration_ns - self.overhead_ns) / self.ns_per_cycle))

    def lasts_ns(self, cycles: int) -> int:
        """How long a kernel of ``cycles`` lasts, ns."""
        return round(self.overhead_ns + cycles * self.ns_per_cycle)


def measure_spin_rate(device: torch.device) -> SpinRate:
    """Time kernels of known cycles by events, medians of a few.

    Raises:
        MachineError: longer kernels did not take longer.
    """
    spin_cycles(_WARM_UP_CYCLES)
    short = [_time_spins(device, _SHORT_CYCLES, _CHAIN) / _CHAIN for _ in range(_REPEATS)]
    long = [_time_spins(device, _LONG_CYCLES, 1) for _ in range(_REPEATS)]
    ns_per_cycle = (median(long) - median(short)) / (_LONG_CYCLES - _SHORT_CYCLES)
    if ns_per_cycle <= 0:
        raise MachineError(
            f"{device}: {_LONG_CYCLES} cycles took {median(long):.0f} ns, {_SHORT_CYCLES} took "
            f"{median(short):.0f} ns; time cannot be kept by kernels here"
        )
    return SpinRate(
        overhead_ns=max(0.0, median(short) - _SHORT_CYCLES * ns_per_cycle), ns_per_cycle=ns_per_cycle
    )


def _time_spins(device: torch.device, cycles: int, count: int) -> float:
    """Device time of ``count`` kernels, ns; one ahead of them keeps the GPU busy while they are enqueued."""
    start, end = _timing_event(), _timing_event()
    spin_cycles(_LONG_CYCLES)
    start.record(torch.cuda.current_stream(device))
    for _ in range(count):
        spin_cycles(cycles)
    end.record(torch.cuda.current_stream(device))
    torch.cuda.synchronize(device)
    elapsed_ms: float = start.elapsed_time(end)
    return elapsed_ms * NS_PER_MS


def spin_cycles(cycles: int) -> None:
    """Enqueue a kernel on the current stream that does nothing for so many cycles of the GPU's clock."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _timing_event() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return event


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


class CudaPacedModule(PacedModule):
    """A paced module whose forward and backward enqueue kernels instead of sleeping.

    Args as of ``PacedModule``, with tensors on the GPU, and:
        rate: how long kernels last here.
        clock: where the end of backward is stamped.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        order: Sequence[int],
        due_ns: Sequence[int],
        forward_ns: int,
        buffers: Sequence[torch.Tensor],
        *,
        rate: SpinRate,
        clock: Clock,
    ) -> None:
        super().__init__(parameters, gradients, order, due_ns, forward_ns, buffers)
        self.backward_end: Stamp = None
        self._rate = rate
        self._clock = clock
        self._enqueued_ns = 0

    def forward(self, carry: torch.Tensor) -> torch.Tensor:
        """One kernel for all of forward, enqueued first, so that the GPU is busy while the chain is made."""
        spin(self._rate, self.forward_ns)
        self._enqueued_ns = 0
        return self.chain(carry)

    def keep(self, position: int) -> None:
        """Enqueue what is left up to the node at ``position``; what no kernel is short enough for waits."""
        due_ns = self.schedule.due_ns
        self._enqueued_ns += spin(self._rate, due_ns[position] - self._enqueued_ns)
        if position == len(due_ns) - 1:
            self.backward_end = self._clock.stamp()


def spin(rate: SpinRate, duration_ns: int) -> int:
    """Enqueue a kernel of ``duration_ns`` on the current stream; returns how long it lasts, 0: none fits."""
    cycles = rate.cycles(duration_ns)
    if not cycles:
        return 0
    spin_cycles(cycles)
    return rate.lasts_ns(cycles)


def keep_logger_from_waiting(model: Any) -> None:
    """DDP's logger waits for the host in forward: always up to iteration 11, then never again (A4.3)."""
    if isinstance(model, DistributedDataParallel):
        model._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]


class CudaPacer:
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
        self._clock = clock or CudaClock(device)
        self._rate = _in_turn(rank, world_size, lambda: measure_spin_rate(device))
        self._ends = _stream(device) if backend == "gloo" else None
        self._pulse = torch.zeros(1, device=device)

    def module(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor],
        order: Sequence[int],
        due_ns: Sequence[int],
        forward_ns: int,
        buffers: Sequence[torch.Tensor] = (),
    ) -> PacedModule:
        """A module that enqueues kernels."""
        return CudaPacedModule(
            parameters, gradients, order, due_ns, forward_ns, buffers, rate=self._rate, clock=self._clock
        )

    def link(self, described: dict[str, Any]) -> EmulatedLink:
        """A link of kernels on side streams."""
        return CudaLink(
            curve_from(described["points"]),
            described["channels"],
            described["channel_slowdown"],
            self.device,
            lambda duration_ns: spin(self._rate, duration_ns),
        )

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
        spin(self._rate, optimizer_ns)
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
        """How long kernels last now, against how long they lasted when the schedule was laid out."""
        now = measure_spin_rate(self.device)
        return {
            "spin_overhead_ns": round(self._rate.overhead_ns, 1),
            "spin_ns_per_cycle": self._rate.ns_per_cycle,
            "spin_drift": round(now.ns_per_cycle / self._rate.ns_per_cycle - 1, 5),
        }

    def _start(self) -> Stamp:
        """A stamp that the streams of all ranks reach together, some time after the host goes on."""
        self._clock.begin()
        if self._world_size > 1:
            dist.all_reduce(self._pulse)  # no rank's stream goes on before all have come here
        spin(self._rate, _HEAD_START_NS)
        return self._clock.stamp()

    def _stamp_beside(self) -> Stamp:
        event = _timing_event()
        assert self._ends is not None
        event.record(self._ends)
        return event


def _in_turn(rank: int, world_size: int, measure: Callable[[], SpinRate]) -> SpinRate:
    """What ``measure`` returns, called on one rank after the other."""
    rates = []
    for turn in range(world_size):
        if turn == rank:
            rates.append(measure())
        if world_size > 1:
            dist.barrier()
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
