"""How far this rank's clock is ahead of rank 0's, so that ranks on several machines start a step together."""

import time
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PINGS = 30


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
        dist.barrier()
        sent = torch.tensor([time.monotonic_ns()])
        dist.broadcast(sent, src=0)
        leads.append(time.monotonic_ns() - int(sent.item()))
    return 0 if dist.get_rank() == 0 else min(leads)
