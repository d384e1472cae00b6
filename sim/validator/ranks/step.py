"""One step of a lane, stamps on its buckets, a common start for all ranks, and rounds of all lanes."""

import ctypes
import gc
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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

Reduced = torch.futures.Future[list[Tensor]]
Launch = Callable[[Tensor], Reduced]


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

    gloo allocates buffers for each collective, and pages that were never touched are slow to write.
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
    boots = gather(_BOOT_ID.read_text() if _BOOT_ID.exists() else None, dist.get_world_size())
    if boots[0] is not None and len(set(boots)) == 1:
        return 0
    leads = []
    for _ in range(_PINGS):
        meet()
        sent = from_first(time.monotonic_ns())
        leads.append(time.monotonic_ns() - sent)
    return 0 if dist.get_rank() == 0 else min(leads)


def meet() -> None:
    """All ranks come here, over gloo on the host, whatever carries the tensors of their devices."""
    dist.all_reduce(torch.zeros(1, device="cpu"))


def from_first(number: int) -> int:
    """Rank 0's ``number``, on every rank."""
    sent = torch.tensor([number], device="cpu")
    dist.broadcast(sent, src=0)
    return int(sent.item())


def common_start() -> int:
    """A moment a little ahead that all ranks agree on, on this rank's monotonic clock, ns."""
    lead = lead_ns()
    return from_first(time.monotonic_ns() + _HEAD_START_NS) + lead


def gather(row: Any, world_size: int) -> list[Any]:
    """The ``row`` of every rank, on every rank."""
    rows: list[Any] = [None] * world_size
    dist.all_gather_object(rows, row)
    return rows


def all_reduce(tensor: Tensor) -> Reduced:
    """Sum ``tensor`` over ranks, as DDP would: asynchronously."""
    future: Reduced = dist.all_reduce(tensor, async_op=True).get_future()
    return future


class Recorder:
    """A communication hook that reduces as DDP does and stamps each bucket's launch and end.

    Args:
        stamp: the clock; on CUDA one that records an event on the current stream, which in ``done`` is a
            side stream that waits for the collective.
        divisor: what gradients are divided by before the sum, as DDP does for an average. A hook needs a pass
            of its own over the bucket for it, which DDP does not; 1: no division.
        launch: starts the reduction of a bucket; an emulated link takes the place of ``all_reduce``.
        stamp_end: the clock of ``done``, where it is not ``stamp``.
    """

    def __init__(
        self,
        stamp: Callable[[], Stamp] = time.monotonic_ns,
        divisor: int = 1,
        launch: Launch = all_reduce,
        stamp_end: Callable[[], Stamp] | None = None,
    ) -> None:
        self.rows: dict[int, list[Stamp]] = {}
        self._stamp, self._stamp_end, self._divisor, self._launch = stamp, stamp_end or stamp, divisor, launch

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Stamp ready (hook called), launch (all-reduce handed over) and end."""
        row = self.rows[bucket.index()] = [self._stamp(), None, None]
        if self._divisor > 1:
            bucket.buffer().div_(self._divisor)
        future = self._launch(bucket.buffer())
        row[1] = self._stamp()

        def done(finished: Reduced) -> Tensor:
            row[2] = self._stamp_end()
            return finished.value()[0]

        return future.then(done)


class Work:
    """What a lane's step works on, and who keeps its time: a paced module, or a model that computes.

    ``parameters`` have gradients; ``loss`` goes forward through what is around the work, or is it; ``finish``
    is the optimizer's share, and returns its end; ``noted`` is what else is known of the step, with
    ``backward_end``, the stamp of its compute lane's end.
    """

    clock: Clock = Clock()
    parameters: Callable[[], Iterable[nn.Parameter]]
    loss: Callable[[Any], Tensor]
    finish: Callable[[Stamp], Stamp]
    noted: Callable[[], dict[str, Any]]

    def start(self) -> Stamp:
        """Here, at the common start of all ranks."""
        self.clock.settle()
        sleep_until(common_start())
        return self.clock.stamp()

    def begin_backward(self, loss: Tensor, *, is_last: bool, recorded: bool) -> Stamp:
        """A backward starts: the step's last, and one whose recorded times have its additions in them."""
        return self.clock.stamp()

    def end_backward(self) -> Stamp:
        """Backward has returned: all gradients are available."""
        return self.clock.stamp()


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
    *,
    accumulation_steps: int = 1,
    set_to_none: bool = True,
    at_start: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """One step from a common start, at which ``at_start`` is called; times in ns.

    Of ``accumulation_steps`` micro-batches all but the last run under ``no_sync`` (A3.12). Gradients are
    cleared before the step starts, ``set_to_none`` or zeroed: the time of that is part of no schedule. After
    it they go, so that all lanes of a rank hold one copy of them; without ``set_to_none`` what lies in
    buckets stays: it takes no memory, and another tensor in its place would be copied there next time.

    Returns:
        ``step`` (from the common start), ``backward_end`` (end of the compute lane) and ``sync_end``
        (gradients available), both from the start of the last micro-batch's backward, what ``work`` has
        noted, and with a recorder ``buckets``: [ready, launch, end] each, from the start of backward.
    """
    clear_gradients(work, set_to_none)
    if recorder is not None:
        recorder.rows.clear()
    start = work.start()
    at_start()
    for left in reversed(range(accumulation_steps)):
        with model.no_sync() if left else nullcontext():
            loss = work.loss(model)
            # Without set_to_none recorded backwards add, too (to zeros); with it only later ones do.
            recorded = left == accumulation_steps - 1 or not set_to_none
            backward = work.begin_backward(loss, is_last=not left, recorded=recorded)
            loss.backward()  # type: ignore[no-untyped-call]
        synchronised = work.end_backward()
    end = work.finish(synchronised)
    work.clock.settle()
    noted, between_ns = work.noted(), work.clock.between_ns
    if set_to_none or not getattr(model, "gradient_as_bucket_view", False):
        clear_gradients(work, set_to_none=True)
    row = {
        **noted,
        "step": between_ns(start, end),
        "backward_end": between_ns(backward, noted["backward_end"]),
        "sync_end": between_ns(backward, synchronised),
    }
    if recorder is not None:
        stamps = (recorder.rows[index] for index in sorted(recorder.rows))
        row["buckets"] = [[between_ns(backward, stamp) for stamp in one] for one in stamps]
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
