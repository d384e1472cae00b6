"""The nodes of an execution trace, whichever schema wrote them."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.errors import InputError
from sim.importer.dtypes import tensor_bytes, torch_dtype

_COLLECTIVE = re.compile(r"(?:nccl|rccl|gloo|mpi|ucc|xccl|hccl):(\w+)")
UNDEFINED = "nullptr"  # a tensor that is none: an undefined gradient
PROCESS_GROUPS = "## process_group:init ##"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRow:
    """One dense tensor among the inputs of a node; ranks that differ in the device alone are alike."""

    shape: tuple[int, ...]
    dtype: str
    device: str = field(compare=False)
    num_elements: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One operator call: ``values``, ``shapes`` and ``types`` of its inputs as the trace has them."""

    number: int
    id: int
    name: str
    values: Sequence[Any]
    shapes: Sequence[Any]
    types: Sequence[Any]

    @property
    def collective(self) -> str | None:
        """What the communication library calls it, ``all_reduce``; None: no collective."""
        match = _COLLECTIVE.match(self.name)
        return match[1] if match else None

    def tensors(self, source: str) -> tuple[TensorRow, ...]:
        """The tensors among the inputs. Raises ``InputError`` where they are not as the schema has them."""
        return tuple(self._tensors(self.values, self.shapes, self.types, source))

    def _tensors(
        self, values: Sequence[Any], shapes: Sequence[Any], types: Sequence[Any], source: str
    ) -> Iterator[TensorRow]:
        for value, shape, kind in zip(values, shapes, types, strict=False):
            if not isinstance(kind, str):
                raise self._wrong(source, "types", kind)
            if kind.startswith("GenericList["):
                if not isinstance(value, list) or not isinstance(shape, list):
                    raise self._wrong(source, "inputs", value)
                inner = kind.removeprefix("GenericList[").removesuffix("]")
                yield from self._tensors(value, shape, inner.split(","), source)
            elif kind.startswith("Tensor(") and UNDEFINED not in kind:
                yield self._tensor(value, shape, kind.removeprefix("Tensor(").removesuffix(")"), source)

    def _tensor(self, value: Any, shape: Any, kind: str, source: str) -> TensorRow:
        if not isinstance(shape, list) or not all(type(n) is int and 0 <= n < 2**40 for n in shape):
            raise self._wrong(source, "shapes", shape)
        dtype = torch_dtype(kind)
        if dtype is None:
            raise self._wrong(source, "types", kind)
        if not isinstance(value, list) or len(value) < 6 or not isinstance(value[5], str):
            raise self._wrong(source, "inputs", value)
        num_bytes = tensor_bytes(shape, dtype)
        elements = num_bytes // tensor_bytes((), dtype)
        if num_bytes > 2**62 or value[3] != elements:
            raise self._wrong(source, "inputs", value)
        return TensorRow(
            shape=tuple(shape), dtype=dtype, device=value[5], num_elements=elements, num_bytes=num_bytes
        )

    def _wrong(self, source: str, field: str, value: Any) -> InputError:
        return InputError(
            f"{source}: nodes.{self.number} ({self.name!r}): {field}: {value!r:.60} is not legal; a tensor "
            f"is [id, storage, offset, elements, bytes an element, device] with a shape and a type "
            f"Tensor(dtype)"
        )


def read_nodes(document: Any, source: str) -> list[Node]:
    """All nodes in the order in which they began.

    Raises:
        InputError: no execution trace of schema 1.x.
    """
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise InputError(f"{source}: no list of 'nodes'; give an execution trace of ExecutionTraceObserver")
    schema = document.get("schema")
    if not isinstance(schema, str) or not schema.startswith("1."):
        raise InputError(f"{source}: schema: {str(schema)[:40]!r} is not legal; 1.0 and 1.1 are read")
    nodes = [_node(number, node, source) for number, node in enumerate(document["nodes"])]
    return sorted(nodes, key=lambda node: node.id)


def _node(number: int, node: Any, source: str) -> Node:
    if not isinstance(node, dict):
        raise InputError(f"{source}: nodes.{number}: not an object")
    name, node_id, inputs = node.get("name"), node.get("id"), node.get("inputs", [])
    if not isinstance(name, str) or type(node_id) is not int:
        raise InputError(f"{source}: nodes.{number}: 'name' (text) and 'id' (an integer) are required")
    if isinstance(inputs, dict):
        parts = [inputs.get(part, []) for part in ("values", "shapes", "types")]
    else:
        parts = [inputs, node.get("input_shapes", []), node.get("input_types", [])]
    if not all(isinstance(part, list) for part in parts):
        raise InputError(f"{source}: nodes.{number} ({name!r}): inputs, shapes and types must be lists")
    return Node(number=number, id=node_id, name=name, values=parts[0], shapes=parts[1], types=parts[2])


def world_size_of(nodes: Sequence[Node], source: str) -> int | None:
    """The size of the largest process group; None where the trace names none."""
    sizes: list[int] = []
    for node in nodes:
        if node.name != PROCESS_GROUPS:
            continue
        for value in node.values:
            if isinstance(value, str):
                sizes.extend(_group_sizes(value, f"{source}: nodes.{node.number} ({node.name!r})"))
    return max(sizes, default=None)


def _group_sizes(text: str, source: str) -> list[int]:
    try:
        groups = json.loads(text)
    except ValueError:
        raise InputError(f"{source}: {text[:40]!r} is not JSON; it describes the process groups") from None
    if not isinstance(groups, list):
        raise InputError(f"{source}: {text[:40]!r} is not legal; give a list of process groups")
    sizes = [group.get("group_size") for group in groups if isinstance(group, dict)]
    return [size for size in sizes if type(size) is int and 1 <= size < 2**31]
