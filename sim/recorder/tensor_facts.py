"""What tensors are: the names of their dtypes, their bytes, and those in a model's arguments."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor


def dtype_name(tensor: Tensor) -> str:
    """``"float32"``, without torch's name before it."""
    return str(tensor.dtype).removeprefix("torch.")


def bytes_by_dtype(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Bytes of tensors, by dtype in the order of their first."""
    totals: dict[str, int] = {}
    for tensor in tensors:
        dtype = dtype_name(tensor)
        totals[dtype] = totals.get(dtype, 0) + tensor.numel() * tensor.element_size()
    return totals


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in tuples, lists and mappings, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)
