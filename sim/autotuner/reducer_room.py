"""Whether one more copy of the gradients fits: what a second Reducer, or the probe of the link, holds."""

from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sim.errors import MachineError
from sim.units import MIB, format_size

# Of a GPU left alone: NCCL allocates beside PyTorch, for algorithms that sizes of ours are the first to use.
# How much is known by a GPU only.
_FOR_NCCL = 512 * MIB


class Room:
    """The memory of ``ddp``'s device beside what its training takes.

    What PyTorch's allocator holds without using it between two steps is no room on a GPU: the activations of
    the next step lie there. Only what no step has used so far is.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._device = ddp.device
        self._copy = sum(p.numel() * p.element_size() for p in ddp.parameters() if p.requires_grad)
        self._peak = 0  # the most that the job itself had allocated at once
        self._ours = 0  # of what torch calls the peak, what may have been ours

    def look(self) -> None:
        """Between two steps: what the ones so far took at most. The job may start torch's count anew."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            if peak > torch.cuda.memory_allocated(self._device):  # else it was started anew just now
                self._peak = max(self._peak, peak - self._ours)

    def check(self) -> None:
        """Before a copy of the gradients is allocated.

        Raises:
            MachineError: this rank has no room for it beside its training.
        """
        self.look()
        free = self._free_bytes()
        if free is not None and self._copy > free:
            raise MachineError(
                f"memory: {format_size(max(0, free))} are free beside what a step takes, and a second "
                f"copy of the gradients takes {format_size(self._copy)} (memory=None does not look)"
            )
        self._ours = self._copy

    def _free_bytes(self) -> int | None:
        """Bytes that can be had for as long as training goes on; None where nobody says."""
        if self._device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self._device)
            never_used = torch.cuda.memory_reserved(self._device) - self._peak if self._peak else 0
            return free + max(0, never_used) - _FOR_NCCL if free >= _FOR_NCCL else 0
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        known = dict(line.split(":", 1) for line in lines)
        return int(known["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in known else None
