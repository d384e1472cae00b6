"""Several ranks of one job: clocks laid over each other, how long transfers took, and who came last.

A collective's kernel ends on all ranks within microseconds, but it starts when its own rank comes to it and
spins until the last one has: so ends tell the clocks apart, and the shortest kernel is the transfer.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from sim.errors import InputError
from sim.importer.imported import RankRow
from sim.importer.kineto.collectives import SeenCollective
from sim.importer.kineto.rank import SeenRank
from sim.importer.kineto.steps import SeenStep
from sim.units import median_ns

# Collectives in which every rank waits for data of every other, so that they end together.
_END_TOGETHER = ("all_reduce", "coalesced", "all_gather", "reduce_scatter")
# With so many in a step their ends tell the clocks step by step, and so their drift too.
_ENOUGH_FOR_A_STEP = 3
_MOST_SHIFT = 3
_ABOUT_AS_GOOD = 2  # times the least spread
_FEWEST_TO_TELL = 2  # steps in common: one step alone fits as well at any shift


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One reduction of one step over the ranks that were traced; times by the first rank's clock.

    ``start_ns``: when the last rank came. ``duration_ns``: the shortest kernel, which is the transfer itself,
    or an upper bound of it where ranks are missing. ``arrived_ns``: by rank, in the ranks' order, when it
    came; None for a rank whose channel was still busy with another collective then. ``waits_ns``: from each
    rank's kernel's start to that of the last one.

    ``beside_ns``: how much of the shortest kernel lay before the end of its own rank's backward.
    ``is_shared``: another collective ran while it did. ``is_waitless``: probably no rank waited in it, as far
    as the rank with the shortest kernel can tell. There the kernel was queued behind another collective, and
    either was queued for at least as long as it then ran, or began after the end of backward.
    """

    step: int
    place: int
    num_bytes: int | None
    start_ns: int
    end_ns: int
    duration_ns: int
    arrived_ns: tuple[int | None, ...]
    waits_ns: tuple[int, ...]
    beside_ns: int
    is_shared: bool
    is_waitless: bool


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
    matched: int


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
    offsets = _offsets(rows, len(ranks))
    scatters = [0] * len(ranks)
    for number, together in rows.items():
        for row in together:
            ends = [one.end_ns - offset for one, offset in zip(row, offsets[number], strict=True)]
            middle = median_ns(ends)
            scatters = [max(worst, abs(end - middle)) for worst, end in zip(scatters, ends, strict=True)]
    return AlignedRanks(
        ranks=tuple(ranks),
        complete=len(ranks) == world_size if world_size is not None else len(ranks) > 1,
        offsets_ns=offsets,
        scatters_ns=tuple(scatters),
        transfers=tuple(
            _transfer(number, place, sizes[number][place], [of[number] for of in steps], offsets[number])
            for number in common
            for place in range(len(sizes[number]))
        ),
        matched=sum(map(len, rows.values())),
    )


def number_alike(ranks: Sequence[SeenRank]) -> tuple[list[SeenRank], str | None]:
    """The ranks with equal numbers for equal steps, and a sentence if another numbering fits about as well.

    The profiler numbers steps only under a schedule. Otherwise a rank's profile may begin some steps earlier
    or later than the first rank's. The shift is taken at which the distances between the ends of collectives
    vary least. If several do about as well, it is no shift if that is one, else that of the least distance.
    """
    if len(ranks) < 2 or all(rank.is_marked for rank in ranks):
        return list(ranks), None
    numbered, is_open = [ranks[0]], False
    for rank in ranks[1:]:
        fits = [_fit(ranks[0], rank, shift) for shift in range(-_MOST_SHIFT, _MOST_SHIFT + 1)]
        found = [fit for fit in fits if fit is not None]
        if not found:
            numbered.append(rank)
            continue
        least_ns = min(fit.spread_ns for fit in found)
        about_as_good = [fit for fit in found if fit.spread_ns <= _ABOUT_AS_GOOD * least_ns]
        best = min(about_as_good, key=lambda fit: (fit.shift != 0, abs(fit.offset_ns), fit.shift))
        is_open = is_open or len(about_as_good) > 1
        moved = (replace(step, number=step.number + best.shift) for step in rank.steps)
        numbered.append(replace(rank, steps=tuple(moved)))
    if not is_open:
        return numbered, None
    return numbered, (
        "the profiler did not number steps (prof.step() with a schedule does), and they are too alike to "
        "tell which belong together: clocks are known up to whole steps"
    )


class _Fit(NamedTuple):
    """How the ends of collectives lie if the other rank's step numbers are shifted by ``shift``.

    ``offset_ns`` is the median distance from the first rank's end to the other's, ``spread_ns`` the largest
    distance minus the smallest.
    """

    shift: int
    spread_ns: int
    offset_ns: int


