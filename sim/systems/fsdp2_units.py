"""Which modules make a unit under ``fully_shard`` and ``replicate``, and what a unit sends (A10.1)."""

import math
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sim.errors import InputError, NotModelledError
from sim.nouns.workload import Workload
from sim.systems.fsdp2_settings import BLOCKS, Fsdp2Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Parameters that are gathered and reduced together, by index; the root's are those of no other unit.

    ``numel`` is what one all-gather or reduce-scatter of it moves: each parameter is padded along its first
    dimension to a multiple of the ranks that share it.
    """

    name: str
    indices: tuple[int, ...]
    dtype: str
    numel: int
    is_root: bool


def cut_units(workload: Workload, settings: Fsdp2Settings, policy: str, ranks: int) -> tuple[Unit, ...]:
    """The units of a model whose parameters are each cut over ``ranks``: the root first, then as declared.

    Raises:
        InputError: a name that no module of the workload has, or that lies within another unit.
        NotModelledError: parameters of several dtypes in a unit, which torch refuses.
    """
    unit_of = {
        module: "+".join(group) for group in _groups(workload, settings.units, policy) for module in group
    }
    members: dict[str, list[int]] = {"": []}
    for gradient in workload.gradients:
        home = next((unit_of[module] for module in _around(gradient.name) if module in unit_of), "")
        members.setdefault(home, []).append(gradient.index)
    return tuple(
        _unit(workload, policy, name, indices, ranks) for name, indices in members.items() if indices
    )


def _unit(workload: Workload, policy: str, name: str, indices: list[int], ranks: int) -> Unit:
    dtypes = sorted({workload.gradients[index].dtype for index in indices})
    if len(dtypes) > 1:
        raise NotModelledError(
            f"{policy}: unit {name or 'root'!r} holds parameters of {', '.join(dtypes)}; torch takes one"
        )
    return Unit(
        name=name,
        indices=tuple(indices),
        dtype=dtypes[0],
        numel=sum(_padded(workload, index, ranks) for index in indices),
        is_root=not name,
    )


def _padded(workload: Workload, index: int, ranks: int) -> int:
    """Elements with padding; a shape that is not the gradient's is taken for one dimension."""
    gradient = workload.gradients[index]
    elements = gradient.elements
    shape = gradient.shape if gradient.shape and math.prod(gradient.shape) == elements else (elements,)
    return -(-shape[0] // ranks) * ranks * math.prod(shape[1:])


def module_names(workload: Workload) -> tuple[str, ...]:
    """Every module that holds a parameter, itself or through others, as declared; not the root."""
    found: dict[str, None] = {}
    for gradient in workload.gradients:
        found.update(dict.fromkeys(_around(gradient.name)))
    return tuple(found)


def blocks_of(workload: Workload) -> tuple[str, ...]:
    """Modules that are numbered in a list, the outermost ones: what is usually wrapped."""
    names = dict.fromkeys(name for name in module_names(workload) if name.rpartition(".")[2].isdigit())
    return tuple(name for name in names if not any(other in names for other in _around(name)))


def _groups(workload: Workload, units: str, policy: str) -> list[tuple[str, ...]]:
    """Modules of each unit but the root, from what ``units`` names."""
    names = module_names(workload)
    known = set(names)
    groups: list[tuple[str, ...]] = []
    for word in filter(None, map(str.strip, units.split(","))):
        if word == BLOCKS:
            groups += [(name,) for name in blocks_of(workload)]
            continue
        parts = [
            [part] if part in known else [name for name in names if _matches(name, part)]
            for part in word.split("+")
        ]
        for part, found in zip(word.split("+"), parts, strict=True):
            if not found:
                raise InputError(
                    f"{policy}: units={part!r} names no module of workload {workload.name!r}; give names "
                    f"such as {', '.join(names[:3]) or 'none: its gradients have no modules'}"
                )
        if len(parts) == 1:
            groups += [(name,) for name in parts[0]]
        else:
            groups.append(tuple(name for found in parts for name in found))
    given = Counter(name for group in groups for name in group)
    for name, times in given.items():
        if times > 1 or any(other in given for other in _around(name)):
            raise InputError(
                f"{policy}: units={name!r} is not legal; it is given twice, or lies within another unit"
            )
    return groups


def _around(name: str) -> list[str]:
    """The modules that hold a module or parameter, the outermost first."""
    return [name[:end] for end, letter in enumerate(name) if letter == "."]


def _matches(name: str, pattern: str) -> bool:
    """Whether ``name`` matches as by fnmatch, part by part: a star matches no dot."""
    ours, theirs = name.split("."), pattern.split(".")
    return len(ours) == len(theirs) and all(fnmatchcase(a, b) for a, b in zip(ours, theirs, strict=True))
