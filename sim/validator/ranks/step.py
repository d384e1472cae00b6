"""One step of a lane, stamps on its buckets, a common start for all ranks, and rounds of all lanes."""

import ctypes
import gc
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket

from sim.recorder.clocks import Clock, Stamp
from sim.validator.ranks.rank import Rank

_HEAD_START_NS = 2_000_000
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PINGS = 30
_PR_SET_TIMERSLACK = 29
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

Launch = Callable[[Tensor], torch.futures.Future[list[Tensor]]]


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


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory, as a GPU's caching allocator does, if it can.

    gloo and FSDP2 allocate buffers for each collective, and pages that were never touched are slow to write.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


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


PLAIN = Manner()


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


class Work(Protocol):
    """What a lane's step works on, and who keeps its time: a paced module, or a model that computes."""

    clock: Clock

    def parameters(self) -> Iterable[nn.Parameter]:
        """What has gradients."""

    def start(self) -> Stamp:
        """Wait for the common start of all ranks."""

    def loss(self, model: Any) -> Tensor:
        """Go forward through ``model``, which is around the work, or is it."""

    def begin_backward(self, loss: Tensor, *, is_last: bool, recorded: bool) -> Stamp:
        """A backward starts: the step's last, and one whose recorded times have its additions in them."""

    def end_backward(self) -> Stamp:
        """Backward has returned: all gradients are available."""

    def finish(self, synchronised: Stamp) -> Stamp:
        """The optimizer's share; its end."""

    def noted(self) -> dict[str, Any]:
        """What else is known of the step; ``backward_end`` is the stamp of its compute lane's end."""


def clear_gradients(module: Work | nn.Module, set_to_none: bool) -> None:
    """What ``zero_grad`` does; without ``set_to_none`` every gradient is a tensor from the first step on."""
    for parameter in module.parameters():
        if set_to_none:
            parameter.grad = None
        elif parameter.grad is not None:
            parameter.grad.zero_()
        elif parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def run_step(
    model: Any,
    work: Work,
    recorder: Recorder | None = None,
    manner: Manner = PLAIN,
    at_start: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """One step from a common start, at which ``at_start`` is called; times in ns.

    Gradients are cleared before the step starts: the time of that is part of no schedule. After it they go,
    so that all lanes of a rank hold one copy of them; without ``set_to_none`` what lies in buckets stays: it
    takes no memory, and another tensor in its place would be copied there in the next step.

    Returns:
        ``step`` (from the common start), ``backward_end`` (end of the compute lane) and ``sync_end``
        (gradients available), both from the start of the last micro-batch's backward, what ``work`` has
        noted, and with a recorder ``buckets``: [ready, launch, end] each, from the start of backward.
    """
    clear_gradients(work, manner.set_to_none)
    if recorder is not None:
        recorder.rows.clear()
    start = work.start()
    if at_start is not None:
        at_start()
    with manner.surroundings():
        for left in reversed(range(manner.accumulation_steps)):
            with model.no_sync() if left else nullcontext():
                loss = work.loss(model)
                # Without set_to_none recorded backwards add, too (to zeros); with it only later ones do.
                recorded = left == manner.accumulation_steps - 1 or not manner.set_to_none
                backward = work.begin_backward(loss, is_last=not left, recorded=recorded)
                loss.backward()  # type: ignore[no-untyped-call]
            synchronised = work.end_backward()
    end = work.finish(synchronised)
    work.clock.settle()
    noted = work.noted()
    if manner.set_to_none or not getattr(model, "gradient_as_bucket_view", False):
        clear_gradients(work, set_to_none=True)
    in_ns = partial(work.clock.between_ns, backward)
    row: dict[str, Any] = {
        **noted,
        "step": work.clock.between_ns(start, end),
        "backward_end": in_ns(noted["backward_end"]),
        "sync_end": in_ns(synchronised),
    }
    if recorder is not None:
        row["buckets"] = recorder.by_bucket(in_ns)
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The plain backward, DDP without communication (noop), or a candidate (stock or traced).

    ``step`` runs one step and returns what ``run_step`` does. ``observe`` reads back the buckets that are
    really used, in launch order, by parameter index; None in the plain lane.
    """

    name: str
    step: Callable[[], dict[str, Any]]
    observe: Callable[[], list[list[int]]] | None = None
    is_traced: bool = False


def run_rounds(rank: Rank, lanes: Sequence[Lane]) -> None:
    """Run every lane once in each round, in a shuffled order, and tell an event for each step.

    Warm-up rounds have numbers below 0.
    """
    job = rank.job
    shuffle = random.Random(job.seed)
    for number in range(-job.warmup, job.rounds):
        gc.collect()
        for lane in shuffle.sample(lanes, len(lanes)):
            rows = gather(lane.step(), rank.world_size)
            rank.tell("step", lane=lane.name, traced=lane.is_traced, round=number, ranks=rows)
        if number == -1:  # DDP has rebuilt its buckets (A2.6), and nothing has been measured yet
            for lane in lanes:
                if lane.observe is not None:
                    seen = gather(lane.observe(), rank.world_size)
                    rank.tell("buckets", lane=lane.name, traced=lane.is_traced, ranks=seen)
