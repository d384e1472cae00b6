"""The step that a job took under its own buckets, as the first test of its prediction, and as its anchor.

Parts measured apart (plain backwards, a link alone) leave open how much they slow each other down in the
step, and how fast the link is in it. The recorded step tells both by when its backward and its buckets end. A
few factors are fitted to these times, among them what DDP itself takes where nobody measured it, within its
range. A prior holds each factor to what was measured apart, or to its range, so that one of which the step
tells nothing stays as it was. The tuner's intervals contain what is left of each.

A backward that was recorded beside its collectives contains what these did to it, which other buckets would
do elsewhere. That is taken out, by what collectives are known to take from a rank that computes, and put in
again for each assignment.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from sim.clock.arrays import Floats
from sim.costs.doubts import UNMEASURED_COSTS, open_ranges
from sim.costs.service_time import tilt_ratio
from sim.errors import InputError
from sim.metrics.intervals import union
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.hardware import RATES, Hardware
from sim.nouns.measurement import MeasuredBucket, MeasuredIteration, Measurement
from sim.nouns.timeline import BucketTimes, Timeline
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate, simulated_step_ns
from sim.truth.anchor import AT_BOUND, MISSED, MOST_SLOWDOWN, MeasuredStep, link_that_explains, rescaled
from sim.units import NS_PER_S, format_ms

FEWEST_STEPS = 3
# How far parts that were measured apart may be from what they are in the step: one sigma of a logarithm.
_PRIOR = {"link": 0.2, "tilt": 0.05}
_LEAST_SIGMA = 0.005  # of the end of synchronisation: the model itself is no better
_MOST = log(MOST_SLOWDOWN)
_LEAST_SHARE = 1e-3  # of a cost: what is less is nothing
_ROUNDS = 20
_STEP = 0.01  # of a logarithm, for slopes
_ENOUGH = 1e-4
_LOOSE = 2.5  # times: a slow-down whose range is wider was hardly told by the step
_PLAIN = "run a few backwards under no_sync while recording"
_MORE_BUCKETS = (
    "under the recorded buckets hardly anything is reduced beside backward; record with more buckets "
    "(bucket_cap_mb=4)"
)
_FULL_LEVEL = "the ends of single buckets were not recorded; record at level full"
_ALONG = 2.0  # sigmas that a range of 95 % lies from the middle, nearly


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFactor:
    """One thing that the parts leave open, with the range that the recorded steps leave it (95 %).

    ``link`` multiplies every duration of the all-reduce curve, ``tilt`` those of messages 16 times larger
    against those of others; ``comm_slowdown`` and ``compute_slowdown`` are the hardware's. Costs that are not
    measured (``UNMEASURED_COSTS``) are told as how many times as much time as the hardware says.
    """

    name: str
    before: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """One time of the step, in ns from the start of backward (the step itself: from its own start).

    ``measured_ns`` is the median over the recorded steps, ``parts_ns`` what the parts predict, measured
    apart; ``anchored_ns`` what they predict with the factors.
    """

    what: str
    measured_ns: int
    parts_ns: int
    anchored_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """Workload and hardware that predict the recorded step, and how far their parts were from it.

    ``rest_ns`` is what the step holds beside its parts; it is in the workload's optimizer step.
    ``recorder_ns`` is what the recorder's own passes over the buckets take of the recorded step; workload and
    hardware predict the job without them.
    """

    workload: Workload
    hardware: Hardware
    assignment: Assignment
    steps: int
    times: tuple[OwnTime, ...]
    factors: tuple[OwnFactor, ...]
    doubtful: tuple[str, ...] = ()
    rest_ns: int = 0
    recorder_ns: int = 0


def own_step(workload: Workload, hardware: Hardware, measured: Measurement) -> OwnStep:
    """Fit ``link``, ``tilt``, ``comm_slowdown`` and ``compute_slowdown`` to the recorded step.

    On a machine with ranges for them, what hooks, launches and copies cost is fitted too, within these: they
    are part of what may explain a difference, and not counted on top of it.

    What the step holds beside its parts (gaps, buffers) goes to its end, once however many micro-batches it
    has, so that the whole step comes out too.

    Args:
        workload: as it was recorded with the step.
        hardware: a link of as many ranks, measured beside the job.
        measured: the job's own steps, as ``bucketsim import recording`` keeps them.

    Raises:
        InputError: another number of ranks, or fewer than three steps.
    """
    if measured.world_size != hardware.world_size:
        raise InputError(
            f"hardware {hardware.name!r}: world_size: {hardware.world_size} is not legal; the job has "
            f"{measured.world_size} ranks"
        )
    assert measured.asked is not None
    seen = [one for one in measured.iterations if len(one.buckets) in (0, len(measured.asked.bucket_indices))]
    if len(seen) < FEWEST_STEPS:
        raise InputError(
            f"{measured.name}: {len(seen)} steps with all their buckets are not enough to hold a prediction "
            f"to; record at least {FEWEST_STEPS} more"
        )
    times = _Times(workload, hardware, measured, seen)
    return _told(times, *_fit(times), seen)


def _has_pass(workload: Workload, measured: Measurement) -> bool:
    """Whether the hook of ``sim.record`` divided buckets in a pass that the recorded times do not contain."""
    if measured.asked is None or "comm_hook" in measured.asked.settings:
        return False
    return measured.provenance.get("source") == "sim.record" and "interference" not in workload.ready_includes


def hooked(workload: Workload, hardware: Hardware, measured: Measurement) -> tuple[Workload, Hardware]:
    """The job as ``sim.record`` saw it: its hook divides each bucket in a pass before it launches it.

    DDP divides as it copies gradients in (A3.4), so that the pass is played as part of these copies. It takes
    what lies between the hook's stamps. Nothing is changed for a job with a hook of its own, which has no
    such pass, nor where ready times contain interference, and with it what the pass did to later gradients.
    """
    if not _has_pass(workload, measured):
        return workload, hardware
    asked = measured.asked
    assert asked is not None
    assert asked.bucket_bytes is not None
    passes = [
        [(bucket.launch_ns or 0) - (bucket.ready_ns or 0) for bucket in step.buckets]
        for step in measured.traced
        if len(step.buckets) == len(asked.bucket_indices)
    ]
    took_ns = sum(max(0, median(times) - hardware.launch_cost_ns) for times in zip(*passes, strict=True))
    ns_a_byte = took_ns / sum(asked.bucket_bytes)
    if "copy_in" not in workload.ready_includes and hardware.copy_in_bytes_per_s is not None:
        ns_a_byte += NS_PER_S / hardware.copy_in_bytes_per_s
    includes = tuple(effect for effect in workload.ready_includes if effect != "copy_in")
    rate = NS_PER_S / ns_a_byte if ns_a_byte else None
    return replace(workload, ready_includes=includes), replace(hardware, copy_in_bytes_per_s=rate)


class _Row(NamedTuple):
    """A factor of the fit; all but ``name`` and ``is_cost`` are logarithms.

    ``start``: as the hardware has it. ``expected``: before the step is seen, give or take ``below`` and
    ``above`` (one sigma). ``least`` and ``most``: its bounds. ``is_cost``: whether it is one of
    ``UNMEASURED_COSTS``. ``stated``: the range that the hardware states, if it does.
    """

    name: str
    start: float
    expected: float
    below: float
    above: float
    least: float
    most: float
    is_cost: bool = False
    stated: tuple[float, float] | None = None


def _rows(
    workload: Workload, hardware: Hardware, slowdowns: dict[str, tuple[float, float]], *, passes: bool
) -> tuple[_Row, ...]:
    """The factors that the step may fix; ``passes``: copies into buckets hold the recorder's own pass."""
    ranges = open_ranges(hardware.spread.get("ranges", {}))
    link, tilt = _PRIOR["link"], _PRIOR["tilt"]
    rows = [_Row("link", 0.0, 0.0, link, link, -_MOST, _MOST)]
    if "all_reduce" in ranges:
        low, high = ends = _times_of("link", 1.0, ranges["all_reduce"])
        below, above = max(link, -low / _ALONG), max(link, high / _ALONG)
        rows = [_Row("link", 0.0, 0.0, below, above, min(-_MOST, low), max(_MOST, high), stated=ends)]
    rows.append(_Row("tilt", 0.0, 0.0, tilt, tilt, -_MOST, _MOST))
    for name in UNMEASURED_COSTS:
        value = getattr(hardware, name)
        if name in ranges and value and not (name == "copy_in_bytes_per_s" and passes):
            low, high = _times_of(name, value, ranges[name])
            below, above = max(AT_BOUND, -low / _ALONG), max(AT_BOUND, high / _ALONG)
            rows.append(_Row(name, 0.0, 0.0, below, above, low, high, is_cost=True))
    for name, (expected, sigma) in slowdowns.items():
        if name == "compute_slowdown" and "interference" in workload.ready_includes:
            continue  # the recorded times contain it, so any value fits them
        below = above = sigma
        if name in ranges:
            low, high = _times_of(name, getattr(hardware, name), ranges[name])
            below, above = max(sigma, -low / _ALONG), max(sigma, high / _ALONG)
        rows.append(_Row(name, log(getattr(hardware, name)), expected, below, above, 0.0, _MOST))
    return tuple(rows)


