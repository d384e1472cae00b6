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

    @torch.compiler.disable
    def before_forward(*_: Any) -> None:
        nonlocal handle
        if torch.is_grad_enabled():
            tuner.step()
        handle.remove()
        if tuner.result is None:  # ahead of whatever a recording has put there meanwhile
            handle = ddp.register_forward_pre_hook(before_forward, prepend=True)

    handle = ddp.register_forward_pre_hook(before_forward, prepend=True)
