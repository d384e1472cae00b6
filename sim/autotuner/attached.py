"""A tuner that nobody calls: it steps at the start of each forward, which is between two steps as well."""

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.loop import Autotune, autotune
from sim.recorder.watch import OwnHook

_made = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached:
    """A tuner and the model that it is attached to, of which ``rank`` is this process's."""

    name: str
    world_size: int
    rank: int
    tuner: Autotune

    def __str__(self) -> str:
        return f"autotune of {self.name} on {self.world_size} rank(s): {self.tuner}"


def attach(ddp: DistributedDataParallel, live: Path | None = None, cache: Path | None = None) -> Attached:
    """Tune ``ddp`` from its next forward on, with these options of ``sim.autotune``.

    Only the first model of a process has the cache and writes to ``live`` itself, if all ranks share it;
    others write to a folder in ``live``. A forward without gradients is no step. Once the tuning has ended no
    hook is left.
    """
    tuner = autotune(ddp, **_of_its_own(ddp, next(_made), live, cache))
    group = ddp.process_group
    told = Attached(name=type(ddp.module).__name__, world_size=group.size(), rank=group.rank(), tuner=tuner)
    if tuner.result is not None:
        return told

    handles: list[Any] = []

    def before_forward(module: torch.nn.Module, *_: Any) -> None:
        if module is not ddp or not handles:
            return
        if torch.is_grad_enabled():
            tuner.step()
        handles.pop().remove()
        if tuner.result is None:
            go_first()

    hook = OwnHook(before_forward)

    def go_first() -> None:
        """Register the hook ahead of those that a recording has registered meanwhile."""
        handles.append(ddp.register_forward_pre_hook(hook, prepend=True))

    go_first()
    return told


def _of_its_own(
    ddp: DistributedDataParallel, number: int, live: Path | None, cache: Path | None
) -> dict[str, Any]:
    """The options for a process's model of this number."""
    place = f"model-{number}" if number else ""
    if ddp.process_group.size() != dist.get_world_size():
        place = f"model-{number}-rank-{dist.get_rank()}"
    return {"live": None if live is None else live / place, "cache": None if place else cache}
