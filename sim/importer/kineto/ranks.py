"""Several ranks of one job: clocks laid over each other, how long transfers took, and who came last.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sim.errors import InputError
from sim.formats.recorded import median_ns
from sim.importer.kineto.seen import SeenCollective, SeenRank, SeenStep
from sim.nouns.imported import RankRow

# Collectives in which every rank waits for data of every other, so that they end together.
_END_TOGETHER = ("all_reduce", "coalesced", "all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One reduction of one step over the ranks that were traced; times by the first rank's clock.

    ``start_ns`` is when the last rank came, ``duration_ns`` the shortest kernel: the transfer itself, or
    an upper bound of it where one rank stands alone. ``arrived_ns`` is by rank, in the ranks' order.
    """

    step: int
    place: int
    num_bytes: int | None
    start_ns: int
    end_ns: int
    duration_ns: int
    arrived_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """Ranks on one clock. ``offsets_ns``: what each rank's clock shows more than the first rank's."""

    ranks: tuple[SeenRank, ...]
    offsets_ns: tuple[int, ...]
    scatters_ns: tuple[int, ...]
    transfers: tuple[Transfer, ...]
    matched: int


def align(ranks: Sequence[SeenRank], sizes: Mapping[int, Sequence[int | None]]) -> Aligned:
    """Lay the ranks' clocks over each other by the ends of their collectives.

    Args:
        ranks: of one job, at least one.
        sizes: by step number, the bytes of its reductions in launch order: only these steps are compared.

    Raises:
        InputError: ranks that share no step, or did different things in it.
    """
    steps = [{step.number: step for step in rank.steps} for rank in ranks]
    common = sorted(set(sizes).intersection(*steps))
    if not common:
        raise InputError(
            f"{ranks[0].source}: shares no step with the other ranks' traces; give traces of the same steps"
        )
    pairs = [_same(ranks, [of[number] for of in steps]) for number in common]
    together = [row for rows in pairs for row in rows if row[0].kind in _END_TOGETHER] or [
        row for rows in pairs for row in rows
    ]
    offsets, scatters = [0] * len(ranks), [0] * len(ranks)
    if len(ranks) > 1:
        if not together:
            raise InputError(
                f"{ranks[0].source}: no collective of all ranks, which would tell their clocks apart"
            )
        for place in range(1, len(ranks)):
            offsets[place] = median_ns([row[place].end_ns - row[0].end_ns for row in together])
        for row in together:
            ends = [one.end_ns - offset for one, offset in zip(row, offsets, strict=True)]
            middle = median_ns(ends)
            scatters = [max(worst, abs(end - middle)) for worst, end in zip(scatters, ends, strict=True)]
    return Aligned(
        ranks=tuple(ranks),
        offsets_ns=tuple(offsets),
        scatters_ns=tuple(scatters),
        transfers=tuple(
            _transfer(number, place, sizes[number][place], [of[number] for of in steps], offsets)
            for number in common
            for place in range(len(sizes[number]))
        ),
        matched=len(together),
    )


def _same(ranks: Sequence[SeenRank], steps: Sequence[SeenStep]) -> list[list[SeenCollective]]:
    """The collectives of one step, a row each, a column a rank; kind by kind in the order of their starts."""
    rows = []
    for kind in sorted({one.kind for step in steps for one in step.collectives}):
        columns = [
            sorted((one for one in step.collectives if one.kind == kind and one.timed), key=_start)
            for step in steps
        ]
        if len({len(column) for column in columns}) == 1:
            rows += [list(row) for row in zip(*columns, strict=True)]
    for rank, step in zip(ranks, steps, strict=True):
        for place, (one, other) in enumerate(zip(step.reductions, steps[0].reductions, strict=False)):
            if None not in (one.num_elements, other.num_elements) and one.num_elements != other.num_elements:
                raise InputError(
                    f"{rank.source}: step {step.number}: all-reduce {place} has {one.num_elements} "
                    f"elements, that of {ranks[0].source} {other.num_elements}; give the traces of one job"
                )
    first = [len(step.reductions) for step in steps]
    for rank, count in zip(ranks, first, strict=True):
        if count != first[0]:
            raise InputError(
                f"{rank.source}: step {steps[0].number} has {count} all-reduces of gradients, that of "
                f"{ranks[0].source} has {first[0]}; give the traces of one job"
            )
    return rows


def _start(one: SeenCollective) -> int:
    return one.start_ns


def _transfer(
    number: int, place: int, num_bytes: int | None, steps: Sequence[SeenStep], offsets: Sequence[int]
) -> Transfer:
    here = [step.reductions[place] for step in steps]
    arrived = tuple(one.start_ns - offset for one, offset in zip(here, offsets, strict=True))
    ends = [one.end_ns - offset for one, offset in zip(here, offsets, strict=True)]
    return Transfer(
        step=number,
        place=place,
        num_bytes=num_bytes,
        start_ns=max(arrived),
        end_ns=median_ns(ends),
        duration_ns=min(one.duration_ns for one in here),
        arrived_ns=arrived,
    )


def rank_rows(aligned: Aligned) -> tuple[RankRow, ...]:
    """One row a rank: its clock, how often it came last, and how long it waited for the last."""
    several = len(aligned.ranks) > 1
    rows = []
    for place, rank in enumerate(aligned.ranks):
        waits = [max(one.arrived_ns) - one.arrived_ns[place] for one in aligned.transfers]
        backwards = [step.backward_end_ns - step.backward_start_ns for step in rank.steps]
        rows.append(
            RankRow(
                rank=place if rank.rank is None else rank.rank,
                host=rank.host,
                clock_offset_ns=aligned.offsets_ns[place] if several else None,
                clock_scatter_ns=aligned.scatters_ns[place] if several else None,
                collectives=len(aligned.transfers),
                came_last=sum(wait == 0 for wait in waits) if several and waits else None,
                waited_ns=median_ns(waits) if several and waits else None,
                backward_ns=median_ns(backwards),
            )
        )
    return tuple(rows)
