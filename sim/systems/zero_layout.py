"""Where ZeRO puts parameters: flat groups, cut into one partition a rank (A5.1, A5.10, A8.8)."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from sim.errors import InputError, NotModelledError
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.zero_settings import ZeroSettings

_ALIGNMENT_BYTES = 16


class ProcessGroup(NamedTuple):
    """Rank 0's group for reductions: ranks 0, ``stride``, 2 ``stride`` and on. ``ep_size`` 0: all ranks."""

    ep_size: int
    world_size: int
    stride: int


class Slice(NamedTuple):
    """A part of one gradient in one rank's partition, in elements."""

    owner: int
    elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGroup:
    """One optimizer group, flattened, padded and cut into equal partitions; all in elements.

    ``offsets`` and ``sizes`` are those of its gradients, by index.
    """

    processes: ProcessGroup
    offsets: dict[int, int]
    sizes: dict[int, int]
    elements: int

    @property
    def partition_elements(self) -> int:
        """How many elements one rank owns."""
        return self.elements // self.processes.world_size

    def slices(self, index: int) -> tuple[Slice, ...]:
        """The parts of a gradient, by owner; a gradient may straddle partitions (A5.1)."""
        size, begin = self.partition_elements, self.offsets[index]
        end = begin + self.sizes[index]
        return tuple(
            Slice(owner, min(end, (owner + 1) * size) - max(begin, owner * size))
            for owner in range(begin // size, (end - 1) // size + 1)
        )


def lay_out(workload: Workload, settings: ZeroSettings, world_size: int) -> dict[int, FlatGroup]:
    """The flat groups of a job of ``world_size`` ranks, by optimizer group, in order.

    Parameters without elements are left out. Every group is padded to a multiple of 2 x its ranks.

    Raises:
        NotModelledError: a group with nothing to optimise, on which DeepSpeed stops.
        InputError: an expert group that does not exist, or whose ep_size does not divide the world size.
    """
    numbers = sorted({gradient.group for gradient in workload.gradients})
    for number, ep_size in settings.expert_groups.items():
        if number not in numbers:
            raise InputError(f"expert_groups: there is no optimizer group {number}; legal: {numbers}")
        if world_size % ep_size:
            raise InputError(
                f"expert_groups: ep_size {ep_size} is not legal; it must divide the world size, {world_size}"
            )
    return {number: _flatten(workload, settings, world_size, number) for number in numbers}


def _flatten(workload: Workload, settings: ZeroSettings, world_size: int, number: int) -> FlatGroup:
    members = [
        gradient.index for gradient in workload.gradients if gradient.group == number and gradient.elements
    ]
    if not members:
        raise NotModelledError(
            f"workload {workload.name!r}: optimizer group {number} has no elements; DeepSpeed stops on it"
        )
    ep_size = settings.expert_groups.get(number, 0)
    stride = max(ep_size, 1)
    processes = ProcessGroup(ep_size, world_size // stride, stride)
    if settings.round_robin_gradients:
        members = [
            index for place in range(processes.world_size) for index in members[place :: processes.world_size]
        ]
    unit = 1
    if settings.parameter_alignment:
        unit = _ALIGNMENT_BYTES // math.gcd(_ALIGNMENT_BYTES, DTYPE_BYTES[settings.dtype])
    offsets, sizes, end = {}, {}, 0
    for index in members:
        offsets[index] = -(-end // unit) * unit
        sizes[index] = workload.gradients[index].elements
        end = offsets[index] + sizes[index]
    alignment = 2 * processes.world_size
    return FlatGroup(
        processes=processes, offsets=offsets, sizes=sizes, elements=-(-end // alignment) * alignment
    )
