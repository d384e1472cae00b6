"""How far a measured median may be trusted: bootstrap confidence intervals."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_BOOTSTRAPS = 2000
_LEVEL = 0.95


def _interval(statistics: npt.NDArray[np.float64], level: float) -> tuple[int, int]:
    low, high = np.quantile(statistics, ((1 - level) / 2, (1 + level) / 2))
    return round(float(low)), round(float(high))


def median_interval(values: Sequence[int]) -> tuple[int, int]:
    """95 % bootstrap confidence interval of the median, in the unit of ``values``."""
    if len(values) == 1:
        return values[0], values[0]
    generator = np.random.default_rng(0)
    picks = generator.choice(np.asarray(values), size=(_BOOTSTRAPS, len(values)))
    return _interval(np.median(picks, axis=1), _LEVEL)


def difference_interval(ones: Sequence[int], others: Sequence[int], level: float = _LEVEL) -> tuple[int, int]:
    """Paired bootstrap confidence interval (95 %) of median(ones) - median(others), in their unit.

    Value ``k`` of both belongs to the same round: rounds are drawn, each with both its values, so that what
    disturbs a whole round cancels. Only the rounds that both have are drawn from.
    """
    rounds = min(len(ones), len(others))
    generator = np.random.default_rng(0)
    picks = generator.integers(rounds, size=(_BOOTSTRAPS, rounds))
    one, other = np.asarray(ones[:rounds])[picks], np.asarray(others[:rounds])[picks]
    return _interval(np.median(one, axis=1) - np.median(other, axis=1), level)
