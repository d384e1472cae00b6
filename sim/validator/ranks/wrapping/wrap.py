"""A candidate's system around a module: DDP with its switches, or a system of A6 and A7."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sim.nouns.ddp_switches import HOOKS
from sim.systems.textbook import STYLES
from sim.validator.ranks.pacing.stepping import Manner
from sim.validator.ranks.textbook import build_system
from sim.validator.ranks.wrapping.injection import InjectedDataParallel

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
        accumulation_steps=int(settings.get("accumulation_steps", 1)),
        set_to_none=settings.get("set_to_none", True),
        environment=candidate["environment"],
    )


def adds_to_gradients(candidate: dict[str, Any]) -> bool:
    """Whether some backward of a candidate finds gradients that are there already, and adds to them."""
    manner = manner_of(candidate)
    return manner.accumulation_steps > 1 or not manner.set_to_none or candidate["policy"] == _ADDING


def build(
    module: nn.Module, ddp_kwargs: dict[str, Any], bucket_indices: list[list[int]] | None = None
) -> DistributedDataParallel:
    """DDP with the switches of an assignment; parameters are not broadcast.

    ``bucket_indices``, where given, are the Reducer's from iteration 1 on (B(ii)); otherwise stock DDP
    makes its own buckets from ``ddp_kwargs``.
    """
    if bucket_indices is not None:
        return InjectedDataParallel(module, bucket_indices, init_sync=False, **ddp_kwargs)
    return DistributedDataParallel(module, init_sync=False, **ddp_kwargs)


def observed_buckets(ddp: DistributedDataParallel) -> list[list[int]]:
    """The buckets that the C++ Reducer now holds, in launch order, by parameter index.

    Stock DDP holds its first iteration's until the second forward (A2.6). Costs a zeroed copy of every
    bucket for the moment of the call; a sparse gradient needs one backward before.
    """
    index = {id(parameter): place for place, (_, parameter) in enumerate(reduced_parameters(ddp.module))}
    buckets: Any = ddp.reducer._get_zeros_like_grad_buckets()
    return [[index[id(parameter)] for parameter in bucket.parameters()] for bucket in buckets]


def reduced_parameters(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """What DDP reduces of ``module``, in its order: what requires grad and is not to be ignored."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    return [(n, p) for n, p in module.named_parameters() if p.requires_grad and n not in ignored]
