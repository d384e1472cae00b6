"""Machines that all that is known of one allows: its calibration repeated, and what nobody measured.

A drawn machine is a whole ``Hardware``. What was measured scatters as a calibration's ``spread`` says (how
single all-reduces scatter, how well their curve is known), and by the covariance that holding to a job's own
step left. What was not measured lies anywhere in its range: half of the machines on either side of what the
hardware says, and each end of each range in one of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log, nan
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from sim.clock.arrays import Flags, Floats, Ints
from sim.costs.doubts import FACTORS, Guess, guesses, open_ranges, words_of
from sim.costs.service_time import service_ns, tilt_ratio
from sim.errors import InputError
from sim.nouns.hardware import COSTS, RATES, SLOWDOWNS, CurvePoint, Hardware

# Of a curve of which no scatter is recorded: calibrations of the bundled machines know a point to 2 % at the
# median (one sigma), and the worst of their points to 8 %.
UNRECORDED = {"low": 0.95, "high": 1.05}
FEWEST_OF_A_READING = 8
NO_SCATTER = "how all-reduces vary"


class Unknown(NamedTuple):
    """What is not known of a hardware: ranges, readings, and the sizes at which its curve is a guess."""

    ranges: dict[str, dict[str, float]]
    readings: Sequence[dict[str, Any]]
    sizes: tuple[Guess, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """It in words: empty where machines lie in no ranges, but only as what was measured scatters."""
        return words_of(*self)


def unknown(hardware: Hardware, sent: tuple[int, int], *, varies: bool = True) -> Unknown:
    """What is not known where messages have from the least to the most bytes ``sent``.

    A range of the whole curve goes without saying where no scatter is recorded and anything else of a step
    ``varies``, beside which such a curve is not exact.
    """
    ranges = {"all_reduce": UNRECORDED} if varies and not read_scatter(hardware).knows else {}
    return Unknown(
        open_ranges(ranges | hardware.spread.get("ranges", {})),
        hardware.spread.get("readings") or ({"what": "", "weight": 1},),
        guesses(hardware.all_reduce, *sent),
    )


def draw_machines(
    hardware: Hardware, count: int, generator: np.random.Generator, known: Unknown
) -> tuple[tuple[Hardware, ...], list[int]]:
    """``count`` machines, or more where many readings need some each, and how many of them belong to each
    reading, in their order; ``known``: what is not.

    Raises:
        InputError: a ``spread`` that cannot be read.
    """
    ranges, readings, sizes = known
    shares = [max(FEWEST_OF_A_READING, round(count * one["weight"])) for one in readings]
    if len(readings) == 1:
        shares = [count]
    belongs = np.repeat(np.arange(len(shares)), shares)
    factors = read_scatter(hardware).repeat_calibrations(len(belongs), generator)
    own, fields = _left_open(hardware, len(belongs), generator)
    fitted = hardware.spread.get("own_step", {}).get("factors", ())
    of_reading = np.array([one.get("curve", 1.0) for one in readings])[belongs, None]
    factors = factors * own * of_reading
    for name, ends in ranges.items():
        if name in fields or (name == "all_reduce" and "link" in fitted):
            continue  # within its range a step has fitted it
        level = levels(shares, generator)
        if name == "all_reduce":
            ranged = in_range(_curve_ends(hardware, ends), 1.0, level)
            factors *= np.where(of_reading == 1.0, ranged, 1.0)
        elif name in (*COSTS, *RATES, *SLOWDOWNS):
            own_time = _as_time(name, getattr(hardware, name))
            fields[name] = _as_values(name, in_range(_ends(name, ends), own_time, level))
    knots = [(one.num_bytes, in_range((one.low, one.high), 1.0, levels(shares, generator))) for one in sizes]
    bare, hardwares = replace(hardware, spread={}), []
    for k, reading in enumerate(belongs.tolist()):
        times = [
            point.duration_ns * by for point, by in zip(bare.all_reduce, factors[k].tolist(), strict=True)
        ]
        points = {one.num_bytes: round(time) for one, time in zip(bare.all_reduce, times, strict=True)}
        curve = _curve(points)
        points |= {size: round(service_ns(curve, size) * float(by[k])) for size, by in knots}
        changed = {name: values[k] for name, values in fields.items()} | readings[reading].get("set", {})
        hardwares.append(replace(bare, all_reduce=_curve(points), **changed))
    return tuple(hardwares), shares


def _curve(points: dict[int, int]) -> tuple[CurvePoint, ...]:
    """A curve from ns by bytes."""
    return tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(points.items()))


def levels(shares: Sequence[int], generator: np.random.Generator) -> Floats:
    """Where in a range each machine lies, from 0 to 1: evenly, both ends included, in each reading."""
    parts = [
        generator.permutation(share) / (share - 1) if share > 1 else np.full(share, 0.5) for share in shares
    ]
    return np.concatenate(parts)


def in_range(ends: Any, own: float, level: Floats) -> Floats:
    """What lies at each ``level`` between two ends, with ``own``, or what is nearest to it, in the middle; a
    column for each pair of ends, where they are arrays."""
    low, high = np.asarray(ends, dtype=np.float64)
    middle = np.clip(own, low, high)
    twice = 2 * (level[:, None] if low.ndim else level)
    return np.asarray(
        low + np.clip(twice, 0, 1) * (middle - low) + np.clip(twice - 1, 0, 1) * (high - middle)
    )


def _curve_ends(hardware: Hardware, known: dict[str, float]) -> Floats:
    """The least and the greatest factor of each of the curve's points: [2, points].

    Of a range that ``spread.ranges`` states, a point that says its own (``min_ns`` and ``max_ns`` without a
    count) lies in that.
    """
    is_stated, made = "all_reduce" in hardware.spread.get("ranges", {}), []
    for point in hardware.all_reduce:
        own = hardware.spread.get("all_reduce", {}).get(str(point.num_bytes), {}) if is_stated else {}
        is_open = {"min_ns", "max_ns"} <= own.keys() and "count" not in own and point.duration_ns > 0
        own_ends = (own[end] / point.duration_ns for end in ("min_ns", "max_ns") if is_open)
        made.append([*own_ends] or [known["low"], known["high"]])
    return np.array(made).T


def _as_time(name: str, value: float | None) -> float:
    """A field as what it takes: a rate by its inverse, of which free is nothing at all."""
    return (0.0 if value is None else 1 / value) if name in RATES else float(value or 0.0)


def _ends(name: str, known: dict[str, float]) -> list[float]:
    return sorted(_as_time(name, known[end]) for end in ("low", "high"))


def _as_values(name: str, times: Floats) -> list[Any]:
    """Values of a field from what they take."""
    if name in RATES:
        return [1 / time if time else None for time in times.tolist()]
    return [round(time) if name in COSTS else max(1.0, time) for time in times.tolist()]


def _left_open(
    hardware: Hardware, machines: int, generator: np.random.Generator
) -> tuple[Floats, dict[str, list[Any]]]:
    """What ``sim.own_step`` left open: factors of the curve's points [machines, points], values of fields,
    within their ranges where they have one.

    Raises:
        InputError: ``spread.own_step`` is not legal.
    """
    said: Any = hardware.spread.get("own_step")
    if said is None:
        return np.ones((machines, len(hardware.all_reduce))), {}
    try:
        names, about = tuple(said["factors"]), int(said["about_bytes"])
        covariance = np.array(said["covariance"], dtype=np.float64)
        is_legal = covariance.shape == (len(names), len(names)) and set(names) <= set(FACTORS) and about > 0
    except (KeyError, TypeError, ValueError):
        is_legal = False
    if not is_legal or not np.isfinite(covariance).all():
        raise InputError(
            f"spread.own_step: {str(said)[:60]!r} is not legal; give about_bytes, factors of "
            f"{', '.join(FACTORS)}, and as covariance a row and a column of finite numbers for each"
        )
    drawn = dict(zip(names, np.exp(_normal(covariance, machines, generator)).T, strict=True))
    links, tilts = (drawn.pop(name, np.ones(machines)) for name in ("link", "tilt"))
    sizes = [point.num_bytes for point in hardware.all_reduce]
    pairs = zip(links, tilts, strict=True)
    ratios = np.array([[tilt_ratio(link, tilt, size, about) for size in sizes] for link, tilt in pairs])
    fields, ranges = {}, hardware.spread.get("ranges", {})
    for name, factor in drawn.items():
        times = _as_time(name, getattr(hardware, name)) * factor
        if name in ranges and name not in SLOWDOWNS:
            low, high = _ends(name, ranges[name])
            times = np.clip(times, low, high)
        fields[name] = _as_values(name, times)
    return ratios, fields


def _normal(covariance: Floats, machines: int, generator: np.random.Generator) -> Floats:
    """Normal draws [machines, factors] around 0 whose own mean and covariance are exactly the given ones.

    The standard deviation of eighty machines that are drawn freely is off by a twelfth, and with it each end
    of an interval; moved and turned so, it is not.
    """
    factors = len(covariance)
    drawn = generator.standard_normal((machines, factors))
    if machines > factors + 1:
        left, _, right = np.linalg.svd(drawn - drawn.mean(axis=0), full_matrices=False)
        drawn = left @ right * (machines - 1) ** 0.5
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(drawn * np.sqrt(np.maximum(values, 0.0)) @ vectors.T)


# A distribution is its quantiles at these normal scores, and straight between them: least, p10, median, p90,
# greatest. Where only p90 is recorded the line from the median goes on to the 99th percentile.
_P90, _P975, _P99 = map(NormalDist().inv_cdf, (0.9, 0.975, 0.99))
SCORES = np.array([-_P99, -_P90, 0.0, _P90, _P99])
_GRID = np.array([NormalDist().inv_cdf((number + 0.5) / 4000) for number in range(4000)])
_NAMES = ("min_ns", "p10_ns", "median_ns", "p90_ns", "max_ns")
_MOST_SAMPLES = 1000  # drawn at most to repeat a calibration; if it had more, the scatter is scaled down


class Scatter(NamedTuple):
    """Scatter along the all-reduce curve, as factors on its points; each array has one row or entry a point.

    ``num_bytes``: the point's size. ``quantiles`` [points, 5]: those of its samples at ``SCORES``, over their
    mean; all 1 if nothing is known. ``counts``: the number of samples, 0 if nothing is known. ``by_mean``:
    whether the point is the mean of its samples, or their median. ``sigmas``: one standard deviation of the
    point's logarithm, from the interval that calibration kept; NaN without one.
    """

    num_bytes: Ints
    quantiles: Floats
    counts: Ints
    by_mean: Flags
    sigmas: Floats

    @property
    def known(self) -> int:
        """How many points have a scatter."""
        return int(np.count_nonzero(self.counts))

    @property
    def not_known(self) -> tuple[str, ...]:
        """That all-reduces do not vary, or at how many sizes they do not; empty where all do."""
        missing, sizes = len(self.counts) - self.known, len(self.counts)
        return (NO_SCATTER + (f" at {missing} of {sizes} sizes" if self.known else ""),) if missing else ()

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
            elif count:
                drawn = min(count, _MOST_SAMPLES)
                samples = np.interp(generator.standard_normal((times, drawn)), SCORES, self.quantiles[point])
                made = samples.mean(axis=1) if self.by_mean[point] else np.quantile(samples, 0.5, axis=1)
                factors[:, point] = 1 + (made / made.mean() - 1) * (drawn / count) ** 0.5
        return factors

    def jitter(self, wires: Ints, luck: Floats) -> Floats:
        """Factors of single all-reduces of ``wires`` bytes [messages], by standard normal ``luck``
        [draws, messages]; 1 in the mean. Between points quantiles are interpolated in bytes, beyond them
        kept.
        """
        quantiles = np.stack([np.interp(wires, self.num_bytes, level) for level in self.quantiles.T], axis=1)
        columns = zip(luck.T, quantiles, strict=True)
        return np.stack([np.interp(column, SCORES, levels) for column, levels in columns], axis=1)


def read_scatter(hardware: Hardware) -> Scatter:
    """The scatter of ``hardware.all_reduce`` from its ``spread``; points that it leaves out have none."""
    rows = []
    for point in hardware.all_reduce:
        known = hardware.spread.get("all_reduce", {}).get(str(point.num_bytes), {})
        quantiles, sigma = _quantiles(point, known), nan
        if {"low_ns", "high_ns"} <= set(known):
            sigma = log(max(1, known["high_ns"]) / max(1, known["low_ns"])) / (2 * _P975)
        is_mean = str(known.get("quantile", "median")).startswith("mean")
        count = 0 if quantiles is None else known["count"]
        rows.append((point.num_bytes, np.ones(5) if quantiles is None else quantiles, count, is_mean, sigma))
    return Scatter(*map(np.array, zip(*rows, strict=True)))


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
