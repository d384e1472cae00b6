"""DDP's communication hooks, torch's own, by the names that an assignment gives them (A3.17)."""

from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

_HOOKS: dict[str, Callable[..., Any]] = {
    "allreduce": allreduce_hook,
    "bf16_compress": bf16_compress_hook,
    "fp16_compress": fp16_compress_hook,
    "noop": noop_hook,
    "powerSGD": powerSGD_hook,
}
_FIRST_STEPS = 2  # with buckets that the Reducer has not rebuilt yet (A2.6), which PowerSGD must not see


def register_torch_hook(ddp: DistributedDataParallel, described: str | dict[str, Any]) -> None:
    """Register a hook by its name, or by ``{"name": "powerSGD", ...}`` with numbers of ``PowerSGDState``.

    PowerSGD's warm-up is cut short: it sums everything in the first two steps, and compresses from the third.
    """
    numbers = {} if isinstance(described, str) else dict(described)
    name = described if isinstance(described, str) else numbers.pop("name")
    state = None
    if name == "powerSGD":
        state = PowerSGDState(process_group=None, **numbers)
        state.iter = state.start_powerSGD_iter - _FIRST_STEPS
    ddp.register_comm_hook(state, _HOOKS[name])
