"""What ranks tell each other at a step boundary, so that all do the same. All ranks make every call."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Unison:
    """The ranks of ``ddp``'s process group, which all call the same methods in the same order."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._group = ddp.process_group
        self._device = ddp.device
        self.rank = dist.get_rank(self._group)
        self.world_size = self._group.size()

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that predicts and judges."""
        return self.rank == 0

    def first_reason(self, why: str | None) -> str | None:
        """The reason of the first rank that has one; None where none has."""
        count = torch.tensor([0 if why is None else 1], device=self._device)
        dist.all_reduce(count, group=self._group)
        if not int(count.item()):
            return None
        reasons: list[Any] = [None] * self.world_size
        dist.all_gather_object(reasons, why, group=self._group)
        rank, reason = next((rank, one) for rank, one in enumerate(reasons) if one is not None)
        return f"rank {rank}: {reason}" if any(one != reason for one in reasons) else reason

    def from_first(self, value: Any) -> Any:
        """The ``value`` that the first rank passed, on all ranks."""
        held = [value]
        dist.broadcast_object_list(held, group_src=0, group=self._group, device=self._device)
        return held[0]

    def gather(self, value: Any) -> list[Any]:
        """On the first rank the values of all ranks, by rank; on the others an empty list."""
        held: list[Any] = [None] * self.world_size if self.is_first else []
        dist.gather_object(value, held if self.is_first else None, group_dst=0, group=self._group)
        return held

    def slowest(self, times_ns: Sequence[int]) -> list[int]:
        """For each of the times its longest over all ranks."""
        return self._reduced(times_ns, dist.ReduceOp.MAX)

    def quickest(self, times_ns: Sequence[int]) -> list[int]:
        """For each of the times its shortest over all ranks."""
        return self._reduced(times_ns, dist.ReduceOp.MIN)

    def _reduced(self, times_ns: Sequence[int], operation: Any) -> list[int]:
        tensor = torch.tensor(list(times_ns), dtype=torch.int64, device=self._device)
        dist.all_reduce(tensor, operation, group=self._group)
        return [int(time) for time in tensor.tolist()]
