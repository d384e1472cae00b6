"""DDP's communication hooks, torch's own, by the names that an assignment gives them (A3.17)."""

from importlib import import_module
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from sim.systems.hook_table import HOOKS

_FIRST_STEPS = 2  # with buckets that the Reducer has not rebuilt yet (A2.6), which PowerSGD must not see


def register_torch_hook(ddp: DistributedDataParallel, described: str | dict[str, Any]) -> None:
    """Register a hook by its name, or by ``{"name": "powerSGD", ...}`` with the numbers of its state.

    A warm-up is cut short: the hook all-reduces as usual in the first two steps, and compresses from the
    third.
    """
    numbers = {} if isinstance(described, str) else dict(described)
    kind = HOOKS[described if isinstance(described, str) else numbers.pop("name")]
    module = import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{kind.module}")
    state = None
    if kind.state:
        state = getattr(module, kind.state)(process_group=None, **numbers)
    if kind.warm_up:
        setattr(state, kind.counter, getattr(state, kind.warm_up) - _FIRST_STEPS)
    ddp.register_comm_hook(state, getattr(module, f"{kind.name}_hook"))
