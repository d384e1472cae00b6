"""Systems by the name of their policy, as ``sim.assign`` and a replay's job know them."""

from typing import Any

from torch import nn

from sim.errors import InputError
from sim.nouns.ddp_switches import DEFAULT_BUCKET_CAP_BYTES
from sim.units import cap_bytes
from sim.validator.ranks.systems.bucketed import AfterBackward, ArrivalCounted, FlatViews
from sim.validator.ranks.systems.last_hook_buckets import LastHook, LastHookSafe
from sim.validator.ranks.systems.per_parameter import PerParameterAsync, PerParameterSync
from sim.validator.ranks.systems.reduced import ReducedModule

SYSTEMS: dict[str, type[ReducedModule]] = {
    "per-parameter-sync": PerParameterSync,
    "per-parameter-async": PerParameterAsync,
    "after-backward": AfterBackward,
    "arrival-counted": ArrivalCounted,
    "flat-views": FlatViews,
    "last-hook": LastHook,
    "last-hook-safe": LastHookSafe,
}


def build_system(policy: str, module: nn.Module, settings: dict[str, Any] | None = None) -> ReducedModule:
    """The system that ``policy`` names, around ``module``.

    Of ``settings`` only ``bucket_cap_mb`` is legal, in MiB (torch's name); without it, it is 25, as in DDP.
    Raises ``InputError`` for any other setting, and for a value that is no cap.
    """
    unknown = sorted(set(settings or {}) - {"bucket_cap_mb"})
    if unknown:
        raise InputError(f"settings: {unknown[0]!r} is not legal for {policy!r}; give bucket_cap_mb")
    cap_mb = (settings or {}).get("bucket_cap_mb")
    return SYSTEMS[policy](module, DEFAULT_BUCKET_CAP_BYTES if cap_mb is None else cap_bytes(cap_mb))
