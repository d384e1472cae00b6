"""A tuner that nobody calls: it steps at the start of each forward, which is between two steps as well."""

import os
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.loop import autotune
from sim.autotuner.unedited import options_from

_made = count()


def attach(ddp: DistributedDataParallel) -> None:
    """Tune ``ddp`` from its next forward on; the second of a process, and others, tell a folder of their own.

    A model that is evaluated without gradients takes no step. Once the tuning has ended nothing is left.
    """
    options = options_from(os.environ)
    number = next(_made)
    if number:
        options["live"] = str(Path(options["live"]) / f"model-{number}")
        options["cache"] = None
    tuner = autotune(ddp, **options)
    if tuner.result is not None:
        return

    handles: list[Any] = []

    def before_forward(*_: Any) -> None:
        if torch.is_grad_enabled():
            tuner.step()
        handles.pop().remove()
        if tuner.result is None:
            go_first()

    uncompiled: Any = torch.compiler.disable(before_forward)  # type: ignore[no-untyped-call]

    def go_first() -> None:
        """Ahead of whatever a recording has put there meanwhile."""
        handles.append(ddp.register_forward_pre_hook(uncompiled, prepend=True))

    go_first()