def _times_of(name: str, value: float, known: dict[str, float]) -> tuple[float, float]:
    """Logarithms of how many times as much time the ends of a range take as ``value`` does: least, most."""
    low, high = (log(max(known[end] / value, _LEAST_SHARE)) for end in ("low", "high"))
    return (min(0.0, -high), max(0.0, -low)) if name in RATES else (min(0.0, low), max(0.0, high))


class _Times:
    """The times compared: when buckets begin and end, and when backward and synchronisation end, ns."""

    def __init__(
        self,
        workload: Workload,
        hardware: Hardware,
        measured: Measurement,
        seen: Sequence[MeasuredIteration],
    ) -> None:
        assert measured.asked is not None
        self.workload, self.hardware, self.assignment = workload, hardware, measured.asked
        self.computes_on_host = measured.environment.get("place") == "cpu"
        self.recorded = hooked(workload, hardware, measured)
        passes = _has_pass(workload, measured)
        # The pass lies between a bucket's being ready and its launch; the simulator's copies are before both.
        self.begins = "launch_ns" if passes else "ready_ns"
        of_buckets = [self._of_buckets(step.buckets) for step in seen if step.buckets]
        self.has_buckets = bool(of_buckets)
        columns = [
            *(np.array(column, float) for column in zip(*of_buckets, strict=True)),
            np.array([step.backward_end_ns for step in seen], float),
            np.array([step.sync_end_ns for step in seen], float),
        ]
        buckets = range(len(columns) // 2 - 1)
        told = [f"bucket {bucket} {what}" for what in ("begins", "ends") for bucket in buckets]
        self.names = [*told, "backward ends", "all is reduced"]
        self.measured_ns = np.array([np.median(column) for column in columns])
        scatter = np.array([1.25 * column.std() / len(column) ** 0.5 for column in columns])
        self.sigma_ns = np.maximum(scatter, _LEAST_SIGMA * self.measured_ns[-1])
        sizes = self.assignment.bucket_bytes or (1,)  # their middle: the mean of logarithms, by their bytes
        self.about_bytes = max(1, round(float(np.exp(np.average(np.log(sizes), weights=sizes)))))
        slowdowns = expected_slowdowns(hardware, computes_on_host=self.computes_on_host)
        self.compute_slowdown = slowdowns["compute_slowdown"]
        self.rows = _rows(workload, hardware, slowdowns, passes=passes)
        self.factors = tuple(row.name for row in self.rows)
        columns = [np.array(column, float) for column in list(zip(*self.rows, strict=True))[1:7]]
        self.start, self.expected, self.below, self.above, self.least, self.most = columns

    def _of_buckets(self, buckets: Sequence[MeasuredBucket | BucketTimes]) -> list[int | None]:
        """When each begins, then when each ends."""
        return [*(getattr(one, self.begins) for one in buckets), *(one.end_ns for one in buckets)]

    def apply(self, hardware: Hardware, logs: Floats) -> Hardware:
        """``hardware`` with these factors."""
        values: dict[str, Any] = dict(zip(self.factors, np.exp(logs).tolist(), strict=True))
        link, tilt = values.pop("link"), values.pop("tilt")
        bent = rescaled(hardware, lambda size: tilt_ratio(link, tilt, size, self.about_bytes))
        for name in set(UNMEASURED_COSTS) & set(values):
            value = getattr(hardware, name)
            values[name] = value / values[name] if name in RATES else round(value * values[name])
        return replace(bent, **values)

    def predict(self, logs: Floats) -> Floats:
        """The times compared, with these factors."""
        workload, hardware = self.recorded
        timeline = simulate(workload, self.apply(hardware, logs), self.assignment, "analytic")
        buckets = self._of_buckets(timeline.buckets if self.has_buckets else ())
        return np.array([*buckets, timeline.backward_end_ns, timeline.sync_end_ns], float)

    def misses(self, logs: Floats) -> Floats:
        """How far off times are from the measured ones, and factors from what the parts say, in sigmas."""
        times = (self.predict(logs) - self.measured_ns) / self.sigma_ns
        sigmas = np.where(logs < self.expected, self.below, self.above)
        return np.concatenate([times, (logs - self.expected) / sigmas])

    def slopes(self, logs: Floats, misses: Floats) -> Floats:
        """How each miss changes with each factor."""
        slopes = np.empty((len(misses), len(logs)))
        for place in range(len(logs)):
            aside = logs.copy()
            aside[place] += _STEP if logs[place] + _STEP <= self.most[place] else -_STEP
            slopes[:, place] = (self.misses(aside) - misses) / (aside[place] - logs[place])
        return slopes


def _fit(times: _Times) -> tuple[Floats, Floats]:
    """Logarithms of the factors and their covariance, by Levenberg's and Marquardt's least squares within
    bounds."""
    logs = np.clip(times.expected, times.least, times.most)
    misses, damping = times.misses(logs), 1e-2
    slopes = times.slopes(logs, misses)
    for _ in range(_ROUNDS):
        square = slopes.T @ slopes
        while True:
            damped = square + damping * np.diag(np.diag(square))
            tried = np.clip(logs - np.linalg.solve(damped, slopes.T @ misses), times.least, times.most)
            new = times.misses(tried)
            if new @ new < misses @ misses or damping > 1e4:
                break
            damping *= 4
        moved = float(np.abs(tried - logs).max())
        if new @ new >= misses @ misses:
            break
        logs, misses, damping = tried, new, max(damping / 4, 1e-6)
        slopes = times.slopes(logs, misses)
        if moved < _ENOUGH:
            break
    free = max(1, len(times.measured_ns) - 1)
    unmet = max(1.0, float(misses @ misses) / free)  # where the model does not meet the step, less is known
    return logs, np.asarray(np.linalg.inv(slopes.T @ slopes) * unmet, float)


def _fits(times: _Times, logs: Floats, covariance: Floats) -> bool:
    """Whether the link gives the recorded step: no factor of two that share a resource is held by its bound,
    the link is within its stated range as well as it is known, and backward and synchronisation end when they
    did."""
    for row, value in zip(times.rows, logs.tolist(), strict=True):
        if row.stated is not None:
            known = _ALONG * float(covariance[0, 0]) ** 0.5
            if not row.stated[0] - known <= value <= row.stated[1] + known:
                return False
        elif not row.is_cost and _MOST - abs(value) < AT_BOUND:
            return False
    missed = np.abs(times.predict(logs) - times.measured_ns) / np.maximum(times.measured_ns, 1)
    return bool((missed[-2:] <= MISSED).all())


def _told(times: _Times, logs: Floats, covariance: Floats, seen: Sequence[MeasuredIteration]) -> OwnStep:
    left_open = {
        "factors": list(times.factors),
        "covariance": covariance.tolist(),
        "about_bytes": times.about_bytes,
    }
    fits = _fits(times, logs, covariance)
    if not fits:  # then the step says nothing of this link's factors
        end_ns = max(1, round(times.measured_ns[-1]))
        end = MeasuredStep(assignment=times.assignment, step_ns=end_ns, sync_end_ns=end_ns)
        left_open |= {
            "covariance": np.diag(np.maximum(times.below, times.above) ** 2).tolist(),
            "fits": False,
            "explained_by": link_that_explains(*times.recorded, end),
        }
    fitted = times.apply(times.hardware, logs)
    workload, hardware = taken_apart(
        times.workload,
        replace(fitted, spread={**fitted.spread, "own_step": left_open}),
        times.assignment,
        times.compute_slowdown,
    )
    rows, sigmas = list(times.rows), np.sqrt(np.diag(covariance)).tolist()
    values, advice = logs.tolist(), {}
    if workload is not times.workload:
        expected, sigma = times.compute_slowdown
        start = log(times.hardware.compute_slowdown)
        rows.append(_Row("compute_slowdown", start, expected, sigma, sigma, 0.0, _MOST))
        values, sigmas = [*values, expected], [*sigmas, sigma]
        advice["compute_slowdown"] = f"the recorded times contain it; {_PLAIN}"
    factors = tuple(
        OwnFactor(
            name=row.name,
            before=exp(row.start),
            value=exp(value),
            low=exp(max(value - _ALONG * sigma, row.least)),
            high=exp(min(value + _ALONG * sigma, row.most)),
        )
        for row, value, sigma in zip(rows, values, sigmas, strict=True)
    )
    measured_step_ns = round(median(step.step_ns for step in seen))
    recorded, machine = times.recorded
    before, after = (
        simulated_step_ns(recorded, one, times.assignment) for one in (machine, times.apply(machine, logs))
    )
    held, left_ns = _with_rest(workload, measured_step_ns - after, read_switches(times.assignment))
    doubtful: list[str] = []
    if "interference" in workload.ready_includes and times.computes_on_host:
        doubtful.append(
            "backward contains what its own all-reduces took of it, and the hardware does not say what "
            "others would take, so that gains may be too large; calibrate again, which measures "
            f"host_share, or {_PLAIN}"
        )
    if left_ns:
        took = format_ms(measured_step_ns)
        doubtful.append(f"the recorded step, {took}, is shorter than its parts by more than forward")
    doubtful += [
        f"{one.name} is known to {max(1.0, one.low):.2f} to {one.high:.2f} only: "
        + advice.get(one.name, _MORE_BUCKETS if times.has_buckets else _FULL_LEVEL)
        for one in factors
        if fits and one.name.endswith("slowdown") and one.high > _LOOSE * max(1.0, one.low)
    ]
    ends = zip(times.measured_ns, times.predict(times.start), times.predict(logs), strict=True)
    step = (measured_step_ns, before, measured_step_ns + left_ns)
    return OwnStep(
        workload=held,
        hardware=hardware,
        assignment=times.assignment,
        steps=len(seen),
        times=tuple(
            OwnTime(what=what, measured_ns=round(one), parts_ns=round(two), anchored_ns=round(three))
            for what, (one, two, three) in zip((*times.names, "the step"), (*ends, step), strict=True)
        ),
        factors=factors,
        doubtful=tuple(doubtful),
        recorder_ns=max(0, measured_step_ns + left_ns - simulated_step_ns(held, hardware, times.assignment)),
        rest_ns=max(0, held.optimizer_ns - workload.optimizer_ns),
    )


def _with_rest(workload: Workload, rest_ns: int, switches: Switches) -> tuple[Workload, int]:
    """The workload whose step takes ``rest_ns`` more, and what a step cannot be shortened by.

    What is nobody's time goes to the end of the step, which comes once however many micro-batches there are.
    What the parts have too much goes from each forward.
    """
    count = switches.accumulation_steps
    cut = min(workload.forward_ns, max(0, -(rest_ns // count)))
    end_ns = workload.optimizer_ns + rest_ns + count * cut
    held = replace(workload, forward_ns=workload.forward_ns - cut, optimizer_ns=max(0, end_ns))
    return held, max(0, -end_ns)


# ---- computing and interference apart, in backwards that all had collectives beside them

_NOTHING: dict[str, Any] = {"factors": [], "covariance": [], "about_bytes": 1}


def taken_apart(
    workload: Workload, hardware: Hardware, assignment: Assignment, expected: tuple[float, float]
) -> tuple[Workload, Hardware]:
    """The workload without the interference in its times, and the hardware with it as ``compute_slowdown``.

    With other buckets, other collectives would run beside backward. The recorded step does not tell the
    slow-down, as any value meets it: the expected one is taken, with its uncertainty in ``spread.own_step``.
    If no slow-down is expected, or the times contain none, both are returned as they are.

    Args:
        workload: recorded under ``assignment``.
        hardware: its link as it was in that step.
        assignment: the buckets that the job had.
        expected: ``compute_slowdown`` of ``expected_slowdowns``, its logarithm and sigma.
    """
    log, sigma = expected
    if "interference" not in workload.ready_includes or log <= 0:
        return workload, hardware
    slowdown = float(np.exp(log))
    known = hardware.spread.get("own_step", _NOTHING)
    count = len(known["factors"])
    covariance = np.pad(np.reshape(known["covariance"], (count, count)), (0, 1))
    covariance[-1, -1] = sigma**2
    own_step = known | {
        "factors": [*known["factors"], "compute_slowdown"],
        "covariance": covariance.tolist(),
    }
    return (
        without_interference(simulate(workload, hardware, assignment, "analytic"), slowdown),
        replace(hardware, compute_slowdown=slowdown, spread={**hardware.spread, "own_step": own_step}),
    )


def without_interference(timeline: Timeline, compute_slowdown: float) -> Workload:
    """The workload of ``timeline`` as its backward would have gone alone.

    While a collective is on the wire, 1 ns of recorded time is ``1 / compute_slowdown`` ns of computing.
    Played with that slow-down under the same buckets, what comes out is what was recorded.
    """
    workload = timeline.workload
    busy = union((bucket.start_ns, bucket.end_ns) for bucket in timeline.buckets)

    def plain(time: int) -> int:
        beside = sum(max(0, min(end, time) - start) for start, end in busy)
        return round(time - beside * (1 - 1 / compute_slowdown))

    return workload.retimed(
        lambda times: tuple(None if time is None else plain(time) for time in times),
        backward_ns=plain(workload.backward_ns),
        ready_order=workload.order(),
        ready_includes=tuple(effect for effect in workload.ready_includes if effect != "interference"),
    )


_SIGMA = 0.1  # of a slow-down's logarithm, where it was measured apart from the step
_MOST_SHARE = 0.75  # of a core, that communication takes from a rank that computes on it


def expected_slowdowns(hardware: Hardware, *, computes_on_host: bool) -> dict[str, tuple[float, float]]:
    """The expected ``comm_slowdown`` and ``compute_slowdown`` of a step: by name, logarithm and its sigma.

    A rank that computes on its host shares cores with its all-reduces (``spread.host_share``,
    ``spread.comm_beside_compute``; medians over sizes). A job that trains measures only the processor's time
    (``spread.processor_share``): all-reduces are then taken to slow down as much as computing does.
    """
    spread = hardware.spread
    measured = spread.get("host_share", spread.get("processor_share")), spread.get("comm_beside_compute")
    shares, slowdowns = (
        [one for one in known.values() if isinstance(one, float)] if isinstance(known, dict) else []
        for known in measured
    )
    found = {"comm_slowdown": hardware.comm_slowdown, "compute_slowdown": hardware.compute_slowdown}
    if not shares or not computes_on_host:
        return {name: (float(np.log(value)), _SIGMA) for name, value in found.items()}
    compute = 1 / (1 - min(_MOST_SHARE, max(0.0, median(shares))))
    found["compute_slowdown"] *= compute
    found["comm_slowdown"] *= max(1.0, median(slowdowns)) if slowdowns else compute
    return {name: (log := float(np.log(value)), max(_SIGMA, log / 2)) for name, value in found.items()}
