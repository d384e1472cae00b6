"""One paced step on this rank, how lanes of steps are described, and a common start for all ranks."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from sim.recorder.clocks import Stamp
from sim.validator.ranks.pacing.emulated_link import EmulatedLink, link_of
from sim.validator.ranks.pacing.paced_module import PacedModule, sleep_until

_HEAD_START_NS = 2_000_000
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PINGS = 30
_BASELINE_REPEATS = 5

Launch = Callable[[torch.Tensor], torch.futures.Future[list[torch.Tensor]]]


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory, as a GPU's caching allocator does, if it can.

    gloo and FSDP2 allocate buffers for each collective, and pages that were never touched are slow to write.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a lane's steps go.

    ``accumulation_steps`` micro-batches, all but the last under ``no_sync`` (A3.12); ``set_to_none`` is
    ``zero_grad``'s argument between steps; ``environment`` is set while a step is under way, for what DDP
    reads when it rebuilds its buckets (A2.5).
    """

    accumulation_steps: int = 1
    set_to_none: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Set ``environment`` for the block, and put back what was there before."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The plain backward, DDP without communication (noop), or a candidate (stock or traced).

    ``step`` runs one step and returns its times in ns: ``step`` from a common start, ``backward_end`` and
    ``sync_end`` from the start of backward, and in a traced lane ``buckets``. ``observe`` reads back the
    buckets that are really used, in launch order, by parameter index; None in the plain lane.
    """

    name: str
    step: Callable[[], dict[str, Any]]
    observe: Callable[[], list[list[int]]] | None = None
    is_traced: bool = False


@cache
def lead_ns() -> int:
    """This rank's monotonic clock less rank 0's, in ns; all ranks must make the first call together.

    Ranks on one machine share the clock: 0. Elsewhere it is the smallest difference seen between rank 0's
    time and the moment at which it arrives here, which is too large by the shortest journey (some 0.1 ms).
    """
    boots: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(boots, _BOOT_ID.read_text() if _BOOT_ID.exists() else None)
    if boots[0] is not None and len(set(boots)) == 1:
        return 0
    return smallest_lead_ns(_PINGS)


def smallest_lead_ns(pings: int) -> int:
    """The smallest of ``pings`` differences between this clock and the time that rank 0 sends."""
    leads = []
    for _ in range(pings):
        meet()
        sent = torch.tensor([time.monotonic_ns()])
        dist.broadcast(sent, src=0)
        leads.append(time.monotonic_ns() - int(sent.item()))
    return 0 if dist.get_rank() == 0 else min(leads)


def meet() -> None:
    """All ranks come here, over gloo on the host, whatever carries the tensors of their devices."""
    dist.all_reduce(torch.zeros(1))


def common_start() -> int:
    """A moment a little ahead that all ranks agree on, on this rank's monotonic clock, ns."""
    lead = lead_ns()
    agreed = torch.tensor([time.monotonic_ns() + _HEAD_START_NS])
    dist.broadcast(agreed, src=0)
    return int(agreed.item()) + lead


def gather(row: Any, world_size: int) -> list[Any]:
    """The ``row`` of every rank, on every rank."""
    rows: list[Any] = [None] * world_size
    dist.all_gather_object(rows, row)
    return rows


