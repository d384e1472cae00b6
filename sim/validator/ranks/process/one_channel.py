"""A process group over gloo that carries one collective at a time, as an NCCL communicator does."""

import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

_made: dict[tuple[tuple[int, ...], ...], Any] = {}


def one_channel(groups: Sequence[Sequence[int]] = ()) -> Any:
    """The group of all ranks, or of ``groups`` the one with this rank, with one worker thread.

    It is made once, by all ranks together; each rank is in one of ``groups``.
    """
    parts = tuple(map(tuple, groups)) or (tuple(range(dist.get_world_size())),)
    if parts not in _made:
        by_ranks = {part: dist.new_group(list(part), backend="gloo") for part in parts}
        ranks = next(part for part in parts if dist.get_rank() in part)
        group: Any = by_ranks[ranks]
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._threads = 1
        options._devices = [
            gloo.create_device(interface=interface) if interface else gloo.create_default_device()
        ]
        store = PrefixStore(f"one channel of {ranks}", dist.distributed_c10d._get_default_store())
        made = gloo(store, ranks.index(dist.get_rank()), len(ranks), options)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, made)
        _made[parts] = group
    return _made[parts]
