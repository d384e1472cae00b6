"""An assignment on DistributedDataParallel, and the buckets that it really uses."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sim.validator.ranks.wrapping.injection import InjectedDataParallel


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
