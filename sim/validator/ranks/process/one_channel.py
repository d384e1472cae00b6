"""A process group over gloo that carries one collective at a time, as an NCCL communicator does."""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

_made: list[Any] = []


def one_channel() -> Any:
    """The group of all ranks with one worker thread; made once, by all ranks together."""
    if not _made:
        ranks, rank = dist.get_world_size(), dist.get_rank()
        group = dist.new_group(list(range(ranks)), backend="gloo")
        interface = os.environ.get("GLOO_SOCKET_IFNAME")
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._threads = 1
        options._devices = [
            gloo.create_device(interface=interface) if interface else gloo.create_default_device()
        ]
        store = PrefixStore("one channel", dist.distributed_c10d._get_default_store())
        made = gloo(store, rank, ranks, options)
        group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, made)
        _made.append(group)
    return _made[0]
