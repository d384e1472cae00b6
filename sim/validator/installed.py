"""What the installed torch can do with buckets, backends and GPUs; no process group is started."""

from typing import Any

import torch
import torch.distributed as dist

from sim.units import format_size


def gpus_here() -> int:
    """How many GPUs torch sees; asks the driver, and takes none of their memory."""
    return torch.cuda.device_count()


def torch_facts() -> dict[str, Any]:
    """The backends, the GPUs, and what free ``bucket_indices`` lack, as a ``Diagnosis`` has them; takes some
    50 ms."""
    if not dist.is_available():
        return {"cuda": torch.version.cuda, "missing_for_injection": ("torch.distributed",)}
    from sim.validator.ranks.reducer import missing_for_injection  # there is no Reducer without it

    built = {"gloo": dist.is_gloo_available(), "nccl": dist.is_nccl_available()}
    cuda: Any = torch.cuda
    gpus = [cuda.get_device_properties(index) for index in range(gpus_here() if cuda.is_available() else 0)]
    return {
        "cuda": torch.version.cuda,
        "backends": tuple(name for name, is_built in built.items() if is_built),
        "nccl": ".".join(map(str, cuda.nccl.version())) if built["nccl"] else None,
        "gpus": tuple(f"{one.name}, {format_size(one.total_memory)}" for one in gpus),
        "missing_for_injection": tuple(missing_for_injection()),
    }
