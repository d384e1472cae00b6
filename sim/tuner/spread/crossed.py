"""Statistics of a table of steps: a row for each machine that the calibration allows, a column an iteration.

A cell is a step, or a paired difference of steps, of one iteration on one machine. What is the same in a
whole row is an error of the calibration: a training run has one machine, and no number of steps averages it
out. What is the same in a whole column belongs to an iteration: more recorded iterations would make the
average over a long run better known. Jitter is new in every cell, and averages out.
"""

from typing import NamedTuple

import numpy as np

from sim.clock.arrays import Floats

_NORMAL = 1.4826  # standard deviation over median absolute deviation, of a normal distribution
_RESAMPLES = 200
# Student's t, two-sided 95 %, by degrees of freedom; linear in 1 / freedom between them.
_FREEDOM = (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 30, 1e9)
_STUDENT = (12.7062, 6.0167, 4.3027, 3.1824, 2.7764, 2.5706, 2.3646, 2.2281, 2.1314, 2.0423, 1.96)


class Steps(NamedTuple):
    """Steps or their differences in ns, [machines, iterations]; ``still`` are the same without jitter.

    ``is_ranged``: machines lie in ranges, any of which may be the real one.
    """

    played: Floats
    still: Floats
    is_ranged: bool = False

    def minus(self, other: "Steps") -> "Steps":
        """The differences, cell by cell: all candidates play the same draws."""
        return Steps(self.played - other.played, self.still - other.still, self.is_ranged)


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


def student(freedom: float) -> float:
    """The factor of a standard error that makes a 95 % interval, by degrees of freedom (>= 1)."""
    inverse = [1 / each for each in reversed(_FREEDOM)]
    return float(np.interp(1 / freedom, inverse, _STUDENT[::-1]))


def estimate_mean(steps: Steps) -> Estimate:
    """The mean of a long run on the real machine, in ns.

    Its variance is that between the means of rows, without jitter, times (1 + 1 / number of rows), plus that
    between the means of columns over their number. Degrees of freedom are Satterthwaite's. If all steps are
    equal, the interval has no width. Of machines that lie in ranges, which may be skewed or apart, it holds
    all, and what few iterations leave open.
    """
    machines, iterations = steps.played.shape
    center = float(steps.played.mean())
    systematic = sampled = spent = 0.0
    if machines > 1 and not steps.is_ranged:
        systematic = float(steps.still.mean(axis=1).var(ddof=1)) * (1 + 1 / machines)
        spent += systematic**2 / (machines - 1)
    if iterations > 1:
        sampled = float(steps.played.mean(axis=0).var(ddof=1)) / iterations
        spent += sampled**2 / (iterations - 1)
    variance = systematic + sampled
    half = student(variance**2 / spent) * variance**0.5 if spent else 0.0
    if not steps.is_ranged:
        return Estimate(center, center - half, center + half)
    means = steps.still.mean(axis=1) + (center - steps.still.mean())
    return Estimate(center, float(means.min()) - half, float(means.max()) + half)


def noise_between_steps(steps: Steps) -> float | None:
    """A robust standard deviation in ns of a step from iteration to iteration on one machine.

    None if there is only one iteration.
    """
    table, iterations = steps.played, steps.played.shape[1]
    if iterations == 1:
        return None
    rest = table - np.median(table, axis=1, keepdims=True)
    return float(_NORMAL * np.median(np.abs(rest)) * (iterations / (iterations - 1)) ** 0.5)


def resampled_p95(tables: Floats, generator: np.random.Generator) -> Floats:
    """The 95th percentile of each of ``tables`` [candidates, machines, iterations], resampled: [resamples,
    candidates]. Machines and iterations are drawn with replacement, the same ones for every candidate."""
    _, machines, iterations = tables.shape
    if machines == iterations == 1:
        return tables.reshape(1, -1)
    made = np.empty((_RESAMPLES, len(tables)))
    for k in range(_RESAMPLES):
        rows = generator.choice(machines, size=machines)
        columns = generator.choice(iterations, size=iterations)
        made[k] = percentile_95(tables[:, rows][:, :, columns])
    return made


def percentile_95(tables: Floats) -> Floats:
    """The 95th percentile of all cells of each table [candidates, machines, iterations]."""
    return np.asarray(np.quantile(tables.reshape(len(tables), -1), 0.95, axis=1))
