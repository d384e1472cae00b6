"""A lane: one thing that a replay runs once in every round."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """The plain backward, DDP without communication (noop), or a candidate (stock or traced).

    ``step`` runs one step and returns its times in ns: ``step`` from a common start, ``backward_end`` and
    ``sync_end`` from the start of backward, and in a traced lane ``buckets``. ``ddp`` is None in the plain
    lane.
    """

    name: str
    step: Callable[[], dict[str, Any]]
    ddp: DistributedDataParallel | None = None
    is_traced: bool = False
