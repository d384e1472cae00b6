"""Which DistributedDataParallel can be given other buckets while it trains, and why another cannot."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import Logger, Reducer
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.parallel import DistributedDataParallel

from sim.errors import InputError, NotModelledError
from sim.recorder.tap import ddp_log
from sim.validator.ranks.wrapping.injection import missing_for_injection

# Names of torch's own that a change of buckets uses; a torch without one of these is refused.
_OF_REDUCER = ("_remove_autograd_hooks", "_set_static_graph")
_OF_LOGGER = ("_set_comm_hook_name", "_set_static_graph")
_OF_DDP = (
    "_build_debug_param_to_name_mapping",
    "_build_params_for_reducer",
    "_comm_hooks",
    "_delay_all_reduce_all_params",
    "_delay_all_reduce_params",
    "_has_rebuilt_buckets",
    "_join_config",
    "_use_python_reducer",
    "is_multi_device_module",
    "mixed_precision",
    "parameters_to_ignore",
    "skip_all_reduce_unused_params",
)

SAFE_HOOKS = (allreduce_hook, fp16_compress_hook, bf16_compress_hook)  # they keep nothing between steps


def unwrapped(module: object) -> DistributedDataParallel:
    """The DistributedDataParallel in ``module``, which may be ``torch.compile``'s or Fabric's.

    Raises:
        InputError: not a module. NotModelledError: a module that is trained without DDP's buckets.
    """
    inner = module
    for within in ("_forward_module", "_orig_mod"):  # Fabric's, then torch.compile's
        inner = getattr(inner, within, inner)
    if isinstance(inner, DistributedDataParallel):
        return inner
    if not isinstance(inner, nn.Module):
        raise InputError(f"ddp: a {type(inner).__name__} is not legal; give a DistributedDataParallel")
    raise NotModelledError(f"ddp: a {type(inner).__name__} has no buckets of DistributedDataParallel")


def check_switchable(ddp: DistributedDataParallel) -> None:
    """Raise ``NotModelledError`` with the reason where the buckets of ``ddp`` are not safe to change."""
    if missing := _missing_for_switch(ddp):
        raise NotModelledError(f"torch {torch.__version__}: it has no {', '.join(missing)}")
    check_even(ddp)
    for name, (is_on, why) in _modes(ddp).items():
        if is_on:
            raise NotModelledError(f"{name}: {why}")
    for hook, _ in ddp._comm_hooks:
        if hook not in SAFE_HOOKS:
            known = ", ".join(one.__name__ for one in SAFE_HOOKS)
            raise NotModelledError(
                f"comm_hook: {getattr(hook, '__qualname__', hook)} may keep state by bucket; known to keep "
                f"none are {known}"
            )
    if not ddp._comm_hooks and (builtin := ddp_log(ddp).get("comm_hook")):
        raise NotModelledError(f"comm_hook: {builtin} is built in and cannot be given to another Reducer")


def _missing_for_switch(ddp: DistributedDataParallel) -> list[str]:
    """Names that a change of buckets needs and this torch lacks; empty where it works."""
    return [
        *missing_for_injection(),
        *(() if dist.is_gloo_available() else ("gloo",)),
        *(f"Reducer.{name}" for name in _OF_REDUCER if not hasattr(Reducer, name)),
        *(f"Logger.{name}" for name in _OF_LOGGER if not hasattr(Logger, name)),
        *(f"DistributedDataParallel.{name}" for name in _OF_DDP if not hasattr(ddp, name)),
    ]


def check_even(ddp: DistributedDataParallel) -> None:
    """Raise ``NotModelledError`` under ``join()``, where ranks make different numbers of steps."""
    if ddp._join_config.enable:
        raise NotModelledError("join: a rank that ran out of inputs makes no further steps")


def _modes(ddp: Any) -> dict[str, tuple[bool, str]]:
    """By name, each mode that makes other buckets unsafe or useless: whether it is on, and why it does."""
    parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
    return {
        "world_size": (ddp.process_group.size() < 2, "one rank reduces nothing"),
        "device": (
            ddp.is_multi_device_module or ddp.device.type not in ("cpu", "cuda"),
            f"{ddp.device}: the model must lie on the CPU or on one GPU",
        ),
        "optimize_ddp": (ddp._use_python_reducer, "'python_reducer' has no Reducer"),
        "mixed_precision": (
            ddp.mixed_precision is not None,
            "its hooks belong to the Reducer that it began with",
        ),
        "delay_all_reduce_named_params": (
            bool(ddp._delay_all_reduce_params) or ddp._delay_all_reduce_all_params,
            "takes parameters out of the buckets",
        ),
        "_ddp_params_and_buffers_to_ignore": (
            bool(ddp.parameters_to_ignore),
            "takes parameters out of the buckets",
        ),
        "skip_all_reduce_unused_params": (
            ddp.skip_all_reduce_unused_params,
            "buckets that no rank uses are left out, which was never tried with other buckets",
        ),
        "optimizer in backward": (
            any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters),
            "it steps as soon as a bucket has been reduced",
        ),
        "sparse": (
            any(
                isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
                for module in ddp.module.modules()
            ),
            "an embedding has sparse gradients, whose size changes from step to step",
        ),
        "complex": (any(parameter.is_complex() for parameter in parameters), "gradients of complex numbers"),
        "TORCH_DISTRIBUTED_DEBUG": (
            os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL",
            "DETAIL adds collectives to every step",
        ),
        "reducer": (
            type(ddp.reducer) is not Reducer,
            f"the buckets of this {type(ddp).__name__} were given to it already",
        ),
    }
