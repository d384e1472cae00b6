"""Buckets as textbook code makes them: cut once, by size, from the last parameter to the first."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Parameters whose gradients travel together; ``indices`` are theirs, in the order of the buffer."""

    number: int
    indices: tuple[int, ...]
    parameters: tuple[nn.Parameter, ...]

    def gradients(self) -> list[Tensor]:
        """The gradients as they are now; None, against the annotation, where one has not come yet."""
        return [parameter.grad for parameter in self.parameters]  # type: ignore[misc]

    def empty(self) -> Tensor:
        """A flat tensor of the bucket's size, dtype and device."""
        first = self.parameters[0]
        numel = sum(parameter.numel() for parameter in self.parameters)
        return torch.empty(numel, dtype=first.dtype, device=first.device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat``, one a parameter, in its shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        return [part.view(p.shape) for part, p in zip(parts, self.parameters, strict=True)]


def cut_reversed(parameters: Sequence[nn.Parameter], cap_bytes: int, *, keyed: bool) -> list[list[int]]:
    """Walk from the last parameter to the first and close a bucket once ``cap_bytes`` are reached (A6.1).

    Args:
        parameters: in ``module.parameters()`` order.
        cap_bytes: a bucket closes after the parameter with which it has this many bytes or more.
        keyed: keep an open bucket for each dtype and device; without, a bucket takes what comes (A7.5).

    Returns:
        Parameter indices by bucket: closed ones as they closed, then open ones as they were opened.
    """
    closed: list[list[int]] = []
    opened: dict[object, list[int]] = {}
    sizes: dict[object, int] = {}
    for index in reversed(range(len(parameters))):
        parameter = parameters[index]
        key = (parameter.dtype, parameter.device) if keyed else None
        opened.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + parameter.nbytes
        if sizes[key] >= cap_bytes:
            closed.append(opened.pop(key))
            del sizes[key]
    return [*closed, *opened.values()]
