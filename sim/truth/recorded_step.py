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
from math import log
from statistics import median
from typing import Any

import numpy as np

from sim.clock.arrays import Floats
from sim.costs.not_measured import open_ranges
from sim.costs.own_costs import UNMEASURED_COSTS
from sim.costs.service_time import tilt_ratio
from sim.errors import InputError
from sim.metrics.intervals import union
from sim.nouns.assignment import Assignment
from sim.nouns.ddp_switches import Switches, read_switches
from sim.nouns.hardware import RATES, Hardware
from sim.nouns.measurement import MeasuredIteration, Measurement
from sim.nouns.timeline import Timeline
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
    fitted = _fit(times)
    return _told(times, fitted, seen)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """Logarithms of the factors, their covariance, and the times predicted by parts alone and by the fit."""

    logs: Floats
    covariance: Floats
    parts_ns: Floats
    anchored_ns: Floats


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
        # The pass lies between a bucket's being ready and its launch; the simulator's copies are before both.
        self.begins = "launch_ns" if _has_pass(workload, measured) else "ready_ns"
        buckets = [
            [*(getattr(one, self.begins) for one in step.buckets), *(one.end_ns for one in step.buckets)]
            for step in seen
            if step.buckets
        ]
        rows = [
            *(np.array(column, float) for column in zip(*buckets, strict=True)),
            np.array([step.backward_end_ns for step in seen], float),
            np.array([step.sync_end_ns for step in seen], float),
        ]
        places = range(len(rows) // 2 - 1)
        self.names = [
            *(f"bucket {place} begins" for place in places),
            *(f"bucket {place} ends" for place in places),
            "backward ends",
            "all is reduced",
        ]
        self.measured_ns = np.array([np.median(row) for row in rows])
        scatter = np.array([1.25 * row.std() / len(row) ** 0.5 for row in rows])
        self.sigma_ns = np.maximum(scatter, _LEAST_SIGMA * self.measured_ns[-1])
        self.has_buckets = bool(buckets)
        self.about_bytes = _middle_bytes(self.assignment.bucket_bytes or (1,))
        slowdowns = expected_slowdowns(hardware, computes_on_host=self.computes_on_host)
        self.compute_slowdown = slowdowns["compute_slowdown"]
        if "interference" in workload.ready_includes:
            del slowdowns["compute_slowdown"]  # the recorded times contain it, so any value fits them
        ranges, passes = open_ranges(hardware.spread.get("ranges", {})), _has_pass(workload, measured)
        costs = [
            name
            for name in UNMEASURED_COSTS
            # the recorder's own pass is measured, and is part of these copies
            if name in ranges and getattr(hardware, name) and not (name == "copy_in_bytes_per_s" and passes)
        ]
        self.factors = (*_PRIOR, *costs, *slowdowns)
        self.start = np.log([1.0] * (2 + len(costs)) + [getattr(hardware, name) for name in slowdowns])
        self.expected = np.array([0.0] * (2 + len(costs)) + [middle for middle, _ in slowdowns.values()])
        sigmas = [*_PRIOR.values(), *[AT_BOUND] * len(costs), *(sigma for _, sigma in slowdowns.values())]
        self.prior = np.array([sigmas, sigmas])  # below what is expected, and above it
        self.least = np.array([0.0 if name.endswith("slowdown") else -_MOST for name in self.factors])
        self.most = np.full(len(self.least), _MOST)
        self.stated: tuple[float, float] | None = None
        for place, name in enumerate(self.factors):
            known = ranges.get("all_reduce" if name == "link" else name)
            if known is None:
                continue
            ends = _times_of(name, 1.0 if name == "link" else getattr(hardware, name), known)
            self.prior[:, place] = np.maximum(self.prior[:, place], np.abs(ends) / _ALONG)
            if name in costs:
                self.least[place], self.most[place] = ends
            elif name == "link":
                self.stated = ends
                self.least[place], self.most[place] = min(-_MOST, ends[0]), max(_MOST, ends[1])

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
        seen = timeline.buckets if self.has_buckets else ()
        buckets = [*(getattr(bucket, self.begins) for bucket in seen), *(bucket.end_ns for bucket in seen)]
        return np.array([*buckets, timeline.backward_end_ns, timeline.sync_end_ns], float)

    def misses(self, logs: Floats) -> Floats:
        """How far off times are from the measured ones, and factors from what the parts say, in sigmas."""
        times = (self.predict(logs) - self.measured_ns) / self.sigma_ns
        return np.concatenate([times, (logs - self.expected) / self.sigmas(logs)])

    def sigmas(self, logs: Floats) -> Floats:
        """One sigma of each factor's logarithm before the step is seen, on the side where it is."""
        return np.asarray(np.where(logs < self.expected, *self.prior), float)


def _times_of(name: str, value: float, known: dict[str, float]) -> tuple[float, float]:
    """Logarithms of how many times as much time the ends of a range take as ``value`` does: least, most."""
    low, high = (log(max(known[end] / value, _LEAST_SHARE)) for end in ("low", "high"))
    return (min(0.0, -high), max(0.0, -low)) if name in RATES else (min(0.0, low), max(0.0, high))


def _middle_bytes(sizes: Sequence[int]) -> int:
    """The middle size of the step's messages: the mean of their logarithms, weighted by their bytes."""
    return max(1, round(float(np.exp(np.average(np.log(sizes), weights=sizes)))))


def _fit(times: _Times) -> _Fitted:
    """Levenberg's and Marquardt's least squares within bounds; slow-downs are at least 1."""
    least, most = times.least, times.most
    logs = np.clip(times.expected, least, most)
    misses, damping = times.misses(logs), 1e-2
    slopes = _slopes(times, logs, misses, most)
    for _ in range(_ROUNDS):
        square = slopes.T @ slopes
        while True:
            damped = square + damping * np.diag(np.diag(square))
            tried = np.clip(logs - np.linalg.solve(damped, slopes.T @ misses), least, most)
            new = times.misses(tried)
            if new @ new < misses @ misses or damping > 1e4:
                break
            damping *= 4
        moved = float(np.abs(tried - logs).max())
        if new @ new >= misses @ misses:
            break
        logs, misses, damping = tried, new, max(damping / 4, 1e-6)
        slopes = _slopes(times, logs, misses, most)
        if moved < _ENOUGH:
            break
    free = max(1, len(times.measured_ns) - 1)
    unmet = max(1.0, float(misses @ misses) / free)  # where the model does not meet the step, less is known
    return _Fitted(
        logs=logs,
        covariance=np.asarray(np.linalg.inv(slopes.T @ slopes) * unmet, float),
        parts_ns=times.predict(times.start),
        anchored_ns=times.predict(logs),
    )


def _slopes(times: _Times, logs: Floats, misses: Floats, most: Floats) -> Floats:
    """How each miss changes with each factor."""
    slopes = np.empty((len(misses), len(logs)))
    for place in range(len(logs)):
        aside = logs.copy()
        aside[place] += _STEP if logs[place] + _STEP <= most[place] else -_STEP
        slopes[:, place] = (times.misses(aside) - misses) / (aside[place] - logs[place])
    return slopes


def _fits(times: _Times, fitted: _Fitted) -> bool:
    """Whether the link gives the recorded step: no factor of two that share a resource is held by its bound,
    the link is within its stated range as well as it is known, and backward and synchronisation end when they
    did."""
    link, *others = fitted.logs.tolist()
    held = [one for name, one in zip(times.factors[1:], others, strict=True) if name not in UNMEASURED_COSTS]
    if times.stated is None:
        held.append(link)
    is_held = any(_MOST - abs(one) < AT_BOUND for one in held)
    if times.stated is not None:
        low, high = times.stated
        known = _ALONG * float(fitted.covariance[0, 0]) ** 0.5
        is_held = is_held or not low - known <= link <= high + known
    missed = np.abs(fitted.anchored_ns - times.measured_ns) / np.maximum(times.measured_ns, 1)
    return not is_held and bool((missed[-2:] <= MISSED).all())


def _explained_by(times: _Times) -> float | None:
    """How many times as long all-reduces would have to take for synchronisation to end when it did."""
    workload, hardware = times.recorded
    end_ns = max(1, round(times.measured_ns[-1]))
    return link_that_explains(
        workload, hardware, MeasuredStep(assignment=times.assignment, step_ns=end_ns, sync_end_ns=end_ns)
    )


def _told(times: _Times, fitted: _Fitted, seen: Sequence[MeasuredIteration]) -> OwnStep:
    left_open = {
        "factors": list(times.factors),
        "covariance": fitted.covariance.tolist(),
        "about_bytes": times.about_bytes,
    }
    fits = _fits(times, fitted)
    if not fits:  # then the step says nothing of this link's factors
        left_open |= {
            "covariance": np.diag(times.prior.max(axis=0) ** 2).tolist(),
            "fits": False,
            "explained_by": _explained_by(times),
        }
    fitted_hardware = times.apply(times.hardware, fitted.logs)
    workload, hardware = taken_apart(
        times.workload,
        replace(fitted_hardware, spread={**fitted_hardware.spread, "own_step": left_open}),
        times.assignment,
        times.compute_slowdown,
    )
    known = [*zip(times.factors, times.start, fitted.logs, np.sqrt(np.diag(fitted.covariance)), strict=True)]
    advice: dict[str, str] = {}
    if workload is not times.workload:
        known.append(("compute_slowdown", np.log(times.hardware.compute_slowdown), *times.compute_slowdown))
        advice["compute_slowdown"] = f"the recorded times contain it; {_PLAIN}"
    measured_step_ns = round(median(step.step_ns for step in seen))
    recorded, machine = times.recorded
    before, after = (
        simulated_step_ns(recorded, one, times.assignment)
        for one in (machine, times.apply(machine, fitted.logs))
    )
    doubtful: list[str] = []
    if "interference" in workload.ready_includes and times.computes_on_host:
        doubtful.append(
            "backward contains what its own all-reduces took of it, and the hardware does not say what "
            "others would take, so that gains may be too large; calibrate again, which measures "
            f"host_share, or {_PLAIN}"
        )
    held, left_ns = _with_rest(workload, measured_step_ns - after, read_switches(times.assignment))
    if left_ns:
        doubtful.append(
            f"the recorded step, {format_ms(measured_step_ns)}, is shorter than its parts by "
            f"more than forward"
        )
    within = zip(times.least.tolist(), times.most.tolist(), strict=True)
    bounds = {"compute_slowdown": (0.0, _MOST), **dict(zip(times.factors, within, strict=True))}
    factors = tuple(
        OwnFactor(
            name=name,
            before=float(np.exp(start)),
            value=float(np.exp(log)),
            low=float(np.exp(max(log - _ALONG * sigma, bounds[name][0]))),
            high=float(np.exp(min(log + _ALONG * sigma, bounds[name][1]))),
        )
        for name, start, log, sigma in known
    )
    doubtful += [
        f"{one.name} is known to {max(1.0, one.low):.2f} to {one.high:.2f} only: "
        + advice.get(one.name, _MORE_BUCKETS if times.has_buckets else _FULL_LEVEL)
        for one in factors
        if fits and one.name.endswith("slowdown") and one.high > _LOOSE * max(1.0, one.low)
    ]
    rows = zip(times.names, times.measured_ns, fitted.parts_ns, fitted.anchored_ns, strict=True)
    return OwnStep(
        workload=held,
        hardware=hardware,
        assignment=times.assignment,
        steps=len(seen),
        times=(
            *(
                OwnTime(what=what, measured_ns=round(one), parts_ns=round(two), anchored_ns=round(three))
                for what, one, two, three in rows
            ),
            OwnTime(
                what="the step",
                measured_ns=measured_step_ns,
                parts_ns=before,
                anchored_ns=measured_step_ns + left_ns,
            ),
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
