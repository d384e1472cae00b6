"""What computation and collectives cost each other: the same work beside the other and clear of it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from sim.importer.kineto.events import Spans
from sim.metrics.intervals import Interval
from sim.units import median_ns

# Clocks of a microsecond blur shorter kernels.
SHORTEST_NS = 5_000
FEWEST_KERNELS = 20
_NEVER = 1 << 62


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
class Slowdown:
    """Time of some work beside other work over that of the same without.

    ``ratio`` is what was seen, ``slowdown`` what is taken of it: at least 1. ``count`` kernels or transfers
    were compared, whose quartiles are ``quartiles``; transfers with ``after`` others, of ``sizes`` sizes.
    """

    ratio: float
    count: int
    quartiles: tuple[float, float, float]
    after: int = 0
    sizes: int = 0

    @property
    def slowdown(self) -> float:
        """The factor by which work takes longer beside the other; none is faster for it."""
        return max(1.0, self.ratio)


def _quartiles(ratios: Sequence[float]) -> tuple[float, float, float]:
    ordered, count = sorted(ratios), len(ratios)
    return ordered[count // 4], ordered[count // 2], ordered[(3 * count) // 4]


def find_interference(steps: Sequence[Spans], communication: Sequence[Interval]) -> Slowdown | None:
    """The slow-down of kernels that lie within a collective in one step and clear of all in another.

    Args:
        steps: the lane's kernels of each step, in order.
        communication: when any collective was active, disjoint and ascending.

    Returns:
        None where fewer than ``FEWEST_KERNELS`` kernels were seen both ways.
    """
    count = min(map(len, steps))
    names = np.array([step["name"][:count] for step in steps])
    is_same = (names == names[0]).all(0)
    count = count if is_same.all() else int(is_same.argmin())  # from there on the steps differ
    starts, ends = (np.array([step[edge][:count] for step in steps]) for edge in ("start", "end"))
    begins, stops = np.array([*communication, (_NEVER, _NEVER)]).T
    near = np.searchsorted(stops, starts, "right")
    is_clear = begins[near] >= ends
    is_beside = (begins[near] <= starts) & (ends <= stops[near])
    lasted = ends - starts
    beside_ns = alone_ns = 0
    ratios: list[float] = []
    for place in np.flatnonzero(is_clear.any(0) & is_beside.any(0)):
        alone = median_ns(lasted[is_clear[:, place], place].tolist())
        beside = lasted[is_beside[:, place], place].tolist()
        if alone < SHORTEST_NS:
            continue
        beside_ns += sum(beside)
        alone_ns += alone * len(beside)
        ratios.append(median_ns(beside) / alone)
    if len(ratios) < FEWEST_KERNELS:
        return None
    return Slowdown(ratio=beside_ns / alone_ns, count=len(ratios), quartiles=_quartiles(ratios))


def find_comm_slowdown(transfers: Sequence[Transfer], *, complete: bool = True) -> Slowdown | None:
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
    low, middle, high = _quartiles(singles)
    if not complete and high > (1 + _SCATTER) * low:
        return None
    return Slowdown(
        ratio=median(ratios),
        count=len(singles),
        quartiles=(low, middle, high),
        after=later,
        sizes=len(ratios),
    )


def alone_ns(one: Transfer, slowdown: float) -> int:
    """What a transfer would have taken with nothing beside it."""
    return round(one.beside_ns / slowdown) + one.duration_ns - one.beside_ns


def _place(one: Transfer) -> str:
    share = one.beside_ns / one.duration_ns
    return "beside" if share >= 1 - _SLIVER else "after" if share <= _SLIVER else "across"
