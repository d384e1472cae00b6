"""What a calibration's ``spread`` says: how single all-reduces scatter, and how well their curve is known."""

from dataclasses import dataclass
from math import log, nan
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Floats, Ints
from sim.clock.program import MOST_NS
from sim.errors import InputError
from sim.nouns.hardware import CurvePoint, Hardware

# A distribution is its quantiles at these normal scores, and straight between them: least, p10, median, p90,
# greatest. Where only p90 is recorded the line from the median goes on to the 99th percentile.
_P975 = NormalDist().inv_cdf(0.975)
_P90, _P99 = NormalDist().inv_cdf(0.9), NormalDist().inv_cdf(0.99)
SCORES = np.array([-_P99, -_P90, 0.0, _P90, _P99])
_GRID = np.array([NormalDist().inv_cdf((number + 0.5) / 4000) for number in range(4000)])
_NAMES = ("min_ns", "p10_ns", "median_ns", "p90_ns", "max_ns")
_MOST_SAMPLES = 1000  # drawn at most to repeat a calibration; if it had more, the scatter is scaled down


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scatter:
    """Scatter along the all-reduce curve, as factors on its points; each array has one row or entry a point.

    ``num_bytes``: the point's size. ``quantiles`` [points, 5]: those of its samples at ``SCORES``, over their
    mean; all 1 if nothing is known. ``counts``: the number of samples, 0 if nothing is known. ``by_mean``:
    whether the point is the mean of its samples, or their median. ``sigmas``: one standard deviation of the
    point's logarithm, from the interval that calibration kept; NaN without one.
    """

    num_bytes: Ints
    quantiles: Floats
    counts: Ints
    by_mean: NDArray[np.bool_]
    sigmas: Floats

    @property
    def known(self) -> int:
        """How many points have a scatter."""
        return int(np.count_nonzero(self.counts))

    @property
    def knows(self) -> bool:
        """Whether any point has a scatter, or an interval."""
        return bool(self.known or not np.isnan(self.sigmas).all())

    def repeat_calibrations(self, times: int, generator: np.random.Generator) -> Floats:
        """The curve's points as other calibrations might have found them, as factors [times, points].

        A point is drawn from its 95 % interval, if the calibration kept one. Otherwise as many samples as the
        real point had are drawn from its distribution, and their mean or median is taken, as it was of the
        real ones. The factors of a point are 1 in the mean: what was measured is not corrected.
        """
        factors = np.ones((times, len(self.counts)))
        for point, count in enumerate(self.counts.tolist()):
            if not np.isnan(self.sigmas[point]):
                factors[:, point] = np.exp(self.sigmas[point] * generator.standard_normal(times))
                continue
            if not count:
                continue
            drawn = min(count, _MOST_SAMPLES)
            luck = generator.standard_normal((times, drawn))
            samples = np.interp(luck, SCORES, self.quantiles[point])
            made = samples.mean(axis=1) if self.by_mean[point] else np.median(samples, axis=1)
            factors[:, point] = 1 + (made / made.mean() - 1) * (drawn / count) ** 0.5
        return factors

    def jitter(self, wires: Ints, luck: Floats) -> Floats:
        """Factors of single all-reduces of ``wires`` bytes [messages], by standard normal ``luck``
        [draws, messages]; 1 in the mean. Between points quantiles are interpolated in bytes, beyond them
        kept.
        """
        quantiles = np.stack([np.interp(wires, self.num_bytes, level) for level in self.quantiles.T], axis=1)
        factors = np.empty_like(luck)
        for message in range(len(wires)):
            factors[:, message] = np.interp(luck[:, message], SCORES, quantiles[message])
        return factors


def read_scatter(hardware: Hardware) -> Scatter:
    """The scatter of ``hardware.all_reduce`` from its ``spread``; points that it leaves out have none.

    Raises:
        InputError: a time is more than the tuner can count with.
    """
    spread = hardware.spread.get("all_reduce", {})
    counts, rows, by_mean, sigmas = [], [], [], []
    for point in hardware.all_reduce:
        known = spread.get(str(point.num_bytes), {})
        _check(point, known)
        by_mean.append(str(known.get("quantile", "median")).startswith("mean"))
        sigmas.append(_sigma(known))
        quantiles = _quantiles(point, known)
        counts.append(0 if quantiles is None else known["count"])
        rows.append(np.ones(len(SCORES)) if quantiles is None else quantiles)
    return Scatter(
        num_bytes=np.array([point.num_bytes for point in hardware.all_reduce], dtype=np.int64),
        quantiles=np.array(rows),
        counts=np.array(counts, dtype=np.int64),
        by_mean=np.array(by_mean),
        sigmas=np.array(sigmas, dtype=np.float64),
    )


def _check(point: CurvePoint, known: dict[str, Any]) -> None:
    for name in ("count", "low_ns", "high_ns", *_NAMES):
        if (value := known.get(name, 0)) > MOST_NS:
            raise InputError(
                f"spread.all_reduce.{point.num_bytes}.{name}: {value} is not legal; give at most {MOST_NS}"
            )


def _sigma(known: dict[str, Any]) -> float:
    """One sigma of the logarithm of a point, from its 95 % interval; NaN where none is kept."""
    if not {"low_ns", "high_ns"} <= set(known):
        return nan
    return log(max(1, known["high_ns"]) / max(1, known["low_ns"])) / (2 * _P975)


def _quantiles(point: CurvePoint, known: dict[str, Any]) -> Floats | None:
    """One point's quantiles over their mean; None where ``known`` does not say enough."""
    if not known.get("count") or not {"p90_ns", "max_ns"} & set(known):
        return None
    values: dict[str, int] = {"median_ns": point.duration_ns, **known}  # if no median is kept: the point
    if "p90_ns" in known:
        values.pop("max_ns", None)  # one of many samples does not tell what the slowest tenth is like
    scores = [score for score, name in zip(SCORES.tolist(), _NAMES, strict=True) if name in values]
    found = np.maximum.accumulate([values[name] for name in _NAMES if name in values])
    quantiles = np.interp(SCORES, scores, found)
    if "p90_ns" in known:
        quantiles[4] = quantiles[3] + (quantiles[3] - quantiles[2]) * (_P99 / _P90 - 1)
    mean = np.interp(_GRID, SCORES, quantiles).mean()
    return np.asarray(quantiles / mean) if quantiles[2] > 0 else None
