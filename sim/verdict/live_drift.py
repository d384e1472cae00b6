"""Did steps become longer for good? A test that a few slow steps, a checkpoint, do not set off.

Errors of unseen steps are taken together in blocks of ``BLOCK``, a block by its median: up to two outliers a
block leave no trace. Over the blocks runs Pettitt's test (Applied Statistics 28, 1979) for one change of
level at an unknown place: it looks at ranks only, so that no distribution is assumed. The place is then where
two medians fit best. The p-value, ``2 exp(-6 K^2 / (n^3 + n^2))``, holds for independent blocks; those of a
real machine are not, so K^2 is divided by ``(1 + r) / (1 - r)``, r the correlation of neighbours once the
change is taken out (the variance of a mean of an AR(1) series). ``ALPHA`` is the rate of false alarms at one
look; looks at a growing series are many and much alike (400 made-up runs of 1,000 steps, looked at 46 times
each: one alarm). A shift below ``SMALL`` of a step is never told.
"""

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BLOCK = 5
ALPHA = 0.001
SMALL = 0.01  # of a step
RECENT = 2000  # steps that are looked at in blocks of BLOCK
MOST_BLOCKS = 400
_LOOKS = 4  # at parts of one series
_FEWEST_BLOCKS = 8  # with fewer no order of blocks is rare enough


def find_change(errors: Floats) -> tuple[int, float] | None:
    """Where the level of ``errors`` (shares, in order of steps) changes for good, and the p-value.

    The place is that of the first error after the change. None: no change, too small a one, or one that has
    gone again. After the whole series its last half and quarter are looked at, as changes hide one another,
    and of a long one, which is taken in longer blocks, the last ``RECENT`` steps.
    """
    for length in dict.fromkeys((len(errors), len(errors) // 2, len(errors) // 4, min(RECENT, len(errors)))):
        found = _change(errors[len(errors) - length :], max(BLOCK, -(-length // MOST_BLOCKS)))
        if found is not None:
            return found[0] + len(errors) - length, found[1]
    return None


def _change(errors: Floats, size: int) -> tuple[int, float] | None:
    count = len(errors) // size
    if count < _FEWEST_BLOCKS:
        return None
    skipped = len(errors) - count * size  # the oldest ones, so that the newest count
    blocks = np.median(errors[skipped:].reshape(count, size), axis=1)
    p_value = pettitt(blocks)
    if p_value >= ALPHA / _LOOKS:
        return None
    place = split(blocks)
    shift = np.median(blocks[place:]) - np.median(blocks[:place])
    if abs(shift) < SMALL:
        return None
    newest = blocks[-max(3, (count - place) // 4) :]
    is_still_so = abs(np.median(newest) - np.median(blocks[:place])) >= abs(shift) / 2
    return (skipped + place * size, p_value) if is_still_so else None


def pettitt(values: Floats) -> float:
    """The p-value of one change of level somewhere."""
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
