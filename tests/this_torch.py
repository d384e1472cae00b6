"""What the torch that runs the tests takes: cases for a newer one are left out, and their tests skipped."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sim.nouns.ddp_switches import LIST_SINCE, ZERO_CAP_SINCE
from sim.systems.ddp_assignment import torch_needed

HERE = tuple(map(int, torch.__version__.split(".")[:2]))
HAS_BF16_HOOK = torch.version.cuda is not None and dist.is_nccl_available()  # over gloo as well


def takes(ddp_kwargs: Mapping[str, Any]) -> bool:
    """Whether this torch's DistributedDataParallel has all of these arguments and takes their values."""
    needed = [torch_needed(ddp_kwargs)]
    if "bucket_cap_mb_list" in ddp_kwargs:
        needed.append(LIST_SINCE)
    if ddp_kwargs.get("bucket_cap_mb") == 0:
        needed.append(ZERO_CAP_SINCE)
    return max(needed) <= HERE


class Ran(dict[Any, Any]):
    """What real ranks answered, by case; the test of a case that this torch does not take is skipped."""

    def __init__(self, answered: Mapping[Any, Any], asked: Iterable[Any]) -> None:
        super().__init__(answered)
        self._asked = set(asked)

    def __missing__(self, case: Any) -> Any:
        if case not in self._asked:
            raise KeyError(case)
        pytest.skip(f"torch {torch.__version__} does not take the arguments of {case!r}")
