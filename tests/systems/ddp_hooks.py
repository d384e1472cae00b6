"""Registers DDP's communication hooks by name, for real runs."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[Tensor]]


def register(ddp: DistributedDataParallel, *, name: str, **state: Any) -> None:
    """Give ``ddp`` the hook of that name; ``state`` goes to ``PowerSGDState``."""
    group = dist.group.WORLD
    match name:
        case "noop":
            ddp.register_comm_hook(None, _noop)
        case "allreduce":
            ddp.register_comm_hook(group, default_hooks.allreduce_hook)
        case "fp16_compress":
            ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
        case "bf16_compress":
            ddp.register_comm_hook(group, default_hooks.bf16_compress_hook)
        case "fp16_wrapped_allreduce":
            ddp.register_comm_hook(group, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
        case "builtin_allreduce":
            ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
        case "builtin_fp16_compress":
            ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        case "power_sgd":
            _register_power_sgd(ddp, powerSGD_hook.powerSGD_hook, state)
        case "batched_power_sgd":
            _register_power_sgd(ddp, powerSGD_hook.batched_powerSGD_hook, state)
        case _:
            raise ValueError(f"no communication hook {name!r}")


def _noop(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _register_power_sgd(ddp: DistributedDataParallel, hook: Hook, state: dict[str, Any]) -> None:
    ddp.register_comm_hook(powerSGD_hook.PowerSGDState(dist.group.WORLD, **state), _awaited(hook))


def _awaited(hook: Hook) -> Hook:
    """The hook, which returns once all of its collectives are over.

    PowerSGD launches its second and third collective from callbacks of the first. Over NCCL these run at
    once, within the hook; over gloo they run in whichever thread is free, and with several buckets the ranks
    then launch in different orders and abort. Waiting gives NCCL's order.
    """

    def run(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return run
