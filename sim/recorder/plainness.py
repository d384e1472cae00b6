"""Whether a module is plain: not wrapped by, nor sharded for, another kind of parallel training."""

from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sim.errors import InputError

_WRAPPERS: dict[type, str] = {
    DistributedDataParallel: "is wrapped in DistributedDataParallel already; give the module inside it",
    DataParallel: "is wrapped in DataParallel; give the module inside it",
    FullyShardedDataParallel: "is sharded by FullyShardedDataParallel; FSDP has no buckets of DDP's kind",
    FSDPModule: "is sharded by fully_shard (FSDP2); it has no buckets of DDP's kind",
}


def check_plain_module(model: nn.Module) -> None:
    """Raise ``InputError`` where ``model``, or a part of it, is wrapped or sharded: DDP, FSDP, DTensor."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {type(model).__name__} is not legal; give a torch.nn.Module")
    for name, module in model.named_modules():
        for wrapper, words in _WRAPPERS.items():
            if isinstance(module, wrapper):
                where = f"model: module {name!r}" if name else "model:"
                raise InputError(f"{where} {words}")
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            raise InputError(
                f"model: parameter {name!r} is a DTensor (tensor parallel or sharded); its gradients are not "
                f"DDP's alone; give a module with plain parameters"
            )
