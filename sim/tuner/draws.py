"""Steps that may happen: recorded iterations, on machines that are allowed, with jitter.

Steps are drawn as a table: so many machines, each with the same iterations, since an error of a calibration
is there in every step. Jitter is drawn anew for every collective. What was not recorded does not vary, and
``not_known`` says so.

A drawn machine is a whole ``Hardware``. What was measured scatters as a calibration's ``spread`` says (how
single all-reduces scatter, how well their curve is known), and by the covariance that holding to a job's own
step left. What was not measured lies anywhere in its range: half of the machines on either side of what the
hardware says, and each end of each range in one of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import log, pi
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from sim.clock.arrays import Flags, Floats, Ints
from sim.clock.program import MOST_NS, machine_of
from sim.costs.doubts import FACTORS, Unknown, open_ranges, unknown, with_shared_host
from sim.costs.service_time import service_ns, tilt_ratio
from sim.errors import InputError
from sim.nouns.checks import Legal
from sim.nouns.hardware import COSTS, RATES, SCALARS, SLOWDOWNS, CurvePoint, Hardware
from sim.tuner.problem import Buckets, Layout, Problem, lay_out, play_steps, services
from sim.units import format_number

DRAWS = 400
FEWEST_MACHINES = 20  # fewer say too little of how machines differ for an interval
FEWEST_IN_RANGES = 40  # whose least and greatest hold 95 of 100 others
FITTED_MACHINES = 80  # of what a job's own step left open: fewer leave the ends of an interval to luck
FEWEST_ITERATIONS = 2
UNRECORDED_ITERATIONS = 20  # a machine, where jitter is all that varies between steps
MOST_CELLS = 1 << 24  # draws times gradients, at most: an array of int64 has 128 MiB

NO_ITERATIONS = "how iterations vary"
NO_BAND = "how far the estimate may be off"
# Of a curve of which no scatter is recorded, beside anything else that varies: calibrations of the bundled
# machines know a point to 2 % at the median (one sigma), and the worst of their points to 8 %.
UNRECORDED = {"low": 0.95, "high": 1.05}
FEWEST_OF_A_READING = 8
NO_SCATTER = "how all-reduces vary"


# ---- Machines.


def draw_machines(
    hardware: Hardware, count: int, generator: np.random.Generator, known: Unknown
) -> tuple[tuple[Hardware, ...], list[int]]:
    """``count`` machines, or more where many readings need some each, and how many of them belong to each
    reading, in their order; ``known``: what is not.

    Raises:
        InputError: a ``spread`` that cannot be read.
    """
    readings: Sequence[dict[str, Any]] = hardware.spread.get("readings") or ({"weight": 1},)
    shares = [max(FEWEST_OF_A_READING, round(count * one["weight"])) for one in readings]
    if len(readings) == 1:
        shares = [count]
    count, belongs = sum(shares), np.repeat(np.arange(len(shares)), shares)
    by_reading = np.array([one.get("curve", 1.0) for one in readings])[belongs]
    factors = read_scatter(hardware).repeat_calibrations(count, generator) * by_reading[:, None]
    own, fields = _left_open(hardware, count, generator)
    factors *= own
    fitted = hardware.spread.get("own_step", {}).get("factors", ())
    for name, ends in open_ranges(hardware).items():
        if name in fields or (name == "all_reduce" and "link" in fitted):
            continue  # within its range a step has fitted it
        level = levels(shares, generator)
        if name == "all_reduce":
            for place, point in enumerate(hardware.all_reduce):
                ranged = in_range(_ends_of(hardware, point, ends), 1.0, level)
                factors[:, place] *= np.where(by_reading == 1.0, ranged, 1.0)
        elif name in (*COSTS, *RATES, *SLOWDOWNS):
            own_time = _as_time(name, getattr(hardware, name))
            fields[name] = _as_values(name, in_range(_ends(name, ends), own_time, level))
    knots = {size: in_range(ends, 1.0, levels(shares, generator)) for size, ends in known.guesses.items()}
    bare, hardwares = replace(hardware, spread={}), []
    for k, reading in enumerate(belongs.tolist()):
        timed = zip(bare.all_reduce, factors[k].tolist(), strict=True)
        points = {one.num_bytes: round(one.duration_ns * by) for one, by in timed}
        curve = _curve(points)
        guessed = {size: round(service_ns(curve, size) * float(by[k])) for size, by in knots.items()}
        changed = {name: values[k] for name, values in fields.items()} | readings[reading].get("set", {})
        hardwares.append(replace(bare, all_reduce=_curve(points | guessed) if guessed else curve, **changed))
    return tuple(hardwares), shares


def _curve(points: dict[int, int]) -> tuple[CurvePoint, ...]:
    """A curve from ns by bytes."""
    return tuple(CurvePoint(num_bytes=size, duration_ns=time) for size, time in sorted(points.items()))


def levels(shares: Sequence[int], generator: np.random.Generator) -> Floats:
    """Where in a range each machine lies, from 0 to 1: evenly, both ends included, in each reading."""
    return np.concatenate([generator.permutation(share) / (share - 1) for share in shares])


def in_range(ends: Sequence[float], own: float, level: Floats) -> Floats:
    """What lies at each ``level`` between two ends, with ``own``, or what is nearest to it, in the middle."""
    low, high = ends
    return np.interp(level, (0.0, 0.5, 1.0), (low, min(max(own, low), high), high))


def _ends_of(hardware: Hardware, point: CurvePoint, known: dict[str, float]) -> tuple[float, float]:
    """The least and the greatest factor of a point of the curve: its own where it says them, as one does
    whose ends are of no samples."""
    own = hardware.spread.get("all_reduce", {}).get(str(point.num_bytes), {})
    if {"min_ns", "max_ns"} <= own.keys() and "count" not in own and point.duration_ns > 0:
        return own["min_ns"] / point.duration_ns, own["max_ns"] / point.duration_ns
    return known["low"], known["high"]


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
        covariance = np.array(said["covariance"], dtype=np.float64).reshape(len(names), len(names))
        is_legal = set(names) <= set(FACTORS) and about > 0 and bool(np.isfinite(covariance).all())
    except (KeyError, TypeError, ValueError):
        is_legal = False
    if not is_legal:
        raise InputError(
            f"spread.own_step: {str(said)[:60]!r} is not legal; give about_bytes, factors of "
            f"{', '.join(FACTORS)}, and as covariance a row and a column of finite numbers for each"
        )
    drawn = dict(zip(names, np.exp(_normal(covariance, machines, generator)).T, strict=True))
    links, tilts = (drawn.pop(name, np.ones(machines)) for name in ("link", "tilt"))
    sizes, pairs = [point.num_bytes for point in hardware.all_reduce], zip(links, tilts, strict=True)
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


class Scatter(NamedTuple):
    """Scatter along the all-reduce curve, as factors on its points; each array has one row or entry a point.

    ``num_bytes``: the point's size. ``quantiles`` [points, 5]: those of its samples at ``SCORES``, over their
    mean; all 1 if nothing is known, as ``is_known`` says. ``sigmas``: one standard deviation of the point's
    logarithm, by the 95 % interval that calibration kept, else by its samples: 0 without either.
    """

    num_bytes: Ints
    quantiles: Floats
    is_known: Flags
    sigmas: Floats

    @property
    def known(self) -> int:
        """How many points have a scatter."""
        return int(self.is_known.sum())

    @property
    def not_known(self) -> tuple[str, ...]:
        """That all-reduces do not vary, or at how many sizes they do not; empty where all do."""
        sizes = len(self.is_known)
        where = f" at {sizes - self.known} of {sizes} sizes" if self.known else ""
        return (NO_SCATTER + where,) if self.known < sizes else ()

    def repeat_calibrations(self, times: int, generator: np.random.Generator) -> Floats:
        """The curve's points as other calibrations might have found them, as factors [times, points], of a
        point 1 in the mean: what was measured is not corrected."""
        drawn, varies = np.ones((times, len(self.sigmas))), self.sigmas > 0
        drawn[:, varies] = np.exp(self.sigmas[varies] * generator.standard_normal((times, varies.sum())))
        return np.asarray(drawn / drawn.mean(axis=0))

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
        quantiles, sigma = _quantiles(point, known), 0.0
        if {"low_ns", "high_ns"} <= set(known):
            sigma = log(max(1, known["high_ns"]) / max(1, known["low_ns"])) / (2 * _P975)
        elif quantiles is not None:  # the standard error of a mean, or of a median, about which samples lie
            scale = (quantiles[3] - quantiles[1]) / quantiles[2] / (2 * _P90) * (pi / 2) ** 0.5
            if str(known.get("quantile")).partition(" ")[0] == "mean":
                scale = np.interp(_GRID, SCORES, quantiles).std()
            sigma = float(scale) / known["count"] ** 0.5
        is_known = quantiles is not None
        rows.append((point.num_bytes, quantiles if is_known else np.ones(5), is_known, sigma))
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


# ---- Steps.


class Draws:
    """``machines`` times ``iterations`` steps; step ``k * iterations + i`` is iteration i on machine k.

    About ``count`` steps: 20 machines or more (40 in ranges), each with the same iterations. Where a job's
    own step left something open, there are 80 machines, and up to four times as many steps. All recorded
    iterations are drawn, or as many as there is room for. One rank without a band has one machine; without
    samples, too, there is one step, the nominal one. An iteration counts as recorded if its sample saw every
    gradient.

    Every drawn step keeps the nominal ready order: where a gradient was ready before one that precedes it in
    that order, it is taken to be ready together with it. That moves no launch of buckets that are contiguous
    in ready order (A3.5); it only delays the copy of such a gradient into its bucket. From the last gradient
    to the end of backward it takes as long as in the nominal step. An estimate's band stretches all times of
    the step, or, where the length of backward is known, ready times up to its end.

    ``hardwares`` are the machines. ``works`` [draws, places] and ``tails`` [draws]: ns of the compute lane,
    along the nominal ready order, as in ``Problem``. ``paces`` [draws]: factor on the rest of the step.
    ``luck`` [draws, places]: standard normal, by the place that a bucket waits for; None where there is no
    jitter. ``not_known``: what does not vary because nothing of it is recorded. ``rests_on``: in words, the
    ranges in which machines or times lie; empty where none do.

    Raises:
        InputError: ``count`` below 1, a negative ``seed``, a ``spread`` that cannot be read, or a step that
            is too long to be played.
    """

    def __init__(self, problem: Problem, count: int = DRAWS, seed: int = 0) -> None:
        Legal(least=1).take("draws", count)
        Legal().take("seed", seed)
        workload, places = problem.workload, len(problem)
        hardware = with_shared_host(problem.job, problem.hardware)
        count = min(count, MOST_CELLS // places)
        choosing, calibrating, jittering = map(np.random.default_rng, np.random.SeedSequence(seed).spawn(3))
        self.problem, self.scatter = problem, read_scatter(hardware)
        has_link = hardware.world_size > 1 and bool(problem.wire.any())
        jitters, is_fitted = self.scatter.known > 0 and has_link, "own_step" in hardware.spread and has_link
        band = workload.band if workload.estimated else None
        works = _recorded(problem)
        recorded = len(works) if len(works) >= 2 else 0
        if has_link and (recorded or band is not None) and not self.scatter.sigmas.any():
            ranges = {"all_reduce": UNRECORDED} | hardware.spread.get("ranges", {})
            hardware = replace(hardware, spread=hardware.spread | {"ranges": ranges})
        known = unknown(hardware, [*problem.wire.tolist(), int(problem.wire.sum())])
        self.rests_on = known.words
        if band is not None:
            what = "ready times" if workload.band_on == "ready" else "times"
            times = " to ".join(map(format_number, band))
            self.rests_on = (*known.words, f"{what} of the estimate, {times} times")
        differ = is_fitted or (has_link and self.scatter.sigmas.any())
        fewest = FEWEST_IN_RANGES if self.rests_on else FEWEST_MACHINES if differ else 1
        most = max(FEWEST_ITERATIONS, count // fewest)
        if not recorded:
            works = np.tile(problem.work, (min(UNRECORDED_ITERATIONS, most) if jitters else 1, 1))
        elif recorded > most:
            works = works[np.sort(choosing.choice(recorded, size=most, replace=False))]
        self.iterations = len(works)
        machines = max(fewest, count // self.iterations) if fewest > 1 else 1
        if is_fitted:  # more of them, and as many iterations on each
            machines = max(machines, min(FITTED_MACHINES, MOST_CELLS // (self.iterations * places)))
        self.hardwares, shares = (hardware,) * machines, [machines]
        if has_link:
            self.hardwares, shares = draw_machines(hardware, machines, calibrating, known)
        self.machines = len(self.hardwares)
        self.works, self.tails = np.tile(works, (self.machines, 1)), np.full(len(self), problem.tail)
        self.paces = np.ones(len(self))
        if band is not None:
            if workload.backward_ns * band[1] > MOST_NS:
                raise InputError(f"band: {[*band]} is not legal; it makes backward longer than {MOST_NS} ns")
            # One factor a machine: their median is 1, their limits the band's ends.
            self._stretch(np.repeat(in_range(band, 1.0, levels(shares, calibrating)), self.iterations))
        self.luck = _luck(jittering, self.machines, self.iterations, places) if jitters else None
        self.not_known = (
            *([] if recorded else [NO_ITERATIONS]),
            *(self.scatter.not_known if hardware.world_size > 1 else ()),
            *([NO_BAND] if workload.estimated and band is None else []),
        )
        self._curves = [problem.curve_on(one) for one in self.hardwares]
        # Machines that differ in their curves alone are played in one go.
        fields = ("launch_blocks_compute", *SCALARS)
        kinds = {tuple(getattr(one, name) for name in fields) for one in self.hardwares}
        # What counts as a small message is told by the nominal curve.
        self._played_on = [
            (machine_of(workload, one, hardware), problem.copies_on(one))
            for one in (self.hardwares[:1] if len(kinds) == 1 else self.hardwares)
        ]

    def __len__(self) -> int:
        return self.machines * self.iterations

    def services(self, layout: Layout) -> Ints:
        """Service times in ns of what is sent: [draws, messages].

        Buckets of two candidates that end at the same place have the same luck.
        """
        alone = np.stack([services(*curve, layout.wires) for curve in self._curves])
        by_step = np.repeat(alone, self.iterations, axis=0)
        if self.luck is None:
            return by_step
        places = np.append(layout.stops, layout.stops[-1])[: len(layout.wires)]
        factors = self.scatter.jitter(layout.wires, self.luck[:, places])
        return np.rint(np.minimum(by_step * factors, MOST_NS)).astype(np.int64)

    def steps(self, buckets: Buckets, rest_ns: int) -> Floats:
        """Every step in ns, [machines, iterations], if the nominal one has ``rest_ns`` beside backwards that
        reduce, each with these buckets."""
        problem, each = self.problem, len(self) // len(self._played_on)  # steps that are played in one go
        tables, bucket_of = problem.tables, problem.bucket_of(buckets)
        sent, ends = self.services(lay_out(tables, bucket_of, problem.copies)), []
        for number, (machine, copies) in enumerate(self._played_on):
            some, layout = slice(number * each, (number + 1) * each), lay_out(tables, bucket_of, copies)
            ends.append(play_steps(machine, self.works[some], self.tails[some], layout, sent[some]))
        steps: Floats = problem.times * np.concatenate(ends) + self.paces * rest_ns
        return steps.reshape(self.machines, self.iterations)

    def _stretch(self, factors: Floats) -> None:
        """Times of each draw times a factor. Where the length of backward is known, only where it begins, and
        the less the nearer its end is: what is done of it over what is left is what is multiplied, so that no
        gradient comes after the end."""
        if self.problem.workload.band_on != "ready":
            self.paces = factors
            self.works = np.rint(self.works * factors[:, None]).astype(np.int64)
            self.tails = np.rint(self.tails * factors).astype(np.int64)
            return
        ready, factor = np.cumsum(self.works, axis=1), factors[:, None]
        ends = ready[:, -1:] + self.tails[:, None]
        moved = ready * factor / np.maximum(1 + (factor - 1) * ready / np.maximum(ends, 1), 1e-9)
        moved = np.minimum(np.rint(moved).astype(np.int64), ends)
        self.works, self.tails = np.diff(moved, axis=1, prepend=0), (ends - moved[:, -1:])[:, 0]


def _luck(generator: np.random.Generator, machines: int, iterations: int, places: int) -> Floats:
    """Standard normal scores [machines * iterations, places], on each machine the same at each place, in an
    order of its own: so that what differs between machines' means is theirs, and no luck."""
    even = (np.arange(iterations) + 0.5) / iterations
    scores = np.array([NormalDist().inv_cdf(one) for one in even])
    orders = generator.random((machines, iterations, places)).argsort(axis=1)
    return scores[orders].reshape(machines * iterations, places)


def _recorded(problem: Problem) -> Ints:
    """Work of the compute lane in each recorded iteration that saw every gradient: [iterations, places]."""
    used = np.flatnonzero(~problem.unused)  # the others are marked with the first of them
    rows = [[sample[problem.order[place]] for place in used] for sample in problem.workload.samples]
    whole = [row[:1] * used[0] + row for row in rows if None not in row]
    ready = np.array(whole, dtype=np.int64).reshape(len(whole), len(problem.order))
    if ready.size and ready.max() > MOST_NS:
        raise InputError(
            f"samples: {ready.max()} ns is more than the tuner can count with; give at most {MOST_NS}"
        )
    ready = np.maximum.accumulate(ready, axis=1) - problem.ready_ns  # later than in the nominal step
    return np.diff(ready, axis=1, prepend=0) + problem.work
