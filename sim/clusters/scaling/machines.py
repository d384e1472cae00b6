"""The machines of a scaling view: one preset or cluster, with its hosts and settings varied."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from sim.clusters.extrapolation.other_cluster import extrapolate_hardware
from sim.clusters.nccl.computed import hardware_of
from sim.clusters.nccl.fabric import fabric_of
from sim.clusters.scaling.carried import Carried, with_local
from sim.clusters.scaling.sizes import Size, sized
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware

Measured = Sequence[tuple[Cluster, Hardware]]
Jobs = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedMachine:
    """One machine: a cluster with its placement, and where the times of its collectives come from.

    ``name`` is the preset's or the cluster's; ``settings``: those that were varied, as text. ``beside``: the
    ranks of each other job. ``measured``: clusters of this kind with their measured hardware; if there are
    none, times are computed. ``local``: the hardware whose copies, launches and slow-downs these then have.
    """

    name: str
    settings: str
    cluster: Cluster
    beside: tuple[tuple[str, ...], ...] = ()
    measured: tuple[tuple[Cluster, Hardware], ...] = ()
    local: Hardware | None = None

    @property
    def series(self) -> tuple[str, str]:
        """Name and settings, which machines have in common that differ only in their size."""
        return self.name, self.settings

    def carried(self) -> Carried:
        """Its hardware, computed or measured. Raises as ``fabric_of`` and ``extrapolate_hardware``."""
        fabric = fabric_of(self.cluster, beside=self.beside)
        name = f"{self.name}, {fabric.world_size} ranks"
        if not self.measured:
            hardware = with_local(hardware_of(fabric, name), self.local)
            return Carried(fabric=fabric, hardware=hardware, source="computed")
        hardware = extrapolate_hardware(self.measured, self.cluster, name)
        return Carried(fabric=fabric, hardware=hardware, source="measured")


def make_machines(
    machine: str | Cluster,
    *,
    hosts: Sequence[int] | None,
    world_size: Sequence[int] | None,
    settings: Mapping[str, Sequence[Any]],
    beside: Jobs,
    measured: Measured,
    local: Hardware | None,
    max_rows: int,
) -> tuple[SizedMachine, ...]:
    """One machine for each combination of ``settings``, in their order, and each size: see ``sim.scaling``.

    Raises:
        InputError: a name, a setting or a size that is not legal or occurs twice, or more than ``max_rows``.
    """
    if hosts is not None and world_size is not None:
        raise InputError("world_size: not legal with hosts; give one of them")
    sizes: list[Size] = [Size()]
    if hosts is not None:
        sizes = [Size(hosts=count) for count in _axis("hosts", hosts)]
    elif world_size is not None:
        sizes = [Size(world_size=count) for count in _axis("world_size", world_size)]
    if beside and measured:
        raise InputError(
            "beside: not legal with measured; what other jobs take is computed, so leave one out"
        )
    if local is not None and measured:
        raise InputError("local: not legal with measured, which says what a host costs; leave one out")
    axes = {key: _axis(key, values) for key, values in settings.items()}
    rows = math.prod(map(len, axes.values())) * len(sizes)
    if rows > max_rows:
        raise InputError(
            f"scaling: {rows} rows are more than {max_rows}; give fewer settings or sizes, or max_rows={rows}"
        )
    jobs = tuple(map(tuple, beside))
    made = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        made += [
            SizedMachine(
                name=machine if isinstance(machine, str) else machine.name,
                settings=", ".join(f"{key}={_word(value)}" for key, value in chosen.items()),
                cluster=sized(machine, chosen, size, is_fixed=bool(jobs)),
                beside=jobs,
                measured=tuple(measured),
                local=local,
            )
            for size in sizes
        ]
    return tuple(made)


def _axis(name: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name}: {values!r} is not legal; give a sequence of values, such as [{values!r}]")
    made: list[Any] = []
    for value in values:
        if value in made:
            raise InputError(f"{name}: {value!r} occurs twice; each value may occur once")
        made.append(value)
    if not made:
        raise InputError(f"{name}: an empty axis is not legal; give at least one value")
    return made


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
