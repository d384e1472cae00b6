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

    Only the first model of a process has the cache and writes to ``live`` itself, if all ranks share it;
    others write to a folder in ``live``. A forward without gradients is no step. Once the tuning has ended no
    hook is left.
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
        """Register the hook ahead of those that a recording has registered meanwhile."""
        handles.append(ddp.register_forward_pre_hook(hook, prepend=True))

    go_first()


def _of_its_own(ddp: DistributedDataParallel, number: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options for a process's model of this number; nothing is written if there is no folder ``live``."""
    live, cache = Path(options["live"]), options["cache"]
    is_whole = ddp.process_group.size() == dist.get_world_size()
    place = live
    if not is_whole:
        place = live / f"model-{number}-rank-{dist.get_rank()}"
    elif number:
        place = live / f"model-{number}"
    return {"live": place if live.is_dir() else None, "cache": cache if place == live else None}
