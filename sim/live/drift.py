"""Did steps become longer for good? Two tests that a few slow steps, a checkpoint, do not set off.

*A change somewhere.* Errors are taken together in blocks of ``BLOCK``, a block by its median: up to two
outliers a block leave no trace. Over the blocks runs Pettitt's test (Applied Statistics 28, 1979) for one
change of level at an unknown place: it looks at ranks only, so that no distribution is assumed. The place is
then where two medians fit best. The p-value, ``2 exp(-6 K^2 / (n^3 + n^2))``, holds for independent blocks;
those of a real machine are not, so K^2 is divided by ``(1 + r) / (1 - r)``, r the correlation of neighbours
once the change is taken out (the variance of a mean of an AR(1) series). The test is sharp where both sides
are alike in length, so it looks at beginnings of the series, each ``sqrt(2)`` as long as the one before, and
at its last half, quarter, and so on: of a change anywhere one of them has as much after as before it. What
a beginning shows, it shows however long the job goes on; so a change that was found is not forgotten.

*Another level than the known one.* An early change, which few steps precede, shows against the steps that the
prediction was made from: Wilcoxon's rank sum compares these with the newest quarter of the others. The
correlation of neighbours is taken into account as above.

``ALPHA`` is the rate of false alarms at one look of all these tests together, each by its share (Bonferroni).
Looks at a growing series are many and much alike: of series of 1,000 steps, looked at every 10 steps, at most
3 % have ever an alarm, even where neighbours are correlated by 0.8. A shift below ``SMALL`` of a step is
never told.
"""

import math
from collections.abc import Iterator

import numpy as np

from sim.clock.arrays import Floats

BLOCK = 5
ALPHA = 0.001
SMALL = 0.01  # of a step
MOST_BLOCKS = 400
FEWEST = 40  # errors: with fewer blocks no order of them is rare enough
_FEWEST_KNOWN = 10
_LEVEL_SHARE = 20  # the rank sum has ALPHA / 20: few steps do not tell well how neighbours correlate
_NEWEST = 40  # errors that tell the level of now, at least
_LASTING_PARTS = 8
_PART = 100  # errors in each part, at least


def find_change(errors: Floats, known: Floats | None = None) -> tuple[int, float] | None:
    """Where the level of ``errors`` (shares, in order of steps) changes for good, and the p-value.

    ``known`` are errors of the steps just before them whose level is the expected one. The place is that of
    the first error after the change; 0 where it has changed right after the known ones. None: no change, too
    small a one, one that has gone again, or fewer than ``FEWEST`` errors.
    """
    if len(errors) < FEWEST:
        return None
    known = np.zeros(0) if known is None else known
    series = np.concatenate([known, errors])
    looks = list(_looks(len(series)))
    limit = ALPHA / 2 / len(looks)
    found = [change for begin, end in looks if (change := _change(series, begin, end, limit)) is not None]
    if (level := _other_level(series, len(known), ALPHA / _LEVEL_SHARE)) is not None:
        found.append(level)
    if not found:
        return None
    place, p_value = min(found)
    return max(0, place - len(known)), p_value


def _looks(count: int) -> Iterator[tuple[int, int]]:
    """Beginnings and ends of the parts of a series that are tested, each of them once."""
    length = float(FEWEST)
    while length < count:
        yield 0, int(length)
        length *= math.sqrt(2)
    length = float(count)
    while length >= FEWEST:
        yield count - int(length), count
        length /= 2


