"""Systems by the name of their policy, as ``sim.assign`` and a replay's job know them."""

from typing import Any

from torch import nn

from sim.errors import InputError
from sim.validator.ranks.systems.bucketed import AfterBackward, ArrivalCounted, FlatViews
from sim.validator.ranks.systems.buckets import Settings
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

    ``settings`` are the fields of ``Settings``, as JSON carries them. Raises ``InputError`` for a name or
    a setting that no system has.
    """
    if policy not in SYSTEMS:
        raise InputError(f"policy: {policy!r} is no system of this kind; give one of {', '.join(SYSTEMS)}")
    unknown = sorted(set(settings or {}) - {"bucket_cap_mb"})
    if unknown:
        raise InputError(f"settings: {unknown[0]!r} is not legal for {policy!r}; give bucket_cap_mb")
    return SYSTEMS[policy](module, Settings(**(settings or {})))
