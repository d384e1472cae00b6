"""What tensors are: names of dtypes, bytes, whether torch.compile made them, those in a model's arguments."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
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


def is_compiled(output: Any) -> bool:
    """Whether torch.compile made a backward that leads to one of these tensors."""
    found = [tensor.grad_fn for tensor in tensors_in(output)]
    seen = set(found)
    while found:
        if (node := found.pop()) is None:
            continue
        if node.name() == "CompiledFunctionBackward":
            return True
        later = {after for after, _ in node.next_functions} - seen
        seen |= later
        found += later
    return False


def without_wrapper(parameters: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows of a name and facts, named within the module that holds all: a wrapper may add a loss to it."""
    paths = [str(name).split(".") for name, *_ in parameters]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    return [[path[shared:], *row[1:]] for path, row in zip(paths, parameters, strict=True)]
