"""An assignment on stock DistributedDataParallel, and the buckets that it really used."""

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def build(module: nn.Module, ddp_kwargs: dict[str, Any]) -> DistributedDataParallel:
    """Stock DDP with the switches of an assignment; parameters are not broadcast."""
    return DistributedDataParallel(module, init_sync=False, **ddp_kwargs)


def observed_buckets(ddp: DistributedDataParallel) -> list[list[int]]:
    """The rebuilt buckets that the Reducer uses, by parameter index; valid from the third forward (A4.4)."""
    data: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    text = str(data.get("rebuilt_per_bucket_param_indices", ""))
    return [[int(index) for index in bucket.split()] for bucket in text.split(",") if bucket.strip()]
