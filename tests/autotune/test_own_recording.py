"""Buckets under which nothing is reduced beside backward."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.own_recording import reduced_at_the_end


def test_the_first_bucket_waits_for_the_last_gradient(two_ranks: None) -> None:
    """The others, of another dtype, are launched behind it."""
    layers = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3).to(torch.bfloat16), nn.Linear(3, 1))
    ddp = DistributedDataParallel(layers)
    assert reduced_at_the_end(ddp, ((5, 4), (3,), (2,), (1, 0))) == [(5, 4, 1, 0), (3, 2)]
    assert reduced_at_the_end(ddp, ((5, 4, 1, 0), (3,), (2,))) == [(3, 2), (5, 4, 1, 0)]
