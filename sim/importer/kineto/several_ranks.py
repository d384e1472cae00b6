"""Several ranks of one job: clocks laid over each other, how long transfers took, and who came last.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.errors import InputError
from sim.importer.imported import RankRow
from sim.importer.kineto.collectives import SeenCollective
from sim.importer.kineto.rank import SeenRank
from sim.importer.kineto.slowdowns import Transfer
from sim.importer.kineto.steps import SeenStep
from sim.units import median_ns

# Collectives in which every rank waits for data of every other, so that they end together.
_END_TOGETHER = ("all_reduce", "coalesced", "all_gather", "reduce_scatter")
# With so many in a step their ends tell the clocks step by step, and so their drift too.
_ENOUGH_FOR_A_STEP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedRanks:
    """Ranks on one clock.

    ``offsets_ns``: by step number and rank, what the rank's clock shows more than the first rank's.
    ``scatters_ns``: by rank, the largest distance of an aligned end from its collective's median.
    ``complete``: no rank of the group is missing.
    """

    ranks: tuple[SeenRank, ...]
    complete: bool
    offsets_ns: Mapping[int, tuple[int, ...]]
    scatters_ns: tuple[int, ...]
    transfers: tuple[Transfer, ...]


def group_size(ranks: Sequence[SeenRank]) -> int | None:
    """How many ranks reduce gradients together; None where the traces do not say."""
    told = {
        one.group_size
        for rank in ranks
        for step in rank.steps
        for one in step.reductions
        if one.group_size is not None
    }
    return told.pop() if len(told) == 1 else ranks[0].world_size


def align(
    ranks: Sequence[SeenRank], sizes: Mapping[int, Sequence[int | None]], world_size: int | None
) -> AlignedRanks:
    """Lay the ranks' clocks over each other by the ends of the collectives that reduce gradients.

    Where there are none, by other collectives of the same kinds and sizes.

    Args:
        ranks: of one job, at least one.
        sizes: by step number, the bytes of its reductions in launch order: only these steps are compared.
        world_size: how many ranks reduce together; None: unknown, and those given are taken for all.

    Raises:
        InputError: ranks that share no step, or did different things in it.
    """
    steps = [{step.number: step for step in rank.steps} for rank in ranks]
    common = sorted(set(sizes).intersection(*steps))
    if not common:
        raise InputError(
            f"{ranks[0].source}: shares no step with the other ranks' traces; give traces of the same steps"
        )
    rows = {number: _same(ranks, [of[number] for of in steps]) for number in common}
    if len(ranks) > 1 and not any(rows.values()):
        raise InputError(
            f"{ranks[0].source}: no collective of all ranks, which would tell their clocks apart"
        )
    ends = {
        number: np.array([[one.end_ns for one in row] for row in together], np.int64).reshape(-1, len(ranks))
        for number, together in rows.items()
    }
    overall = _medians(np.concatenate([*ends.values()]))
    offsets = {
        number: _medians(of_step) if len(of_step) >= _ENOUGH_FOR_A_STEP else overall
        for number, of_step in ends.items()
    }
    aligned = np.concatenate([of_step - offsets[number] for number, of_step in ends.items()])
    middles = np.array([median_ns(row) for row in aligned.tolist()], np.int64)[:, None]
    return AlignedRanks(
        ranks=tuple(ranks),
        complete=len(ranks) == world_size if world_size is not None else len(ranks) > 1,
        offsets_ns=offsets,
        scatters_ns=tuple(abs(aligned - middles).max(0, initial=0).tolist()),
        transfers=tuple(
            _transfer(number, place, sizes[number][place], [of[number] for of in steps], offsets[number])
            for number in common
            for place in range(len(sizes[number]))
        ),
    )


def _medians(ends: NDArray[np.int64]) -> tuple[int, ...]:
    """Each rank's clock minus the first's: the median over collectives (rows) of how much later it ends."""
    if not len(ends):
        return (0,) * len(ends.T)
    return tuple(median_ns(column) for column in (ends - ends[:, :1]).T.tolist())


def _same(ranks: Sequence[SeenRank], steps: Sequence[SeenStep]) -> list[list[SeenCollective]]:
    """The collectives of one step that all ranks took part in: a row each, a column a rank."""
    for rank, step in zip(ranks, steps, strict=True):
        if len(step.reductions) != len(steps[0].reductions):
            raise InputError(
                f"{rank.source}: step {step.number} has {len(step.reductions)} all-reduces of gradients, "
                f"that of {ranks[0].source} has {len(steps[0].reductions)}; give the traces of one job"
            )
        for place, (one, other) in enumerate(zip(step.reductions, steps[0].reductions, strict=True)):
            if None not in (one.num_elements, other.num_elements) and one.num_elements != other.num_elements:
                raise InputError(
                    f"{rank.source}: step {step.number}: all-reduce {place} has {one.num_elements} "
                    f"elements, that of {ranks[0].source} {other.num_elements}; give the traces of one job"
                )
    reduced = [list(row) for row in zip(*(step.reductions for step in steps), strict=True) if row[0].timed]
    return reduced or _others(steps)


def _others(steps: Sequence[SeenStep]) -> list[list[SeenCollective]]:
    """Other collectives that end together, kind by kind in the order of their starts, of equal sizes."""
    rows: list[list[SeenCollective]] = []
    for kind in _END_TOGETHER:
        columns = [
            sorted(
                (one for one in step.collectives if one.kind == kind and one.timed),
                key=lambda one: one.start_ns,
            )
            for step in steps
        ]
        same = [list(row) for row in zip(*columns, strict=False)]
        if len({len(column) for column in columns}) == 1:
            rows += [row for row in same if len({(one.num_elements, one.group) for one in row}) == 1]
    return rows


def _transfer(
    number: int, place: int, num_bytes: int | None, steps: Sequence[SeenStep], offsets: Sequence[int]
) -> Transfer:
    here = [step.reductions[place] for step in steps]
    starts = [one.start_ns - offset for one, offset in zip(here, offsets, strict=True)]
    ends = [one.end_ns - offset for one, offset in zip(here, offsets, strict=True)]
    shortest = min(range(len(here)), key=lambda rank: here[rank].duration_ns)
    kernel, step = here[shortest], steps[shortest]
    return Transfer(
        step=number,
        place=place,
        num_bytes=num_bytes,
        start_ns=max(starts),
        end_ns=median_ns(ends),
        duration_ns=kernel.duration_ns,
        waits_ns=tuple(max(starts) - start for start in starts),
        beside_ns=max(0, min(kernel.end_ns, step.backward_end_ns) - kernel.start_ns),
        is_shared=any(
            other is not kernel and other.start_ns < kernel.end_ns and kernel.start_ns < other.end_ns
            for other in step.collectives
        ),
        is_waitless=_was_queued(kernel, step)
        and (
            kernel.start_ns - _came_ns(kernel) >= kernel.duration_ns
            or kernel.start_ns >= step.backward_end_ns
        ),
        arrived_ns=tuple(
            None if _was_queued(one, step) else start
            for one, step, start in zip(here, steps, starts, strict=True)
        ),
    )


def _came_ns(one: SeenCollective) -> int:
    """When the rank came to the collective: it had launched it, and its lane had reached it."""
    return one.launched_ns if one.ready_ns is None else max(one.ready_ns, one.launched_ns)


def _was_queued(one: SeenCollective, step: SeenStep) -> bool:
    """Whether the rank came to the collective while another one still ran."""
    came = _came_ns(one)
    return any(other is not one and came < other.end_ns <= one.start_ns for other in step.collectives)


def rank_rows(aligned: AlignedRanks) -> tuple[RankRow, ...]:
    """One row a rank: its clock, how often it came last, and how long it waited for the last.

    Only collectives count to which every rank came with an idle channel. Who came last is told only if the
    last rank came later than the last but one by more than the error of the clocks.
    """
    several = len(aligned.ranks) > 1
    telling = [
        [time for time in one.arrived_ns if time is not None]
        for one in aligned.transfers
        if aligned.complete and None not in one.arrived_ns
    ]
    blur = 2 * max(aligned.scatters_ns)
    last = [max(times) for times in telling]
    clear = [
        times.index(end)
        for times, end in zip(telling, last, strict=True)
        if len(times) > 1 and end - sorted(times)[-2] > blur
    ]
    first = aligned.ranks[0]
    rows = []
    for place, rank in enumerate(aligned.ranks):
        waits = [end - times[place] for times, end in zip(telling, last, strict=True)]
        backwards = [
            step.backward_end_ns - step.backward_start_ns
            for step in rank.steps
            if step.number in aligned.offsets_ns
        ]
        offset = median_ns([by_rank[place] for by_rank in aligned.offsets_ns.values()])
        rows.append(
            RankRow(
                rank=place if rank.rank is None else rank.rank,
                host=rank.host,
                clock_offset_ns=offset + rank.base_ns - first.base_ns if several else None,
                clock_scatter_ns=aligned.scatters_ns[place] if several else None,
                collectives=len(clear),
                came_last=clear.count(place) if several and clear else None,
                waited_ns=median_ns(waits) if several and waits else None,
                backward_ns=median_ns(backwards),
            )
        )
    return tuple(rows)
