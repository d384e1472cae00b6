"""How much longer an all-reduce takes beside backward than one of the same size after it, in one trace.

Nothing is fitted: an all-reduce after backward had the machine to itself, one within backward had not.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from sim.importer.kineto.several_ranks import Transfer

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
