"""One paced step on this rank, and a common start for all ranks."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from sim.recorder.clocks import Stamp
from sim.validator.ranks.common_clock import lead_ns
from sim.validator.ranks.pacing import PacedModule, sleep_until

_HEAD_START_NS = 2_000_000

Launch = Callable[[torch.Tensor], torch.futures.Future[list[torch.Tensor]]]


def common_start() -> int:
    """A moment a little ahead that all ranks agree on, on this rank's monotonic clock, ns."""
    lead = lead_ns()
    agreed = torch.tensor([time.monotonic_ns() + _HEAD_START_NS])
    dist.broadcast(agreed, src=0)
    return int(agreed.item()) + lead


def gather(row: Any, world_size: int) -> list[Any]:
    """The same row from every rank, on every rank."""
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
        divisor: what the sum is divided by, beforehand, as DDP does for an average. In a hook that is
            a pass over the bucket of its own, part of the probe's effect; 1: none.
        launch: starts the reduction of a bucket; an emulated link's takes its place.
        stamp_end: the clock in ``done``, where it is another than ``stamp``.
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


def run_step(
    model: Callable[[torch.Tensor], torch.Tensor],
    module: PacedModule,
    optimizer_ns: int,
    recorder: Recorder | None = None,
    at_start: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """One paced step from a common start, at which ``at_start`` is called; times in ns.

    Returns ``step`` (from the common start), ``backward_end`` (end of the compute lane) and ``sync_end``
    (backward returned), both from the start of backward, ``hooks`` (processor time of each
    AccumulateGrad with DDP's hook), and with a recorder ``buckets``: [ready, launch, end] each, from the
    start of backward.
    """
    for parameter in module.parameters():
        parameter.grad = None
    carry = torch.zeros(1, requires_grad=True)
    if recorder is not None:
        recorder.rows.clear()
    start = common_start()
    sleep_until(start)
    module.forward_start_ns = start
    if at_start is not None:
        at_start()
    loss = model(carry).sum()
    schedule = module.schedule
    schedule.begin()
    loss.backward()  # type: ignore[no-untyped-call]
    sync_end = time.monotonic_ns()
    end = sleep_until(sync_end + optimizer_ns)
    row: dict[str, Any] = {
        "step": end - start,
        "backward_end": schedule.ready_ns[-1],
        "sync_end": sync_end - schedule.start,
        "hooks": schedule.hooks_ns,
    }
    if recorder is not None:
        row["buckets"] = [
            [stamp - schedule.start for stamp in recorder.rows[index]] for index in sorted(recorder.rows)
        ]
    return row


def set_baseline(modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, repeats: int) -> None:
    """Count DDP's hooks in every module from now on, less what ``plain`` needs without DDP (median)."""
    for module in (plain, *modules):
        module.watch_hooks()
    hooks = [run_step(plain, plain, optimizer_ns)["hooks"] for _ in range(repeats)]
    baseline = [sorted(column)[len(column) // 2] for column in zip(*hooks[1:], strict=True)]
    for module in modules:
        module.schedule.baseline_ns = baseline
