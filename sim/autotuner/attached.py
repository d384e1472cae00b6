"""A tuner that nobody calls: it steps at the start of each forward, which is between two steps as well."""

from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.boundary import OwnHook
from sim.autotuner.loop import autotune

_made = count()


def attach(ddp: DistributedDataParallel, options: dict[str, Any]) -> None:
    """Tune ``ddp`` from its next forward on, with the ``options`` of ``sim.autotune``.

    Only the first of a process, where it is on all ranks, has the cache and tells ``live`` itself; others
    tell a folder in it. A model that is evaluated without gradients takes no step. Once the tuning has ended
    nothing is left.
    """
    tuner = autotune(ddp, **_of_its_own(ddp, next(_made), options))
    if tuner.result is not None:
        return

    handles: list[Any] = []

    def before_forward(module: torch.nn.Module, *_: Any) -> None:
        if module is not ddp or not handles:
            return
        if torch.is_grad_enabled():
            tuner.step()
        handles.pop().remove()
        if tuner.result is None:
            go_first()

    uncompiled: Any = torch.compiler.disable(before_forward)  # type: ignore[no-untyped-call]
    hook = OwnHook(uncompiled)

    def go_first() -> None:
        """Ahead of whatever a recording has put there meanwhile."""
        handles.append(ddp.register_forward_pre_hook(hook, prepend=True))

    go_first()


def _of_its_own(ddp: DistributedDataParallel, number: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options for a process's model of this number; nothing is told where ``live`` is not there."""
    live, cache = Path(options["live"]), options["cache"]
    is_whole = ddp.process_group.size() == dist.get_world_size()
    place = live
    if not is_whole:
        place = live / f"model-{number}-rank-{dist.get_rank()}"
    elif number:
        place = live / f"model-{number}"
    return {"live": place if live.is_dir() else None, "cache": cache if place == live else None}
