"""What ZeRO flushes when, and what each flush and each step() sends (A5.2 to A5.11), without times."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sim.nouns.collective import CollectiveKind, Phase
from sim.nouns.workload import Workload
from sim.systems.zero_layout import FlatGroup, ProcessGroup, Slice
from sim.systems.zero_settings import ZeroSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """The bucket that is reduced at one moment: ``members`` in the order in which they were appended.

    ``gradient`` is the one whose arrival flushes it; None: what remains after backward.
    """

    members: tuple[int, ...]
    gradient: int | None

    @property
    def phase(self) -> Phase:
        """Where in the step it is flushed."""
        return "after backward" if self.gradient is None else "backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroMessage:
    """One collective of a flush: the parts of gradients that it carries; ``root`` is a global rank.

    Parts are whole gradients, owned by rank 0 by name only, where the bucket is not cut up by owner.
    """

    kind: CollectiveKind
    processes: ProcessGroup
    slices: tuple[Slice, ...]
    root: int | None = None

    @property
    def elements(self) -> int:
        """Elements that travel."""
        return sum(part.elements for part in self.slices)


def plan_flushes(workload: Workload, settings: ZeroSettings) -> tuple[Flush, ...]:
    """The flushes of one backward that reduces, in order (A5.2, A5.4, A5.9).

    A gradient that does not fit any more flushes what is there, and is appended. Stage 1 without
    ``overlap_comm`` walks parameters group by group after backward, not gradients as they arrive.
    """
    if settings.reduces_in_hooks:
        arrivals: Iterable[int] = workload.order()
    else:
        ready = [gradient for gradient in workload.gradients if gradient.ready_ns is not None]
        arrivals = [gradient.index for gradient in sorted(ready, key=lambda g: (g.group, g.index))]
    flushes: list[Flush] = []
    members: list[int] = []
    elements = 0
    for index in arrivals:
        size = workload.gradients[index].elements
        if size == 0:
            continue
        if members and elements + size > settings.reduce_bucket_size:
            trigger = index if settings.reduces_in_hooks else None
            flushes.append(Flush(members=tuple(members), gradient=trigger))
            members, elements = [], 0
        members.append(index)
        elements += size
    if members:
        flushes.append(Flush(members=tuple(members), gradient=None))
    return tuple(flushes)


def plan_messages(
    workload: Workload,
    flush: Flush,
    settings: ZeroSettings,
    groups: Mapping[int, FlatGroup],
    everyone: ProcessGroup,
) -> tuple[ZeroMessage, ...]:
    """The collectives of a flush, in order (A5.7, A8.8)."""
    if not settings.reduce_scatter or not settings.fills_buffers:
        whole = tuple(Slice(0, workload.gradients[index].elements) for index in flush.members)
        return (ZeroMessage(kind="all_reduce", processes=everyone, slices=whole),)
    destinations: dict[tuple[int | None, ProcessGroup], list[Slice]] = {}
    before: tuple[int, ProcessGroup] | None = None
    for index in flush.members:
        group = groups[workload.gradients[index].group]
        for part in group.slices(index):
            owner = None if settings.use_multi_rank_bucket_allreduce else part.owner
            parts = destinations.setdefault((owner, group.processes), [])
            # Neighbours of one owner are one slice, unless they are added to the partition one by one.
            if before == (part.owner, group.processes) and not settings.adds_to_partition:
                parts[-1] = Slice(part.owner, parts[-1].elements + part.elements)
            else:
                parts.append(part)
            before = (part.owner, group.processes)
    return tuple(
        ZeroMessage(
            kind="all_reduce" if owner is None else "reduce",
            processes=processes,
            slices=slices,
            root=None if owner is None else owner * processes.stride,
        )
        for (owner, processes), parts in destinations.items()
        for slices in _split(parts, settings.reduce_bucket_size)
    )


def _split(parts: list[Slice], size: int) -> Iterable[tuple[Slice, ...]]:
    """Parts, sent as soon as they are more than ``size`` elements together (A5.7)."""
    taken: list[Slice] = []
    elements = 0
    for part in parts:
        taken.append(part)
        elements += part.elements
        if elements > size:
            yield tuple(taken)
            taken, elements = [], 0
    if taken:
        yield tuple(taken)