def _change(series: Floats, begin: int, end: int, limit: float) -> tuple[int, float] | None:
    """A change between ``begin`` and ``end`` that has lasted since."""
    errors = series[begin:end]
    size = max(BLOCK, -(-len(errors) // MOST_BLOCKS))
    count = len(errors) // size
    skipped = len(errors) - count * size  # the oldest ones, so that the newest count
    blocks = np.median(errors[skipped:].reshape(count, size), axis=1)
    p_value = pettitt(blocks)
    if p_value >= limit:
        return None
    place = split(blocks)
    before, after = float(np.median(blocks[:place])), float(np.median(blocks[place:]))
    place = begin + skipped + place * size
    return (place, p_value) if _lasts(series, place, before, after) else None


def _lasts(series: Floats, place: int, before: float, after: float) -> bool:
    """Whether a shift is large enough to be told, and at least half of it is still there, all the time."""
    shift = after - before
    if abs(shift) < SMALL:
        return False
    rest = series[place:]
    parts = np.array_split(rest, max(1, min(_LASTING_PARTS, len(rest) // _PART)))
    parts.append(rest[-max(3 * BLOCK, len(rest) // 4) :])
    return all((float(np.median(part)) - before) / shift >= 0.5 for part in parts)


def _other_level(series: Floats, known: int, limit: float) -> tuple[int, float] | None:
    """Where the level leaves that of the first ``known`` values for good, and the p-value; None: nowhere."""
    if known < _FEWEST_KNOWN:
        return None
    first = series[:known]
    newest = series[-max(_NEWEST, (len(series) - known) // 4) :]
    p_value = rank_sum(first, newest)
    if p_value >= limit:
        return None
    size = max(BLOCK, -(-len(series) // MOST_BLOCKS))
    count = -(-(len(series) - known) // size)
    rest = series[known:]
    blocks = np.array([np.median(rest[at * size : (at + 1) * size]) for at in range(count)])
    before = float(np.median(first))
    # where two medians fit best, one of them known
    costs = [
        np.abs(blocks[:at] - before).sum() + np.abs(blocks[at:] - np.median(blocks[at:])).sum()
        for at in range(count)
    ]
    place = known + size * int(np.argmin(costs))
    return (place, p_value) if _lasts(series, place, before, float(np.median(series[place:]))) else None


def rank_sum(first: Floats, second: Floats) -> float:
    """The p-value of two samples having one level, each in the order of its steps (Wilcoxon, 1945).

    By the normal distribution, whose tails are heavier than those of the rank sum. Its variance is enlarged
    for the correlation of neighbouring values and, if that is more, of the values and blocks of ``BLOCK``.
    """
    count, one = len(first) + len(second), len(first)
    ranks = _ranks(np.concatenate([first, second]))
    off = abs(float(ranks[:one].sum()) - one * (count + 1) / 2)
    variance = one * len(second) * (count + 1) / 12
    rest = _ranks(np.concatenate([first - np.median(first), second - np.median(second)]))
    near = _neighbours(rest)
    whole = rest[: len(rest) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(axis=1)
    between = _neighbours(whole)
    power = float(rest.var())
    grown = BLOCK * float(whole.var()) / power * (1 + between) / (1 - between) if power else 1.0
    scale = max(1.0, (1 + near) / (1 - near), grown)
    return min(1.0, math.erfc(off / math.sqrt(2 * variance * scale)))


def pettitt(values: Floats) -> float:
    """The p-value of a change of level at an unknown place (Pettitt, 1979)."""
    count = len(values)
    ranks = _ranks(values)
    steps = np.arange(1, count)
    statistic = np.abs(2 * np.cumsum(ranks)[:-1] - steps * (count + 1))
    place = int(np.argmax(statistic)) + 1
    rest = np.concatenate(
        [values[:place] - np.median(values[:place]), values[place:] - np.median(values[place:])]
    )
    near = _neighbours(rest)
    exponent = -6 * float(statistic[place - 1]) ** 2 / (count**3 + count**2) * (1 - near) / (1 + near)
    return min(1.0, 2 * math.exp(exponent))


def split(values: Floats) -> int:
    """Where two medians fit best, by the sum of absolute distances: the first value after the change."""
    costs = [
        np.abs(values[:place] - np.median(values[:place])).sum()
        + np.abs(values[place:] - np.median(values[place:])).sum()
        for place in range(1, len(values))
    ]
    return 1 + int(np.argmin(costs))


def _ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[places]
    return shared


def _neighbours(values: Floats) -> float:
    """Correlation of neighbours by their ranks, which outliers do not lead; 0 to 0.95."""
    ranks = _ranks(values)
    ranks = ranks - ranks.mean()
    power = float(ranks @ ranks)
    return min(0.95, max(0.0, float(ranks[1:] @ ranks[:-1]) / power)) if power else 0.0
