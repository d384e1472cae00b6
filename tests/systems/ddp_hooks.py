"""Registers DDP's communication hooks by name, for real runs."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel


def register(ddp: DistributedDataParallel, *, name: str) -> None:
    """Give ``ddp`` the hook of that name."""
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
        case _:
            raise ValueError(f"no communication hook {name!r}")


def _noop(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
