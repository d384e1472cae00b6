"""Which machine makes a measured step true: factors within their ranges, held to what was measured apart.

Parts measured apart (a single GPU's backward, a link alone) leave open how much they slow each other down in
the step, and how fast the link is in it. ``anchor`` has one number, a step as a dashboard shows it: it fixes
one factor, and keeps every other that would do alone. ``own_step`` fits all factors at once by when backward
and buckets of a recorded step end. A prior holds each to what was measured apart, or to its range: where the
step tells nothing it stays as it was, and the tuner's intervals contain what is left of it.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np

from sim.clock.arrays import Floats
from sim.costs.doubts import (
    OWN_COSTS,
    UNMEASURED_COSTS,
    beside_all_reduces,
    doubts_about,
    open_ranges,
    scale_own_costs,
    without_own_costs,
)
from sim.costs.service_time import tilt_ratio
from sim.errors import InputError
from sim.metrics.intervals import union
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Legal
from sim.nouns.ddp_switches import read_switches
from sim.nouns.hardware import COSTS, CURVES, RATES, Hardware
from sim.nouns.measurement import LAST, MeasuredIteration, Measurement
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate, simulated_step_ns
from sim.units import NS_PER_S, format_ms, format_number, median_ns

Factor = Literal["mutual", "compute_slowdown", "comm_slowdown", "curve", "launch_cost_ns", "own_costs"]
_FAIR = 2.0  # most of a slow-down of two that share one resource; a link that is off by more is another one
MOST_SLOWDOWN = 4.0  # beyond it nothing is shared any more: one waits for the other
_LINK_SIGMA = 0.2  # of a logarithm: how far a link that was measured apart is from what it is in the step
_AT_BOUND = 1e-3  # of a logarithm: so near to a bound a factor was held by it
_MISSED = 0.1  # of a measured time: a fit that is off by more is none
# What medians of one job's steps differ by from run to run: 0.25 % on four A40, 0.5 to 1.2 % on two A100.
USUAL_NOISE = 0.005
# What a factor sets of a hardware, and the least and the largest value that it may take.
_FACTORS: dict[str, tuple[tuple[str, ...], float, float]] = {
    "mutual": (("compute_slowdown", "comm_slowdown"), 1.0, MOST_SLOWDOWN),
    "compute_slowdown": (("compute_slowdown",), 1.0, MOST_SLOWDOWN),
    "comm_slowdown": (("comm_slowdown",), 1.0, MOST_SLOWDOWN),
    "curve": (("all_reduce",), 1e-3, 1e3),
    "launch_cost_ns": (("launch_cost_ns",), 0.0, 1e6),
    "own_costs": (("own_costs",), 0.125, 2.5),  # a launch's range, which is the widest
}
_SHARES = 16  # in which a range is cut
_EDGE = exp(-2)  # how likely an end of a range is, at two sigmas: there are own costs of nothing, too


def apply_factor(hardware: Hardware, factor: str, value: float) -> Hardware:
    """``hardware`` with one factor, or a field, at ``value``; ``curve`` and a kind of collective multiply the
    durations of its curve, and what is known of their scatter, ``own_costs`` what hooks, launches and copies
    take, within their ranges.
    """
    if factor == "own_costs":
        return scale_own_costs(hardware, value)
    names: Any = _FACTORS[factor][0] if factor in _FACTORS else (factor,)
    if names[0] in CURVES:
        return hardware.retimed(lambda kind, size, ns: round(ns * value), *names)
    changed: dict[str, Any] = dict.fromkeys(names, round(value) if names[0] in COSTS else value)
    if factor == "launch_cost_ns" and not hardware.launch_cost_ns:
        changed["launch_blocks_compute"] = True
    return replace(hardware, **changed)


# ---- One number fixes one factor.


@dataclass(frozen=True, slots=True)
class Reading:
    """A machine that makes the measured step true by one factor at ``value``, and how likely it is:
    ``weight`` is its share among all, by how far such factors usually are from what was measured apart.
    ``own_costs``: what of those of DDP's own that are of other machines: as taken, most or no.
    """

    what: Factor
    value: float
    weight: float
    hardware: Hardware
    own_costs: str = "as taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """Hardware that makes the prediction of one measured step true, and by how much it had to change.

    ``readings`` are all machines that make the step true by one factor, this hardware first.
    ``plain_ns`` is the predicted step without it, ``predicted_ns`` with it. ``fits``: whether that is a fit:
    not beyond what the link may be, and not at a bound. ``notes`` say what of workload and hardware is
    doubtful.
    """

    hardware: Hardware
    factor: Factor
    value: float
    measured_ns: int
    plain_ns: int
    predicted_ns: int
    fits: bool
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]

    @property
    def residual_ns(self) -> int:
        """Predicted minus measured, once anchored."""
        return self.predicted_ns - self.measured_ns


def anchor(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    step_ns: int,
    *,
    factor: Factor | None = None,
) -> Anchored:
    """The hardware with one factor changed so that a step is predicted as it was measured: ``step_ns``, as a
    dashboard shows it, with ``assignment``.

    One measured step is one number, and fixes one factor of what a single GPU and a link alone have:

    - ``mutual``: both slow-downs, taken as equal, as one number does not say who yields. The default where
      neither is known.
    - ``compute_slowdown``: the default where ``hardware`` has a ``comm_slowdown``.
    - ``comm_slowdown``: the default where it has a ``compute_slowdown``, or the workload's times contain
      interference already, as those of a trace do; the two above are refused there.
    - ``curve``: the link is faster or slower in the step than beside it. The default where a slow-down would
      have to be more than 2: then most likely another link trains.
    - ``own_costs``: what DDP itself takes, where that is of other machines. The default where it is likelier.

    A slow-down that ``hardware`` has, and that is not to be fixed, stays. Other factors that make the step
    true as well, each alone, are kept in ``spread.readings``, what is no fit in ``spread.anchor``. Costs of
    DDP's own that are of other machines may be as they were taken, at the end of their ranges or absent, with
    each factor. A machine that predicts the step as it is given stays as it is.

    Raises:
        InputError: the step is shorter than any interference allows, longer than it can explain, the same
            whatever the factor is, or has in the workload's times what the factor would fix.
    """
    Legal(least=1).take("step_ns", step_ns)
    if hardware.world_size == 1:
        raise InputError("hardware: world_size=1 is not legal here; one rank has no communication to anchor")
    slowed = "interference" in workload.ready_includes
    found: Factor = factor or "mutual"
    if factor is None and hardware.comm_slowdown > 1:
        found = "compute_slowdown"
    elif factor is None and (slowed or hardware.compute_slowdown > 1):
        found = "comm_slowdown"
    if slowed and found in ("mutual", "compute_slowdown"):
        raise InputError(
            f"workload: ready_includes has interference, so that {found} cannot be fixed; give a workload "
            f"of a single GPU's step, or fix the factor comm_slowdown or curve"
        )
    search = _Search(workload, assignment, step_ns, USUAL_NOISE * step_ns)
    plain_ns, every, machines = search.figure(hardware), list[Reading](), {"as taken": hardware}
    if set(UNMEASURED_COSTS) & hardware.spread.get("ranges", {}).keys():
        most = apply_factor(hardware, "own_costs", _FACTORS["own_costs"][2])
        machines |= {"most": most, "no": without_own_costs(hardware)}
        if abs(plain_ns - step_ns) <= USUAL_NOISE * step_ns:
            value = 1.0 if found in ("curve", "own_costs") else getattr(hardware, _FACTORS[found][0][0])
            every.append(Reading(found, value, 1.0, machines.pop("as taken")))
    is_open = not slowed and hardware.compute_slowdown == hardware.comm_slowdown == 1
    names: list[Factor] = [found, "mutual", "compute_slowdown", "comm_slowdown"] if is_open else [found]
    for costs, machine in machines.items():
        last: Factor = "own_costs" if machine.launch_cost_ns else "launch_cost_ns"
        for one in dict.fromkeys((*names, "curve", last)):
            if (at := search.try_to(machine, one)) is not None:
                weight = _likelihood(one, at, hardware) * (1 if machine is hardware else _EDGE)
                every.append(Reading(one, at, weight, apply_factor(machine, one, at), costs))
    told = [one for one in every if one.what == found] if factor else _plausible(every, found, hardware)
    if not told or (factor is None and "no" not in machines):  # says why it explains nothing
        search.solve(hardware if found == "own_costs" else machines.get("no", hardware), found)
    if not told:
        low, high = (
            f"{format_ms(search.figure(apply_factor(hardware, found, end)))} at {format_number(end, 6)}"
            for end in _FACTORS[found][1:]
        )
        raise InputError(
            f"measured: a step of {format_ms(step_ns)} is beyond what {found} explains: {low}, {high}; fix "
            f"the factor curve, or measure the link that trains"
        )
    least = max(one.weight for one in every) / 1000  # as likely as the likeliest: others are none
    first = replace(told[0], weight=max(told[0].weight, least))
    kept = [first, *(one for one in every if one.weight >= least and one is not told[0])]
    whole = sum(one.weight for one in kept)
    readings = tuple(replace(one, weight=one.weight / whole) for one in kept)
    made, found, value = first.hardware, first.what, first.value
    if misfit := _misfit(first, hardware):
        misfit["explained_by"] = next((one.value for one in readings if one.what == "curve"), None)
    about = {"factor": found, "value": value, "measured_step_ns": step_ns, "workload": workload.name}
    provenance = {**made.provenance, "anchored": about}
    made = replace(made, spread=_spread(hardware, readings, misfit, search), provenance=provenance)
    return Anchored(
        hardware=made,
        factor=found,
        value=value,
        measured_ns=step_ns,
        plain_ns=plain_ns,
        predicted_ns=search.figure(made),
        fits=not misfit,
        readings=readings,
        notes=doubts_about(workload, made),
    )


class _Search(NamedTuple):
    """A search for the value of a factor at which the step is predicted as ``target_ns``."""

    workload: Workload
    assignment: Assignment
    target_ns: int
    noise_ns: float

    def figure(self, hardware: Hardware) -> int:
        """The predicted step, in ns."""
        return simulated_step_ns(self.workload, hardware, self.assignment)

    def solve(self, hardware: Hardware, factor: Factor) -> float | None:
        """The value that makes the step true: the least where it is within the noise of no interference; None
        where it is longer than the factor explains. Raises ``InputError`` where no value does otherwise."""
        _, least, most = _FACTORS[factor]
        low_ns, high_ns = (self.figure(apply_factor(hardware, factor, value)) for value in (least, most))
        target_ns, noise_ns = self.target_ns, round(self.noise_ns)
        if low_ns == high_ns:
            raise InputError(
                f"measured: this step says nothing of {factor}; it is {format_ms(low_ns)} whatever that is; "
                f"give a row in which communication is hidden in part"
            )
        is_near = self.figure(hardware) <= target_ns + noise_ns
        if low_ns - target_ns > noise_ns or (factor == "curve" and low_ns > target_ns and not is_near):
            told = "links are often faster in the step than beside it: fix the factor curve"
            computing_ns = self.figure(apply_factor(hardware, "curve", 0.0))
            if computing_ns > target_ns:
                told = (
                    f"computing alone takes {format_ms(computing_ns)}, which no link makes shorter: the "
                    "workload's times are not this job's, or not of this machine; record it there"
                )
            raise InputError(
                f"measured: a step of {format_ms(target_ns)} is shorter by {format_ms(low_ns - target_ns)} "
                f"than the parts allow without any interference, {format_ms(low_ns)}; {told}"
            )
        if high_ns < target_ns - noise_ns:
            return None
        if low_ns >= target_ns:
            if factor != "curve" or is_near:
                return 1.0 if factor == "curve" else least
            target_ns += noise_ns  # all links from some speed on: the one nearest to the given
        while most - least > 1e-6:  # by halving: in flat parts a step does not depend on a factor at all
            middle = (least + most) / 2
            is_short = self.figure(apply_factor(hardware, factor, middle)) < target_ns
            least, most = (middle, most) if is_short else (least, middle)
        return round(most, 6)

    def try_to(self, hardware: Hardware, factor: Factor) -> float | None:
        """As ``solve``; None where this factor cannot make the step true, or steps are too long to count."""
        with suppress(InputError):
            return self.solve(hardware, factor)
        return None

    def as_far(self, hardware: Hardware, name: str, end: float) -> Any:
        """The value next to an ``end`` of a range with which the step stays the same, but for noise."""
        own: Any = 1.0 if name in CURVES else getattr(hardware, name)
        plain_ns, shares = self.figure(hardware), (share / _SHARES for share in range(_SHARES, 0, -1))
        for value in (own + (end - own) * share for share in shares):
            if abs(self.figure(apply_factor(hardware, name, value)) - plain_ns) <= self.noise_ns:
                return round(value) if name in COSTS else value
        return own


def _likelihood(factor: Factor, value: float, hardware: Hardware) -> float:
    """How likely it is that a machine has this value, before the step is seen; 1 at the likeliest.

    A slow-down of 2 is at two sigmas, as are a launch of 100 us and an end of the range of own costs. A link
    that was measured is where it was found within a fifth, but where it is another link it may be anywhere
    (heavy tails), so that beyond a factor of 2 the link is the first suspect.
    """
    if factor == "curve":
        stated = hardware.spread.get("ranges", {}).get("all_reduce", {"low": 1.0, "high": 1.0})
        sigma = max(_LINK_SIGMA, abs(log(stated["high" if value > 1 else "low"])) / 2)
        return 1 / (1 + (log(value) / sigma) ** 2)
    _, least, most = _FACTORS[factor]
    at_two = (most if value > 1 else least) if factor == "own_costs" else _FAIR
    sigmas = value / 50_000 if factor == "launch_cost_ns" else 2 * log(value) / log(at_two)
    return exp(-len(_FACTORS[factor][0]) * sigmas**2 / 2)  # both slow-downs: it takes each


def _plausible(every: Sequence[Reading], found: Factor, hardware: Hardware) -> list[Reading]:
    """Readings that may be taken where no factor was asked for, the one to take first: a fair slow-down of
    the machine as given, else the likeliest that fits; beyond a fair one the link is suspected."""
    fair = [one for one in every if one.what == found and one.value <= _FAIR]
    if fair and fair[0] is every[0]:
        return fair
    links = (one for one in every if one.what == "curve" and (one.value > 1 or not _misfit(one, hardware)))
    others = [*fair, *(one for one in every if one.what == "own_costs"), *links]
    others.sort(key=lambda one: (bool(_misfit(one, hardware)), -one.weight))
    return others or [one for one in every if one.what == found]


def _misfit(reading: Reading, hardware: Hardware) -> dict[str, Any]:
    """Why a reading is no fit, as ``spread.anchor`` has it; empty where it is one."""
    factor, value = reading.what, reading.value
    (_, low, high), why, near = _FACTORS[factor], "bound", -_AT_BOUND
    if factor == "curve":
        fair = {"low": 1 / _FAIR, "high": _FAIR}
        known = hardware.spread.get("ranges", {}).get("all_reduce", fair)
        low, high, why, near = known["low"], known["high"], "beyond", _AT_BOUND
    if low * (1 - _AT_BOUND) <= value <= high * (1 + near) or factor == "own_costs":
        return {}
    return {"fits": False, "why": why, "factor": factor, "value": value, "low": low, "high": high}


def _spread(
    hardware: Hardware, readings: tuple[Reading, ...], misfit: dict[str, Any], search: _Search
) -> dict[str, Any]:
    """The spread of the anchored hardware: the ranges as far as the step leaves them open, without those of
    what it fixed; the readings, each by what it changes of the first."""
    first, told = readings[0], []
    names, made = ("launch_blocks_compute", *OWN_COSTS), readings[0].hardware
    for one in readings if len(readings) > 1 else ():
        changed = {name: getattr(one.hardware, name) for name in names}
        changed = {name: value for name, value in changed.items() if value != getattr(made, name)}
        by, of = (each.value if each.what == "curve" else 1.0 for each in (one, first))
        costs = "" if one.own_costs == "as taken" else f", {one.own_costs} own costs"
        what = "as given" if one.hardware is hardware else one.what + costs
        told.append({"what": what, "weight": one.weight, "set": changed, "curve": by / of})
    fixed = () if made is hardware else _FACTORS[first.what][0]
    stated = {name: ends for name, ends in open_ranges(made).items() if name not in fixed}
    ranges = {
        name: {end: search.as_far(made, name, value) for end, value in ends.items()}
        for name, ends in stated.items()
    }
    anew = ("ranges", "readings", "anchor")
    kept = {name: known for name, known in made.spread.items() if name not in anew}
    if ranges.get("all_reduce") != stated.get("all_reduce"):  # of all its sizes alike
        points = kept.get("all_reduce", {})
        kept["all_reduce"] = {size: known for size, known in points.items() if "count" in known}
    new = {"ranges": ranges, "readings": told, "anchor": misfit}
    return kept | {name: known for name, known in new.items() if known}


# ---- The times of a recorded step fit all factors.

FEWEST_STEPS = 3
_TILT_SIGMA, _SLOWDOWN_SIGMA = 0.05, 0.1  # of a logarithm, as ``_LINK_SIGMA``
_LEAST_SIGMA = 0.005  # of the end of synchronisation: the model itself is no better
_MOST = log(MOST_SLOWDOWN)
_LEAST_SHARE = 1e-3  # of a cost: what is less is nothing
_LOOSE = 2.5  # times: a slow-down whose range is wider was hardly told by the step
_FAR = 0.05  # of a traced step: its parts add up to it within 1 % where nothing else is in it
_ALONG = 2.0  # sigmas that a range of 95 % lies from the middle, nearly
_SLOWED = ("comm_slowdown", "compute_slowdown")


@dataclass(frozen=True, slots=True)
class OwnFactor:
    """One thing that the parts leave open, with the range that the recorded steps leave it (95 %).

    ``link`` multiplies every duration of the all-reduce curve, ``tilt`` those of messages 16 times larger
    against those of others; ``comm_slowdown`` and ``compute_slowdown`` are the hardware's. Costs that are not
    measured (``UNMEASURED_COSTS``) are told as how many times as much time as the hardware says.
    """

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """Workload and hardware that predict the recorded step: the median of ``steps``, ``step_ns``.

    ``parts_ns`` is what their parts alone say it takes. ``recorder_ns`` is what the recorder's own passes
    over the buckets take of it; workload and hardware predict the job without them. Without ``factors``
    nothing was fitted. ``doubts``: a code each, and what it is about (``sim.telling`` has the sentences).
    """

    workload: Workload
    hardware: Hardware
    steps: int
    step_ns: int
    parts_ns: int
    factors: tuple[OwnFactor, ...] = ()
    doubts: tuple[tuple[Literal["contained", "wide", "wide in its times", "not its parts"], str], ...] = ()
    recorder_ns: int = 0


def own_step(workload: Workload, hardware: Hardware, measured: Measurement) -> OwnStep:
    """Fit ``link``, ``tilt``, ``comm_slowdown`` and ``compute_slowdown`` to the recorded step.

    On a machine with ranges for them, what hooks, launches and copies cost is fitted too, within these. What
    the step holds beside its parts (gaps, buffers) goes to its end, so that the whole step comes out too.

    A backward that was recorded beside its collectives contains what these did to it, which other buckets
    would do elsewhere. That is taken out, by what collectives are known to take from a rank that computes,
    and put in again for each assignment: the step does not tell this slow-down, as any value meets it.

    ``measured`` are the job's own steps, as ``bucketsim import`` keeps them. Those of traces are only set
    against their parts, which are medians of the same steps, the link's times among them: a fit would give
    back what went in, and take waits for a late rank, which no part holds, for a slow link.

    Raises:
        InputError: hardware of another number of ranks, steps of unknown buckets, or fewer than three.
        AssignmentError, NotModelledError: as ``sim.simulate``.
    """
    check_ranks(hardware, measured.world_size)
    if measured.asked is None or not measured.iterations:
        raise InputError(f"{measured.name}: no steps under buckets that are known; give the job's own steps")
    if measured.is_of_traces:
        parts_ns, lasted = simulated_step_ns(workload, hardware, measured.asked), measured.iterations
        step_ns, last = median_ns([one.step_ns for one in lasted]), str(measured.environment.get(LAST, ""))
        told: Any = (("not its parts", last),) if abs(step_ns - parts_ns) > _FAR * step_ns else ()
        own: dict[str, Any] = {"steps": len(lasted), "step_ns": step_ns, "parts_ns": parts_ns}
        return OwnStep(workload=workload, hardware=hardware, **own, doubts=told)
    times = _Times(workload, hardware, measured)
    (recorded, link_alone), names = times.recorded, times.names
    logs, covariance = times.fit()
    along = _ALONG * np.sqrt(np.diag(covariance))
    ends = np.exp([logs, np.maximum(logs - along, times.least), np.minimum(logs + along, times.most)])
    factors, machine = tuple(map(OwnFactor, names, *ends.tolist())), times.apply(hardware, logs)
    alone = simulate(recorded, link_alone, times.assignment, "analytic")
    left_open: dict[str, Any] = {"factors": names, "covariance": covariance, "about_bytes": times.about_bytes}
    if not (fits := times.fits(logs, covariance)):  # then the step says nothing of this link's factors
        left_open["covariance"] = np.diag(np.maximum(times.below, times.above) ** 2)
        end_ns, many = max(1, round(times.measured_ns[-1])), len(alone.reducing)
        target_ns = alone.step_ns + many * (end_ns - alone.sync_end_ns)  # of each backward that reduces
        search = _Search(recorded, times.assignment, target_ns, USUAL_NOISE * many * end_ns)
        left_open |= {"fits": False, "explained_by": search.try_to(link_alone, "curve")}
    left_open["covariance"] = left_open["covariance"].tolist()
    is_apart = times.is_slowed and "compute_slowdown" in names
    is_contained = times.is_slowed and not is_apart and times.computes_on_host
    doubts: list[Any] = [("contained", "")] if is_contained else []
    for one in factors if fits else ():
        if one.name in _SLOWED and one.high > _LOOSE * max(1.0, one.low):
            is_its = is_apart and one.name == "compute_slowdown"
            doubts.append(("wide in its times" if is_its else "wide", one.name))
    # What is nobody's time goes to the end of the step, once however many micro-batches it has; what the
    # parts have too much goes from each forward.
    rest_ns = times.step_ns - simulated_step_ns(recorded, times.apply(link_alone, logs), times.assignment)
    if is_apart:
        workload = _without_interference(simulate(workload, machine, times.assignment, "analytic"))
    micro_batches = read_switches(times.assignment).accumulation_steps
    cut = min(workload.forward_ns, max(0, -(rest_ns // micro_batches)))
    end_ns = workload.rest_ns + rest_ns + micro_batches * cut
    held = replace(
        workload,
        forward_ns=workload.forward_ns - cut,
        optimizer_ns=max(0, workload.optimizer_ns + min(0, end_ns)),
        rest_ns=max(0, end_ns),
    )
    machine = replace(machine, spread={**machine.spread, "own_step": left_open})
    return OwnStep(
        workload=held,
        hardware=machine,
        steps=times.steps,
        step_ns=times.step_ns,
        parts_ns=alone.step_ns,
        factors=factors,
        doubts=tuple(doubts),
        recorder_ns=max(0, times.step_ns - simulated_step_ns(held, machine, times.assignment)),
    )


def check_ranks(hardware: Hardware, world_size: int) -> None:
    """Raise ``InputError`` unless the machine has as many ranks as the job."""
    if hardware.world_size != world_size:
        raise InputError(
            f"hardware {hardware.name!r}: world_size: {hardware.world_size} is not legal; the job has "
            f"{world_size} ranks"
        )


def _without_interference(timeline: Timeline) -> Workload:
    """The workload of ``timeline`` as its backward would have gone alone.

    While a collective is on the wire, 1 ns of recorded time is ``1 / compute_slowdown`` ns of computing.
    Played with that slow-down under the same buckets, what comes out is what was recorded.
    """
    workload, slowdown = timeline.workload, timeline.hardware.compute_slowdown
    busy = union((bucket.start_ns, bucket.end_ns) for bucket in timeline.buckets)

    def plain(time: int) -> int:
        beside = sum(max(0, min(end, time) - start) for start, end in busy)
        return round(time - beside * (1 - 1 / slowdown))

    return workload.retimed(
        lambda times: tuple(None if time is None else plain(time) for time in times),
        backward_ns=plain(workload.backward_ns),
        ready_order=workload.order(),
        ready_includes=tuple(effect for effect in workload.ready_includes if effect != "interference"),
    )


def hooked(workload: Workload, hardware: Hardware, measured: Measurement) -> tuple[Workload, Hardware]:
    """The job as ``sim.record`` saw it: its hook divides each bucket in a pass before it launches it.

    DDP divides as it copies gradients in (A3.4), so that the pass is played as part of these copies. It takes
    what lies between the hook's stamps. Nothing is changed for a job with a hook of its own, which has no
    such pass, nor where ready times contain interference, and with it what the pass did to later gradients.
    """
    asked, is_ours = measured.asked, measured.provenance.get("source") == "sim.record"
    if asked is None or asked.bucket_bytes is None or not is_ours:
        return workload, hardware
    if "comm_hook" in asked.settings or "interference" in workload.ready_includes:
        return workload, hardware
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


class _Times:
    """The times compared: when buckets begin and end, and when backward and synchronisation end, ns."""

    def __init__(self, workload: Workload, hardware: Hardware, measured: Measurement) -> None:
        assert measured.asked is not None
        count = len(measured.asked.bucket_indices)
        seen = [one for one in measured.iterations if len(one.buckets) in (0, count)]
        if len(seen) < FEWEST_STEPS:
            raise InputError(
                f"{measured.name}: {len(seen)} steps with all their buckets are not enough to hold a "
                f"prediction to; record at least {FEWEST_STEPS} more"
            )
        self.hardware, self.assignment = hardware, measured.asked
        self.steps, self.step_ns = len(seen), round(median(one.step_ns for one in seen))
        self.computes_on_host = measured.environment.get("place") == "cpu"
        self.is_slowed = "interference" in workload.ready_includes
        job, link = self.recorded = hooked(workload, hardware, measured)
        self.has_pass = link is not hardware
        self.played = job, replace(link, spread={})  # of which no time comes, and which each fit would move
        rows = np.array([self._compared(step) for step in seen], float)
        columns = [column[~np.isnan(column)] for column in rows.T]
        self.is_seen = np.array([len(column) > 0 for column in columns])
        columns = [column for column in columns if len(column)]
        self.measured_ns = np.array([np.median(column) for column in columns])
        scatter = np.array([1.25 * column.std() / len(column) ** 0.5 for column in columns])
        self.sigma_ns = np.maximum(scatter, _LEAST_SIGMA * self.measured_ns[-1])
        sizes = self.assignment.bucket_bytes or (1,)  # their middle: the mean of logarithms, by their bytes
        self.about_bytes = max(1, round(float(np.exp(np.average(np.log(sizes), weights=sizes)))))
        known = self._known()
        self.names = list(known)
        self.expected, self.below, self.above, self.least, self.most = np.array([*known.values()], float).T

    def _known(self) -> dict[str, tuple[float, ...]]:
        """The factors that the step may fix, as logarithms: what is expected before it is seen, give or take
        one sigma below and above it, which a stated range widens, and the least and the most.

        A rank that computes on its host shares cores with its all-reduces: medians over sizes. Times that
        contain that meet any slow-down of computing, which stays what is expected; none where none is.
        """
        hardware, ranges = self.hardware, open_ranges(self.hardware)
        beside = beside_all_reduces(hardware, median) if self.computes_on_host else {}
        priors = {"link": (0.0, _LINK_SIGMA), "tilt": (0.0, _TILT_SIGMA)}
        costs = [name for name in UNMEASURED_COSTS if name in ranges and getattr(hardware, name)]
        priors |= dict.fromkeys(costs, (0.0, _AT_BOUND))
        for name in _SLOWED:
            at = log(getattr(hardware, name) * beside.get(name, 1.0))
            priors[name] = at, max(_SLOWDOWN_SIGMA, at / 2 if beside else 0.0)
        if self.has_pass:  # the recorder's own passes are in the copies
            priors.pop("copy_in_bytes_per_s", None)
        if self.is_slowed and not priors["compute_slowdown"][0]:
            del priors["compute_slowdown"]
        known: dict[str, tuple[float, ...]] = {}
        for name, (expected, sigma) in priors.items():
            value, sign = getattr(hardware, name, 1.0), -1 if name in RATES else 1
            told = ranges.get("all_reduce" if name == "link" else name, {})
            logs = [sign * log(max(told[end] / value, _LEAST_SHARE)) for end in ("low", "high") if told]
            low, high = min([0.0, *logs]), max([0.0, *logs])
            bounds = (0.0 if name in _SLOWED else -_MOST), _MOST
            if name == "link":
                bounds = min(-_MOST, low), max(_MOST, high)
            elif name in costs:
                bounds = low, high
            known[name] = expected, max(sigma, -low / _ALONG), max(sigma, high / _ALONG), *bounds
        return known

    def _compared(self, step: MeasuredIteration | Timeline) -> list[int | None]:
        """When each bucket begins, then when each ends, then the two ends of the step. The recorder's pass
        lies between a bucket's being ready and its launch; the simulator's copies are before both."""
        names = "launch_ns" if self.has_pass else "ready_ns", "end_ns"
        of_buckets = [getattr(one, name) for name in names for one in step.buckets]
        unseen = [None] * (2 * len(self.assignment.bucket_indices) - len(of_buckets))
        return [*of_buckets, *unseen, step.backward_end_ns, step.sync_end_ns]

    def apply(self, hardware: Hardware, logs: Floats) -> Hardware:
        """``hardware`` with these factors."""
        values: dict[str, Any] = dict(zip(self.names, np.exp(logs).tolist(), strict=True))
        link, tilt = values.pop("link"), values.pop("tilt")
        bent = hardware.retimed(
            lambda kind, size, ns: round(ns * tilt_ratio(link, tilt, size, self.about_bytes)), "all_reduce"
        )
        for name in set(UNMEASURED_COSTS) & set(values):
            value = getattr(hardware, name)
            values[name] = value / values[name] if name in RATES else round(value * values[name])
        return replace(bent, **values)

    def predict(self, logs: Floats) -> Floats:
        """The times compared, with these factors."""
        workload, hardware = self.played
        timeline = simulate(workload, self.apply(hardware, logs), self.assignment, "analytic")
        return np.asarray(np.array(self._compared(timeline), float)[self.is_seen])

    def misses(self, logs: Floats) -> Floats:
        """How far off times are from the measured ones, and factors from what the parts say, in sigmas."""
        times = (self.predict(logs) - self.measured_ns) / self.sigma_ns
        sigmas = np.where(logs < self.expected, self.below, self.above)
        return np.concatenate([times, (logs - self.expected) / sigmas])

    def slopes(self, logs: Floats, misses: Floats) -> Floats:
        """How each miss changes with each factor."""
        asides = np.diag(np.where(logs + 0.01 <= self.most, 0.01, -0.01))
        return np.column_stack([(self.misses(logs + one) - misses) / one.sum() for one in asides])

    def fit(self) -> tuple[Floats, Floats]:
        """Logarithms of the factors and their covariance, by Levenberg's and Marquardt's least squares within
        bounds."""
        logs, damping = np.clip(self.expected, self.least, self.most), 1e-2
        misses = self.misses(logs)
        slopes, moved = self.slopes(logs, misses), np.inf
        for _ in range(200):  # far more than it takes
            if moved < 1e-4 or damping > 4e4:
                break
            square = slopes.T @ slopes
            step = np.linalg.solve(square + damping * np.diag(np.diag(square)), slopes.T @ misses)
            tried = np.clip(logs - step, self.least, self.most)
            new = self.misses(tried)
            if new @ new >= misses @ misses:
                damping *= 4
                continue
            moved = float(np.abs(tried - logs).max())
            logs, misses, damping = tried, new, max(damping / 4, 1e-6)
            slopes = self.slopes(logs, misses)
        # Where the model does not meet the step, less is known, but of what is taken as it is expected.
        unmet = max(1.0, float(misses @ misses) / max(1, len(self.measured_ns) - 1))
        by = [1.0 if self.is_slowed and name == "compute_slowdown" else unmet for name in self.names]
        return logs, np.asarray(np.linalg.inv(slopes.T @ slopes) * by, float)

    def fits(self, logs: Floats, covariance: Floats) -> bool:
        """Whether the link gives the recorded step: no factor of two that share a resource is held by its
        bound, the link is within its stated range as well as it is known, and backward and synchronisation
        end when they did."""
        each = zip(self.names, logs.tolist(), strict=True)
        held = {name: value for name, value in each if name not in UNMEASURED_COSTS}
        if (stated := open_ranges(self.hardware).get("all_reduce")) is not None:
            link, known = exp(held.pop("link")), exp(_ALONG * float(covariance[0, 0]) ** 0.5)
            if not min(1.0, stated["low"]) / known <= link <= max(1.0, stated["high"]) * known:
                return False
        missed = np.abs(self.predict(logs) - self.measured_ns) / np.maximum(self.measured_ns, 1)
        is_free = all(_MOST - abs(value) >= _AT_BOUND for value in held.values())
        return is_free and bool((missed[-2:] <= _MISSED).all())
