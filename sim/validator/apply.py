"""An assignment on stock DistributedDataParallel, and the buckets that it really used."""

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(
    module: nn.Module, ddp_kwargs: dict[str, Any], first_bucket_bytes: int | None
) -> DistributedDataParallel:
    """Stock DDP with the switches of an assignment; ``first_bucket_bytes`` is set only while it is built."""
    before = dist._DEFAULT_FIRST_BUCKET_BYTES
    try:
        if first_bucket_bytes is not None:
            dist._DEFAULT_FIRST_BUCKET_BYTES = first_bucket_bytes
        return DistributedDataParallel(module, init_sync=False, **ddp_kwargs)
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = before


def observed_buckets(ddp: DistributedDataParallel) -> list[list[int]]:
    """The rebuilt buckets that the Reducer uses, by parameter index; valid from the third forward (A4.4)."""
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [[int(index) for index in bucket.split()] for bucket in str(text).split(",") if bucket.strip()]
