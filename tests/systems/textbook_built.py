"""Textbook systems around a module, with buckets that are cut here as they were published."""

from torch import nn

from sim.systems.textbook import STYLES, Style
from sim.validator.ranks.reducer import TextbookModule


def build_system(policy: str, module: nn.Module, cap_mb: float = 25) -> TextbookModule:
    """The system that ``policy`` names, with a cap of MiB."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return TextbookModule(module, STYLES[policy], _cut(trained, STYLES[policy], int(cap_mb * 2**20)))


def _cut(trained: list[nn.Parameter], style: Style, cap_bytes: int) -> list[list[int]]:
    """Walk from the last parameter to the first and close a bucket once ``cap_bytes`` are reached (A6.1).

    Every dtype and device has an open bucket of its own, except by the last parameter's hook (A7.5).
    Closed buckets come first, as they closed, then open ones as they were opened.
    """
    if not style.by_size:
        return [[index] for index in range(len(trained))]
    closed: list[list[int]] = []
    opened: dict[object, list[int]] = {}
    for index in reversed(range(len(trained))):
        key = None if style.by_last else (trained[index].dtype, trained[index].device)
        bucket = opened.setdefault(key, [])
        bucket.append(index)
        if sum(trained[one].nbytes for one in bucket) >= cap_bytes:
            closed.append(opened.pop(key))
    return [*closed, *opened.values()]
