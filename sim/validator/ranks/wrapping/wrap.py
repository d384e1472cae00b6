"""A candidate's system around a module: DDP with its switches, or a system of A6 and A7."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn

from sim.nouns.ddp_switches import HOOKS
from sim.systems.textbook import STYLES
from sim.validator.ranks.pacing.replay_lane import Manner
from sim.validator.ranks.textbook import build_system
from sim.validator.ranks.wrapping.building import build, observed_buckets

_ADDING = "flat-views"  # its gradients are in place before backward, which adds to them (A7.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapped:
    """``model`` is called in place of the module; ``observe`` reads the buckets back that it really uses."""

    model: Any
    observe: Callable[[], list[list[int]]]


def stock_ddp(name: str) -> dict[str, Any]:
    """The candidate that is DDP without any switch."""
    return {
        "name": name,
        "policy": "ddp",
        "ddp_kwargs": {},
        "settings": {},
        "environment": {},
        "bucket_indices": None,
        "traced": False,
    }


def wrap(module: nn.Module, candidate: dict[str, Any]) -> Wrapped:
    """The system of a candidate as the job describes it, its communication hook registered."""
    settings = candidate["settings"]
    if candidate["policy"] in STYLES:
        system = build_system(candidate["policy"], module, settings)
        return Wrapped(model=system, observe=lambda: system.bucket_indices)
    ddp = build(module, candidate["ddp_kwargs"], candidate["bucket_indices"])
    if (name := settings.get("comm_hook")) is not None:
        hooks = import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{HOOKS[name].module}")
        ddp.register_comm_hook(None, getattr(hooks, f"{name}_hook"))
    return Wrapped(model=ddp, observe=partial(observed_buckets, ddp))


def manner_of(candidate: dict[str, Any]) -> Manner:
    """How a candidate's steps go."""
    settings = candidate["settings"]
    return Manner(
        accumulation_steps=settings.get("accumulation_steps", 1),
        set_to_none=settings.get("set_to_none", True),
        environment=candidate["environment"],
    )


def adds_to_gradients(candidate: dict[str, Any]) -> bool:
    """Whether some backward of a candidate finds gradients that are there already, and adds to them."""
    manner = manner_of(candidate)
    return manner.accumulation_steps > 1 or not manner.set_to_none or candidate["policy"] == _ADDING
