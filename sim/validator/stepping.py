"""One paced step on this rank, and a common start for all ranks."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket

from sim.validator.pacing import PacedModule, sleep_until

_HEAD_START_NS = 2_000_000
_MAX_CLOCK_GAP_NS = 60 * 10**9


def common_start() -> int:
    """A time on the monotonic clock, a little ahead, that all ranks of this machine agree on."""
    agreed = torch.tensor([time.monotonic_ns() + _HEAD_START_NS])
    dist.broadcast(agreed, src=0)
    start = int(agreed.item())
    if abs(start - time.monotonic_ns()) > _MAX_CLOCK_GAP_NS:
        raise RuntimeError("the ranks' clocks are more than a minute apart; all must run on one machine")
    return start


def gather(row: Any, world_size: int) -> list[Any]:
    """The same row from every rank, on every rank."""
    rows: list[Any] = [None] * world_size
    dist.all_gather_object(rows, row)
    return rows


class Recorder:
    """A communication hook that all-reduces as DDP does and stamps each bucket's launch and end."""

    def __init__(self) -> None:
        self.rows: dict[int, list[int]] = {}

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Stamp ready (hook called), launch (all-reduce handed over) and end, on the monotonic clock."""
        row = self.rows[bucket.index()] = [time.monotonic_ns(), 0, 0]
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        row[1] = time.monotonic_ns()

        def done(finished: torch.futures.Future[Any]) -> torch.Tensor:
            row[2] = time.monotonic_ns()
            tensor: torch.Tensor = finished.value()[0]
            return tensor

        finished: torch.futures.Future[torch.Tensor] = future.then(done)
        return finished


def run_step(
    model: Callable[[torch.Tensor], torch.Tensor],
    module: PacedModule,
    optimizer_ns: int,
    recorder: Recorder | None = None,
) -> dict[str, Any]:
    """One paced step from a common start; times in ns.

    Returns ``step`` (from the common start), ``backward_end`` (end of the compute lane) and ``sync_end``
    (backward returned), both from the start of backward, ``gaps`` (processor time) between nodes, and with
    a recorder ``buckets``: [ready, launch, end] each, from the start of backward.
    """
    for parameter in module.parameters():
        parameter.grad = None
    carry = torch.zeros(1, requires_grad=True)
    if recorder is not None:
        recorder.rows.clear()
    start = common_start()
    sleep_until(start)
    module.forward_start_ns = start
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
        "gaps": schedule.gaps_ns,
    }
    if recorder is not None:
        row["buckets"] = [
            [stamp - schedule.start for stamp in recorder.rows[index]] for index in sorted(recorder.rows)
        ]
    return row


def set_baseline(modules: Sequence[PacedModule], plain: PacedModule, optimizer_ns: int, repeats: int) -> None:
    """Measure what lies between the nodes without DDP (median of ``repeats``) and tell every module."""
    gaps = []
    for _ in range(repeats):
        gaps.append(run_step(plain, plain, optimizer_ns)["gaps"])
    baseline = [sorted(column)[len(column) // 2] for column in zip(*gaps[1:], strict=True)]
    for module in modules:
        module.schedule.baseline_ns = baseline
