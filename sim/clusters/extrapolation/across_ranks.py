"""Ratios of measured to computed times carried to other numbers of ranks, and how far they may be off there.

Measurements on several numbers of ranks tell by how much the ratio changes with each doubling of ranks
(``RatioDrift``); beyond them it is taken to go on changing at that rate. A single number of ranks tells no
drift: the ratio measured there is carried as it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from sim.clusters.extrapolation.ratios import (
    ENOUGH,
    SHAPE,
    Ratios,
    interpolated,
    octave_of,
    of_the_model,
    quantile,
)
from sim.clusters.nccl.fabric import Fabric
from sim.clusters.nccl.model import nccl_ns

_WINDOW = 2.0  # octaves on each side: five powers of two tell the drift of one

_Change = tuple[float, float]  # log2 of size, change of the ratio's logarithm for a doubling of ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioDrift:
    """By how much a ratio's logarithm changes when ranks double.

    ``changes``: the change at each measured size (log2 of bytes). ``switched``: the changes at points that
    tell nothing about their neighbours, such as those where a library switches protocol. The size at which it
    does may move with the number of ranks, so these count in the scatter only.
    """

    changes: tuple[_Change, ...]
    switched: tuple[_Change, ...]

    def at(self, octave: float) -> float:
        """The change at a size: the median change over all sizes, corrected by how the sizes nearby differ
        from it.

        A median that scatter alone explains counts as no change. Of the difference nearby only what exceeds
        its own scatter and the error of the model's shape (``SHAPE``) counts.
        """
        overall = median(change for _, change in self.changes)
        if abs(overall) <= _error(self.changes, overall):
            overall = 0.0
        near = _near(self.changes, octave)
        here = median(change for _, change in near)
        beyond = abs(here - overall) - max(SHAPE, _error(near, here))
        return overall + math.copysign(max(beyond, 0.0), here - overall)

    def scatter(self, octave: float) -> float:
        """How far a change may be from ``at``: of those measured at sizes nearby, nine in ten are closer."""
        said = self.at(octave)
        off = [abs(change - said) for _, change in _near((*self.changes, *self.switched), octave)]
        return quantile(off) if len(off) >= ENOUGH else max(*off, SHAPE)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedRatios:
    """The logarithm of a ratio, and how far it may be off down and up."""

    log: float
    down: float
    up: float


def drift_of(known: Sequence[Ratios]) -> RatioDrift:
    """From every pair of neighbouring numbers of ranks, ascending, at the sizes that both reach."""
    changes: list[_Change] = []
    switched: list[_Change] = []
    for fewer, more in pairwise(known):
        if fewer.ranks == more.ranks:
            continue
        low, high = max(fewer.octaves[0], more.octaves[0]), min(fewer.octaves[-1], more.octaves[-1])
        alone = {*fewer.alone, *more.alone}
        measured = {*fewer.octaves, *more.octaves, *alone}
        doublings = math.log2(more.ranks / fewer.ranks)
        for octave in sorted(each for each in measured if low <= each <= high) or [low]:
            change = (more.at_octave(octave) - fewer.at_octave(octave)) / doublings
            (switched if octave in alone else changes).append((octave, change))
    return RatioDrift(changes=tuple(changes or switched), switched=tuple(switched))


def carried(
    known: Sequence[Ratios], fabric: Fabric, collective: str, size: int, drift: RatioDrift | None
) -> CarriedRatios:
    """The ratio on ``fabric`` from those measured on other numbers of ranks, ascending.

    Between two measured numbers of ranks the ratio is interpolated. Beyond them the nearest one is carried.
    With ``drift`` it goes on changing at that rate, and its range has room for no change and for twice the
    change. With a single number of ranks each doubling may change the ratio by as much as the model may be
    off. The ratio changes by no more than additional ranks can change it (``_limits``), and its range is no
    wider than that of the model without any measurement, apart from the doubt in the nearest ratio.
    """
    at = math.log2(fabric.world_size)
    nearest = min(known, key=lambda each: abs(math.log2(each.ranks) - at))
    doublings = at - math.log2(nearest.ranks)
    down, up = nearest.doubt(size, alone=False)
    log, octave = nearest.at(size), octave_of(size)
    own_down, own_up = of_the_model(fabric)
    if drift is not None and known[0].ranks <= fabric.world_size <= known[-1].ranks:
        ranks = [math.log2(each.ranks) for each in known]
        between = interpolated(ranks, [each.at(size) for each in known], at)
        way = drift.scatter(octave) * abs(doublings)
        return CarriedRatios(log=between, down=math.hypot(down, way), up=math.hypot(up, way))
    limits = _limits(nearest.fabric, fabric, collective, size)
    known_to, moved = (down, up), log
    if drift is None:
        down = math.hypot(down, own_down * abs(doublings))
        up = math.hypot(up, own_up * abs(doublings))
    else:
        moved += min(max(drift.at(octave) * doublings, limits[0]), limits[1])
        way = math.hypot(drift.scatter(octave) * abs(doublings), moved - log)
        down, up = math.hypot(down, way), math.hypot(up, way)
    least = max(log + limits[0], min(log, moved, -own_down)) - known_to[0]
    most = min(log + limits[1], max(log, moved, own_up)) + known_to[1]
    return CarriedRatios(log=moved, down=min(down, moved - least), up=min(up, most - moved))


def _limits(measured: Fabric, fabric: Fabric, collective: str, size: int) -> tuple[float, float]:
    """How much a ratio's logarithm may change from ``measured`` to ``fabric``, least and most.

    More ranks never take less time. They take at most as much more as the steps of a ring grow, of which
    there are 2(n - 1).
    """
    computed = math.log(nccl_ns(measured, collective, size) / nccl_ns(fabric, collective, size))
    steps = math.log((fabric.world_size - 1) / (measured.world_size - 1))
    return min(0.0, computed + min(0.0, steps)), max(0.0, computed + max(0.0, steps))


def _near(changes: Sequence[_Change], octave: float) -> Sequence[_Change]:
    """The changes at sizes within the window around ``octave``; those of the nearest size if it has none."""
    nearest = min(abs(each - octave) for each, _ in changes)
    return [change for change in changes if abs(change[0] - octave) <= max(_WINDOW, nearest)]


def _error(changes: Sequence[_Change], middle: float) -> float:
    """How far the median of ``changes`` may be off, judged by their scatter alone."""
    return quantile([abs(change - middle) for _, change in changes]) / math.sqrt(len(changes))
