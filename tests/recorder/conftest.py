"""A DistributedDataParallel of one rank, in this process."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    """A gloo process group of one rank; what uses it is dropped before it goes."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


@pytest.fixture
def ddp(one_rank: None) -> DistributedDataParallel:
    """A model of four parameters on one rank."""
    return DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1), nn.Flatten(0)))