def all_reduce(tensor: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
    """Sum ``tensor`` over ranks, as DDP would: asynchronously."""
    future: torch.futures.Future[list[torch.Tensor]] = dist.all_reduce(tensor, async_op=True).get_future()
    return future


class Recorder:
    """A communication hook that reduces as DDP does and stamps each bucket's launch and end.

    Args:
        stamp: the clock; on CUDA one that records an event on the current stream, which in ``done`` is a
            side stream that waits for the collective.
        divisor: what gradients are divided by before the sum, as DDP does for an average. A hook needs a pass
            of its own over the bucket for it, which DDP does not; 1: no division.
        launch: starts the reduction of a bucket; that of an emulated link takes the place of ``all_reduce``.
        stamp_end: the clock in ``done``, if it is another than ``stamp``.
    """

    def __init__(
        self,
        stamp: Callable[[], Stamp] = time.monotonic_ns,
        divisor: int = 1,
        launch: Launch = all_reduce,
        stamp_end: Callable[[], Stamp] | None = None,
    ) -> None:
        self.rows: dict[int, list[Stamp]] = {}
        self._stamp = stamp
        self._stamp_end = stamp_end or stamp
        self._divisor = divisor
        self._launch = launch

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Stamp ready (hook called), launch (all-reduce handed over) and end."""
        row = self.rows[bucket.index()] = [self._stamp(), None, None]
        if self._divisor > 1:
            bucket.buffer().div_(self._divisor)
        future = self._launch(bucket.buffer())
        row[1] = self._stamp()

        def done(finished: torch.futures.Future[Any]) -> torch.Tensor:
            row[2] = self._stamp_end()
            tensor: torch.Tensor = finished.value()[0]
            return tensor

        finished: torch.futures.Future[torch.Tensor] = future.then(done)
        return finished

    def by_bucket(self, in_ns: Callable[[Stamp], int]) -> list[list[int]]:
        """[ready, launch, end] of each bucket, in ns as ``in_ns`` tells them."""
        return [[in_ns(stamp) for stamp in self.rows[index]] for index in sorted(self.rows)]


PLAIN = Manner()


def clear_gradients(module: torch.nn.Module, set_to_none: bool) -> None:
    """What ``zero_grad`` does; without ``set_to_none`` every gradient is a tensor from the first step on."""
    for parameter in module.parameters():
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()
        elif parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def drop_gradients(module: torch.nn.Module, model: Any, set_to_none: bool) -> None:
    """After a step of ``model``, which wraps ``module``, or is it: the gradients go.

    So all lanes of a rank hold one copy of them, and not one each. Without ``set_to_none`` what lies in
    buckets stays: it takes no memory, and another tensor in its place would be copied there in the next step.
    """
    if set_to_none or not getattr(model, "gradient_as_bucket_view", model is not module):
        clear_gradients(module, set_to_none=True)


def run_step(
    model: Any,
    module: PacedModule,
    optimizer_ns: int,
    recorder: Recorder | None = None,
    at_start: Callable[[], object] | None = None,
    manner: Manner = PLAIN,
    begin: Callable[[], int] = common_start,
) -> dict[str, Any]:
    """One paced step from a common start, at which ``at_start`` is called; times in ns.

    ``begin`` says when the step starts; unless it is ``common_start``, only collectives keep ranks together.
    Gradients are cleared before the step starts: the time of that is part of no schedule.

    Returns ``step`` (from the common start), ``backward_end`` (end of the compute lane) and ``sync_end``
    (backward returned), both from the start of the last micro-batch's backward, processor times ``forward``
    and ``hooks`` (each AccumulateGrad with DDP's hook), and with a recorder ``buckets``: [ready, launch, end]
    each, from the start of backward.
    """
    clear_gradients(module, manner.set_to_none)
    carry = torch.zeros(1, requires_grad=True)
    if recorder is not None:
        recorder.rows.clear()
    start = begin()
    sleep_until(start)
    module.forward_start_ns = start
    if at_start is not None:
        at_start()
    schedule = module.schedule
    with manner.surroundings():
        for left in reversed(range(manner.accumulation_steps)):
            with model.no_sync() if left else nullcontext():
                worked = time.thread_time_ns()
                loss = model(carry).sum()
                forward = time.thread_time_ns() - worked
                # Without set_to_none recorded backwards add, too (to zeros); with it only later ones do.
                module.begin_backward(
                    recorded=left == manner.accumulation_steps - 1 or not manner.set_to_none
                )
                loss.backward()
            module.forward_start_ns = sync_end = time.monotonic_ns()
    end = sleep_until(sync_end + optimizer_ns)
    drop_gradients(module, model, manner.set_to_none)
    row: dict[str, Any] = {
        "step": end - start,
        "backward_end": schedule.ready_ns[-1],
        "sync_end": sync_end - schedule.start,
        "forward": forward,
        "hooks": schedule.hooks_ns,
    }
    if recorder is not None:
        row["buckets"] = recorder.by_bucket(lambda stamp: stamp - schedule.start)
    return row


def set_baseline(
    modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, repeats: int, adds: bool = False
) -> None:
    """Count DDP's hooks in every module from now on, less what ``plain`` needs without DDP (median).

    ``adds``: some module adds to gradients that exist; the time of that is measured as well.
    """
    for module in (plain, *modules):
        module.watch_hooks()

    def baseline(manner: Manner) -> list[int]:
        hooks = [run_step(plain, plain, optimizer_ns, manner=manner)["hooks"] for _ in range(repeats)]
        return [sorted(column)[len(column) // 2] for column in zip(*hooks[1:], strict=True)]

    baseline_ns = baseline(PLAIN)
    adding_ns = baseline(Manner(set_to_none=False)) if adds else []
    for module in modules:
        module.schedule.baseline_ns = baseline_ns
        module.schedule.adding_ns = adding_ns


class Pacer:
    """Keeps the schedule of paced steps on this rank.

    On the CPU backward sleeps, and the host is as free as under an accelerator; ``CudaPacer`` is a GPU's.
    """

    device = torch.device("cpu")

    def module(self, *arguments: Any) -> PacedModule:
        """A module that keeps the schedule; arguments as of ``PacedModule``."""
        return PacedModule(*arguments)

    def link(self, described: Mapping[str, Any]) -> EmulatedLink:
        """The emulated link that a job describes."""
        return link_of(described, self.device)

    def recorder(self, link: EmulatedLink | None) -> Recorder:
        """A communication hook that reduces, over ``link`` where there is one, and stamps what it sees."""
        return Recorder(launch=all_reduce if link is None else link.launch)

    def prepare(self, model: Any) -> None:
        """Switch off what would disturb the steps of a new ``model``, if that is a DDP."""

    def settle(
        self, modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, adds: bool = False
    ) -> None:
        """Make ready for steps once every DDP is built: count DDP's hooks, less what nodes cost without.

        ``plain`` is not under DDP; ``adds``: some module adds to gradients that are there already.
        """
        set_baseline(modules, plain, optimizer_ns, repeats=_BASELINE_REPEATS, adds=adds)

    def step(
        self,
        model: Any,
        module: PacedModule,
        optimizer_ns: int,
        recorder: Recorder | None = None,
        manner: Manner = PLAIN,
    ) -> dict[str, Any]:
        """One step from a common start of all ranks, as a lane returns it, with ``hooks``: processor time of
        each AccumulateGrad."""
        return run_step(model, module, optimizer_ns, recorder, manner=manner)

    def state(self) -> dict[str, Any]:
        """What is known now of how well the schedule is kept; empty where nothing drifts."""
        return {}