def _fit(first: SeenRank, other: SeenRank, shift: int) -> _Fit | None:
    """The fit at ``shift``; None with fewer than two common steps, or none with equally many reductions."""
    theirs = {step.number + shift: step for step in other.steps}
    distances = [
        two.end_ns - one.end_ns
        for step in first.steps
        if step.number in theirs and len(step.reductions) == len(theirs[step.number].reductions)
        for one, two in zip(step.reductions, theirs[step.number].reductions, strict=True)
    ]
    common = [step for step in first.steps if step.number in theirs]
    if not distances or len(common) < _FEWEST_TO_TELL:
        return None
    return _Fit(shift, max(distances) - min(distances), median_ns(distances))


def _offsets(
    rows: Mapping[int, Sequence[Sequence[SeenCollective]]], count: int
) -> dict[int, tuple[int, ...]]:
    """By step, each rank's clock minus the first's: the median over the ends of the step's collectives, or
    over those of all steps if the step has few.
    """

    def medians(together: Sequence[Sequence[SeenCollective]]) -> tuple[int, ...]:
        return tuple(
            median_ns([row[place].end_ns - row[0].end_ns for row in together]) for place in range(count)
        )

    every = [row for together in rows.values() for row in together]
    overall = medians(every) if every else (0,) * count
    return {
        number: medians(together) if len(together) >= _ENOUGH_FOR_A_STEP else overall
        for number, together in rows.items()
    }


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


# ---- how much longer an all-reduce takes beside backward than one of the same size after it

# So many transfers within backward, and as many after it, a size must have to count: one that was late by
# chance then does not decide.
FEWEST = 3
# Sizes this close together are taken for one size; compared is the time a byte.
_ALIKE = 0.05
# A transfer counts as within backward, or as after it, though up to this share of it is not.
_SLIVER = 0.01
# How far the quartiles may be apart where ranks are missing. Beyond it the times contain waits for ranks,
# which differ from step to step as a slow-down does not.
_SCATTER = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class CommSlowdown:
    """Time of all-reduces within backward over that of as many bytes after it.

    ``ratio`` is what was seen, ``slowdown`` what is taken of it: at least 1. ``quartiles`` are of single
    transfers within backward, over the median of those after it; ``beside`` and ``after`` count transfers.
    """

    ratio: float
    beside: int
    after: int
    sizes: int
    quartiles: tuple[float, float, float]

    @property
    def slowdown(self) -> float:
        """What collectives stretch by beside computation; they are never faster for it."""
        return max(1.0, self.ratio)


def find_comm_slowdown(transfers: Sequence[Transfer], *, complete: bool = True) -> CommSlowdown | None:
    """The slow-down of transfers within backward; None where no size ran both within and after it.

    Transfers that share the wire with another collective are left out: their times say nothing of
    computation. Where traces of ranks are missing (``complete`` False), a time may contain the wait for such
    a rank: only transfers that seem to have waited for none count, and None is returned if these scatter.
    """
    told = (one for one in transfers if one.num_bytes and one.duration_ns and not one.is_shared)
    alone = sorted((one for one in told if complete or one.is_waitless), key=lambda one: one.num_bytes or 0)
    groups: list[list[Transfer]] = []
    for one in alone:
        if groups and (one.num_bytes or 0) <= (1 + _ALIKE) * (groups[-1][0].num_bytes or 0):
            groups[-1].append(one)
        else:
            groups.append([one])
    singles: list[float] = []
    ratios: list[float] = []
    later = 0
    for group in groups:
        rates: dict[str, list[float]] = defaultdict(list)
        for one in group:
            rates[_place(one)].append(one.duration_ns / (one.num_bytes or 1))
        if min(len(rates["beside"]), len(rates["after"])) < FEWEST:
            continue
        plain = median(rates["after"])
        ratios.append(median(rates["beside"]) / plain)
        singles += [rate / plain for rate in rates["beside"]]
        later += len(rates["after"])
    if not ratios:
        return None
    singles.sort()
    count = len(singles)
    if not complete and singles[(3 * count) // 4] > (1 + _SCATTER) * singles[count // 4]:
        return None
    return CommSlowdown(
        ratio=median(ratios),
        beside=count,
        after=later,
        sizes=len(ratios),
        quartiles=(singles[count // 4], singles[count // 2], singles[(3 * count) // 4]),
    )


def alone_ns(one: Transfer, slowdown: float) -> int:
    """What a transfer would have taken with nothing beside it."""
    return round(one.beside_ns / slowdown) + one.duration_ns - one.beside_ns


def _place(one: Transfer) -> str:
    share = one.beside_ns / one.duration_ns
    return "beside" if share >= 1 - _SLIVER else "after" if share <= _SLIVER else "across"
