"""Whether one more copy of the gradients fits: what a second Reducer takes while it is tried."""

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sim.errors import MachineError
from sim.units import format_size


def check_memory(ddp: DistributedDataParallel) -> None:
    """Raise ``MachineError`` where this rank has no room for another copy of the gradients."""
    needed = sum(p.numel() * p.element_size() for p in ddp.parameters() if p.requires_grad)
    free = _free_bytes(ddp.device)
    if free is not None and needed > free:
        raise MachineError(
            f"memory: {format_size(free)} are free, and a second Reducer takes {format_size(needed)}, a "
            f"copy of the gradients (memory=None does not look)"
        )


def _free_bytes(device: torch.device) -> int | None:
    """Bytes that can be had now; None where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    known = dict(line.split(":", 1) for line in lines)
    return int(known["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in known else None
