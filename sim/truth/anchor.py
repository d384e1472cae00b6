"""What a job's own step says of its machine: one measured step fixes one factor, whichever it is."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, Literal

from sim.costs.doubts import doubts_about, doubts_about_step
from sim.costs.own_costs import without_own_costs
from sim.errors import InputError
from sim.metrics.step import step_ns
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Checked, Count, Positive
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate
from sim.truth.in_step import InStepCurve, InStepTimes, in_step_curve, scaled, with_in_step
from sim.units import format_ms, format_number

Factor = Literal["mutual", "compute_slowdown", "comm_slowdown", "curve", "launch_cost_ns"]


SLOWDOWN_FACTORS: tuple[Factor, ...] = ("mutual", "compute_slowdown", "comm_slowdown")
FAIR_SLOWDOWN = 2.0  # of two that share one resource fairly
MOST_SLOWDOWN = 4.0  # beyond it nothing is shared any more: one waits for the other
FAIR_RATIO = 2.0  # a link that is off by more is another one, unless its stated range says otherwise
_FARTHEST_RATIO = 1000.0  # how far a link is looked for at all
AT_BOUND = 1e-3  # of a logarithm: so near to a bound a factor was held by it
MISSED = 0.1  # of a measured time: a fit that is off by more is none
# How likely a reading is before the step is seen, by one sigma of a factor's logarithm. A slow-down of 2 is
# at two sigmas; a link that was measured is where it was found within a fifth, but where it is another link
# it may be anywhere (heavy tails), so that beyond a factor of 2 the link is the first suspect.
_SLOWDOWN_SIGMA = log(FAIR_SLOWDOWN) / 2
_LINK_SIGMA = 0.2
_LAUNCH_SIGMA_NS = 50_000.0  # of the cost of a collective: some tens of microseconds are usual
_MOST_LAUNCH_NS = 1_000_000
_UNLIKELY = 1e-3  # of the likeliest reading: what is less likely is left out
# What medians of one job's steps differ by from run to run: 0.25 % on four A40, 0.5 to 1.2 % on two A100.
USUAL_NOISE = 0.005
_PRECISION = 1e-6  # of a factor: far below what a step can tell
_COST_PRECISION_NS = 50.0  # of the cost of a collective: this is also far below what a step can tell
# The least and the largest value that a factor may take.
BOUNDS: dict[Factor, tuple[float, float]] = {
    **dict.fromkeys(SLOWDOWN_FACTORS, (1.0, MOST_SLOWDOWN)),
    "curve": (1 / _FARTHEST_RATIO, _FARTHEST_RATIO),
    "launch_cost_ns": (0.0, float(_MOST_LAUNCH_NS)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep(Checked):
    """A step as a dashboard shows it, in ns, and the assignment that it ran with.

    ``sync_end_ns`` is from the start of backward until all gradients are available, where that was measured
    too. ``noise_ns`` is by how much the measured figure may be off; None: by what steps of one job usually
    differ from run to run.
    """

    assignment: Assignment
    step_ns: Positive
    sync_end_ns: Positive | None = None
    noise_ns: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A machine that makes the measured step true by one factor at ``value``, and how likely it is.

    ``weight``: its share among all readings of the step, by how far such factors usually are from what was
    measured apart. ``launch_cost_ns`` is what each collective costs the compute lane.
    """

    what: Factor
    value: float
    weight: float
    hardware: Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """Hardware that makes the prediction of one measured step true, and by how much it had to change.

    ``hardware`` is the given one with ``factor`` set to ``value``. ``measured_ns`` is what was fitted: the
    step, or ``sync_end`` where that was measured; ``plain_ns`` is its prediction without the factor,
    ``predicted_ns`` with it.
    ``fits``: whether that is a fit: not beyond what the link may be, not at a bound, and not off by more than
    10 %; ``hardware`` says in ``spread.anchor`` where it is none.
    ``readings`` are all machines that make the step true, this one first: one number fixes one factor, so
    what differs between them is not known. ``hardware`` keeps them in ``spread.readings``.
    ``notes`` says what of workload and hardware is doubtful.
    """

    hardware: Hardware
    factor: Factor
    value: float
    fitted: Literal["step", "sync_end"]
    measured_ns: int
    plain_ns: int
    predicted_ns: int
    fits: bool = True
    in_step: InStepCurve | None = None
    readings: tuple[Reading, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def residual_ns(self) -> int:
        """Predicted minus measured, once anchored."""
        return self.predicted_ns - self.measured_ns


def anchor(
    workload: Workload,
    hardware: Hardware,
    measured: MeasuredStep,
    *,
    factor: Factor | None = None,
    seen: InStepTimes | None = None,
    second: MeasuredStep | None = None,
) -> Anchored:
    """The hardware with one factor changed so that one measured step is predicted as it was measured.

    Parts measured apart (a single GPU's step, a link's curve) say nothing of what computation and
    communication do to each other. One measured step is one number, and fixes one factor:

    - ``mutual``: both slow-downs, taken as equal. The default where neither is known: the two share memory,
      multiprocessors and power, and one number does not say who yields.
    - ``compute_slowdown``: the default where ``comm_slowdown`` is known, from ``hardware`` or from ``seen``.
    - ``comm_slowdown``: the default where ``compute_slowdown`` is known.
    - ``curve``: the link itself is faster or slower in the step than beside it. The default where a slow-down
      would have to be more than ``FAIR_SLOWDOWN``: then most likely another link trains.

    Where the workload's times contain interference already, as those of a trace do, what collectives do to
    computation cannot be told again: ``comm_slowdown`` is the default there, ``mutual`` and
    ``compute_slowdown`` are refused.

    A slow-down that ``hardware`` has, and that is not to be fixed, stays. ``seen`` first turns the curve
    measured beside the step into that in it (``in_step_curve``). A second step, with another number of
    buckets, fixes what each collective costs on the compute lane (``launch_cost_ns``), which no curve of
    collectives that follow one another in a loop holds.

    The other factors that make the step true as well, each alone, are kept with how likely they are, in
    ``spread.readings`` of the hardware: ``sim.tune`` says what holds under all of them. Where the factor is
    beyond what the link may be, or at its bound, or the step is off by more than 10 % with it, that is no
    fit: ``spread.anchor`` says so, and no gain is told of such a hardware.

    Args:
        workload: what a single GPU computes.
        hardware: the link beside the step, and what copies cost.
        measured: the step to make true; its ``sync_end_ns`` goes before its step where it is given.
        factor: which factor to fix.
        seen: durations of the step's collectives, from a profile.
        second: another step of the same job.

    Raises:
        InputError: the step is shorter than any interference allows, longer than it can explain, or the same
            whatever the factor is; no cost of a collective makes the second step true as well; or the
            workload's times contain what the factor would fix.
    """
    if hardware.world_size == 1:
        raise InputError("hardware: world_size=1 is not legal here; one rank has no communication to anchor")
    hardware = without_own_costs(hardware)  # the factor holds them
    in_step, reasons = None, []
    if seen is not None:
        timeline = simulate(workload, hardware, measured.assignment, "analytic")
        sizes = [bucket.num_bytes for bucket in timeline.buckets]
        in_step = in_step_curve(hardware.all_reduce, sizes, seen)
        hardware = with_in_step(hardware, in_step)
        reasons.append(_told_of_link(in_step))
    slowed = "interference" in workload.ready_includes
    chosen = _default(hardware, slowed=slowed) if factor is None else factor
    if slowed and chosen in ("mutual", "compute_slowdown"):
        raise InputError(
            f"workload: ready_includes has interference: its times contain what collectives do to "
            f"computation, so that {chosen} cannot be fixed; give a workload of a single GPU's step, or fix "
            f"the factor comm_slowdown or curve"
        )
    search = _Search(workload, measured, profiled=seen is not None)
    if second is not None:
        other_search = _Search(workload, second, profiled=seen is not None)
        cost_ns = _launch_cost_ns(search, other_search, hardware, chosen)
        hardware = apply_factor(hardware, "launch_cost_ns", cost_ns)
        reasons.append(
            f"a second step fixes a second number: each collective costs the compute lane "
            f"{cost_ns / 1e3:.0f} us"
        )
    chosen, value = _solve(search, hardware, chosen, asked=factor is not None, profiled=seen is not None)
    reasons.append(_why(chosen, hardware, asked=factor is not None, slowed=slowed))
    if chosen != "curve" and value > FAIR_SLOWDOWN:
        reasons.append(
            f"{chosen} {format_number(value)} is more than sharing one GPU fairly explains, "
            f"{format_number(FAIR_SLOWDOWN, 6)}; part of "
            f"it may be something else (a link that is slower in the step, a slower rank, data loading)"
        )
    anchored = apply_factor(hardware, chosen, value)
    nothing_known = not slowed and hardware.compute_slowdown == hardware.comm_slowdown == 1
    also: list[Factor] = [*(SLOWDOWN_FACTORS if nothing_known else ()), *(() if seen else ("curve",))]
    if second is None and not hardware.launch_cost_ns:
        also.append("launch_cost_ns")
    values = {chosen: value} | {
        one: told for one in also if one != chosen and (told := search.try_to(hardware, one)) is not None
    }
    readings = _weighed(
        [
            Reading(
                what=one,
                value=told,
                weight=_likelihood(one, told, hardware),
                hardware=apply_factor(hardware, one, told),
            )
            for one, told in values.items()
            if told or one == chosen
        ]
    )
    predicted_ns = search.figure(anchored)
    misfit = _misfit(readings, hardware, predicted_ns / search.target_ns - 1)
    spread = _spread(anchored, readings, misfit)
    reasons += doubts_about_step(replace(hardware, spread={"anchor": misfit}))
    provenance = {
        "measured_step_ns": measured.step_ns,
        "measured_sync_end_ns": measured.sync_end_ns,
        "bucket_bytes": list(measured.assignment.bucket_bytes or ()),
        "second_step_ns": None if second is None else second.step_ns,
        "launch_cost_ns": hardware.launch_cost_ns,
        "factor": chosen,
        "value": value,
        "in_step_durations_ns": None if seen is None else list(seen.durations_ns),
        "after_backward_ns": None if seen is None else seen.after_backward_ns,
        "workload": workload.name,
    }
    return Anchored(
        hardware=replace(
            anchored,
            spread=spread,
            provenance={**anchored.provenance, "anchored": provenance},
        ),
        factor=chosen,
        value=value,
        fitted="step" if measured.sync_end_ns is None else "sync_end",
        measured_ns=search.target_ns,
        plain_ns=search.figure(hardware),
        predicted_ns=predicted_ns,
        fits=not misfit,
        in_step=in_step,
        readings=readings,
        reasons=tuple(reasons),
        notes=doubts_about(workload, hardware),
    )


def _solve(
    search: "_Search", hardware: Hardware, chosen: Factor, *, asked: bool, profiled: bool
) -> tuple[Factor, float]:
    """The factor to fix and its value; the link's where a slow-down that nobody asked for is not enough.

    Raises:
        InputError: what was asked for cannot make the step true; the message has the link that could.
    """
    try:
        value = search.solve(hardware, chosen)
    except _Beyond as error:
        link = None if chosen == "curve" else search.try_to(hardware, "curve")
        if link is None:
            raise
        if asked or profiled:
            raise InputError(
                f"{error}; a link that is {format_number(link)} times as slow as given explains it: fix the "
                f"factor "
                f"curve, or measure the link that trains"
            ) from None
        return "curve", link
    if not asked and not profiled and chosen != "curve" and value > FAIR_SLOWDOWN:
        link = search.try_to(hardware, "curve")
        if link is not None:
            return "curve", link
    return chosen, value


def _weighed(readings: list[Reading]) -> tuple[Reading, ...]:
    """The first reading, and of the others those that are not far less likely than the likeliest; weights sum
    to 1."""
    likeliest = max(one.weight for one in readings)
    kept = [one for one in readings if one is readings[0] or one.weight >= _UNLIKELY * likeliest]
    floored = [max(one.weight, _UNLIKELY * likeliest) for one in kept]
    total = sum(floored)
    return tuple(replace(one, weight=weight / total) for one, weight in zip(kept, floored, strict=True))


def _likelihood(factor: Factor, value: float, hardware: Hardware) -> float:
    """How likely it is that a machine has this value, before the step is seen; 1 at the likeliest."""
    if factor == "curve":
        stated = hardware.spread.get("ranges", {}).get("all_reduce", {"low": 1.0, "high": 1.0})
        sigma = max(_LINK_SIGMA, abs(log(stated["high" if value > 1 else "low"])) / 2)
        return 1 / (1 + (log(value) / sigma) ** 2)
    sigmas = value / _LAUNCH_SIGMA_NS if factor == "launch_cost_ns" else log(value) / _SLOWDOWN_SIGMA
    times = 2 if factor == "mutual" else 1  # it takes both to be as slow
    return exp(-times * sigmas**2 / 2)


def _link_range(hardware: Hardware) -> tuple[float, float]:
    """How many times as long as the curve says all-reduces may take: as it states, or a fair range."""
    said = hardware.spread.get("ranges", {}).get("all_reduce")
    return (1 / FAIR_RATIO, FAIR_RATIO) if said is None else (said["low"], said["high"])


def _misfit(readings: tuple[Reading, ...], hardware: Hardware, error: float) -> dict[str, Any]:
    """Why the first reading is no fit, as ``spread.anchor`` has it; empty where it is one."""
    factor, value = readings[0].what, readings[0].value
    low, high = _link_range(hardware) if factor == "curve" else BOUNDS[factor]
    is_held = log(BOUNDS[factor][1] / value) < AT_BOUND if value else False
    if factor == "curve" and not log(low) - AT_BOUND <= log(value) <= log(high) + AT_BOUND:
        why = "beyond"
    elif is_held:
        why = "bound"
    elif hardware.launch_cost_ns > _MOST_LAUNCH_NS:
        why, factor, value = "bound", "launch_cost_ns", float(hardware.launch_cost_ns)
        low, high = 0.0, float(_MOST_LAUNCH_NS)
    elif abs(error) > MISSED:
        why = "off"
    else:
        return {}
    link = next((one.value for one in readings if one.what == "curve"), None)
    return {
        "fits": False,
        "why": why,
        "factor": factor,
        "value": value,
        "low": low,
        "high": high,
        "error": error,
        "explained_by": link,
    }


def _spread(anchored: Hardware, readings: tuple[Reading, ...], misfit: dict[str, Any]) -> dict[str, Any]:
    """The spread of the anchored hardware: without the ranges of what the step fixed, with the readings."""
    factor = readings[0].what
    fixed = {"curve": {"all_reduce"}, "mutual": {"compute_slowdown", "comm_slowdown"}}.get(factor, {factor})
    ranges = {name: known for name, known in anchored.spread.get("ranges", {}).items() if name not in fixed}
    gone = ("ranges", "readings", "anchor")
    rest = {name: known for name, known in anchored.spread.items() if name not in gone}
    told = [_told(one, readings[0]) for one in readings]
    return {
        **rest,
        **({"ranges": ranges} if ranges else {}),
        **({"readings": told} if len(told) > 1 else {}),
        **({"anchor": misfit} if misfit else {}),
    }


def _told(reading: Reading, first: Reading) -> dict[str, Any]:
    """A reading as ``spread.readings`` has it: what it changes of the first."""
    names = ("launch_cost_ns", "launch_blocks_compute", "compute_slowdown", "comm_slowdown")
    changed = {
        name: getattr(reading.hardware, name)
        for name in names
        if getattr(reading.hardware, name) != getattr(first.hardware, name)
    }
    ratio = (reading.value if reading.what == "curve" else 1.0) / (
        first.value if first.what == "curve" else 1.0
    )
    return {"what": reading.what, "weight": reading.weight, "set": changed, "curve": ratio}


def _why(factor: Factor, hardware: Hardware, *, asked: bool, slowed: bool) -> str:
    """Why the anchor fixes this factor: it was ``asked`` for, or the workload's times contain interference
    already (``slowed``), or it is the likeliest that is not known otherwise."""
    begin = f"one number fixes one factor: {factor}"
    if asked:
        return f"{begin}, as asked for"
    if factor == "curve":
        return f"{begin}; no slow-down that two share fairly explains the step"
    if slowed:
        return f"{begin}; what collectives do to computation is in the workload's times already"
    if factor == "mutual":
        return (
            f"{begin}; computation and communication share one GPU, and who yields is not known, so that "
            f"both are slowed alike"
        )
    known = "comm_slowdown" if factor == "compute_slowdown" else "compute_slowdown"
    return f"{begin}; {known} is known, {format_number(getattr(hardware, known))}"


def _told_of_link(found: InStepCurve) -> str:
    """What the durations seen in the step say of the link, and of how many collectives that is known."""
    sizes = f"{format_number(found.least_bytes / 1e6)} to {format_number(found.most_bytes / 1e6)} MB"
    if not found.alone:
        return (
            f"all-reduces in the step take {format_number(found.ratio)} times as long as alone (median of "
            f"{found.count}, {format_number(found.low)} to {format_number(found.high)}, {sizes}); none is "
            f"known to lie wholly "
            f"after backward, so that what computation adds to them is in it"
        )
    fixed_by = "one all-reduce fixes this" if found.alone == 1 else f"{found.alone} all-reduces fix this"
    return (
        f"all-reduces after backward take {format_number(found.ratio)} times as long as alone "
        f"({found.alone} of "
        f"{found.count}; all: {format_number(found.low)} to {format_number(found.high)}, {sizes}), those "
        f"during backward "
        f"{format_number(found.comm_slowdown)} times that; {fixed_by} for all sizes"
    )


def apply_factor(hardware: Hardware, factor: Factor, value: float) -> Hardware:
    """``hardware`` with one factor at ``value``; ``curve`` multiplies the durations of its all-reduces."""
    if factor == "curve":
        return scaled(hardware, value)
    if factor == "launch_cost_ns":
        return replace(hardware, launch_cost_ns=round(value), launch_blocks_compute=True)
    names = ("compute_slowdown", "comm_slowdown") if factor == "mutual" else (factor,)
    changed: dict[str, Any] = dict.fromkeys(names, value)
    return replace(hardware, **changed)


def link_that_explains(workload: Workload, hardware: Hardware, measured: MeasuredStep) -> float | None:
    """How many times as long as the curve says all-reduces have to take to make the step true; None where
    no link does."""
    return _Search(workload, measured, profiled=False).try_to(hardware, "curve")


def _default(hardware: Hardware, *, slowed: bool) -> Factor:
    if hardware.comm_slowdown > 1:
        return "compute_slowdown"
    return "comm_slowdown" if slowed or hardware.compute_slowdown > 1 else "mutual"


def _launch_cost_ns(first: "_Search", second: "_Search", hardware: Hardware, factor: Factor) -> float:
    """The cost of a collective at which the second step is true too, the factor fixed by the first.

    From 0, which is the answer if it makes the second step true within its noise, to the cost at which the
    first step is explained without any factor.
    """
    if hardware.launch_cost_ns:
        raise InputError(
            f"second: launch_cost_ns is known already, {hardware.launch_cost_ns}; give hardware without it"
        )

    def costly(cost_ns: float) -> Hardware:
        return apply_factor(hardware, "launch_cost_ns", cost_ns)

    def missing_ns(cost_ns: float) -> int:
        value = first.nearest(costly(cost_ns), factor, first.target_ns)
        return second.target_ns - second.figure(apply_factor(costly(cost_ns), factor, value))

    whole_ns = first.target_ns
    most = _halved(
        lambda cost_ns: first.figure(costly(cost_ns)) <= whole_ns, 0.0, float(whole_ns), _COST_PRECISION_NS
    )
    at_least, at_most = missing_ns(0.0), missing_ns(most)
    if abs(at_least) <= second.noise_ns:
        return 0.0
    if (at_least > 0) == (at_most > 0):
        raise InputError(
            f"second: a {second.what} of {format_ms(second.target_ns)} cannot be true beside the first; with "
            f"0 to {most:.0f} ns a collective it is {format_ms(second.target_ns - at_least)} to "
            f"{format_ms(second.target_ns - at_most)}"
        )
    return _halved(lambda cost: (missing_ns(cost) > 0) == (at_least > 0), 0.0, most, _COST_PRECISION_NS)


def _halved(is_short: Callable[[float], bool], low: float, high: float, precision: float) -> float:
    """The least value from ``low`` to ``high`` that is not short, by halving."""
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if is_short(middle) else (low, middle)
    return high


class _Beyond(InputError):
    """The step is longer than a factor explains."""


class _Search:
    """The value of a factor at which the model predicts the measured figure."""

    def __init__(self, workload: Workload, measured: MeasuredStep, *, profiled: bool) -> None:
        self.workload, self.measured, self.profiled = workload, measured, profiled
        self.uses_step = measured.sync_end_ns is None
        self.target_ns = measured.step_ns if measured.sync_end_ns is None else measured.sync_end_ns
        self.what = "step" if self.uses_step else "backward"
        usual_ns = round(USUAL_NOISE * self.target_ns)
        self.noise_ns = usual_ns if measured.noise_ns is None else measured.noise_ns

    def figure(self, hardware: Hardware) -> int:
        """The step, or ``sync_end`` where that was measured, in ns."""
        timeline = simulate(self.workload, hardware, self.measured.assignment, "analytic")
        return step_ns(timeline) if self.uses_step else timeline.sync_end_ns

    def nearest(self, hardware: Hardware, factor: Factor, target_ns: int) -> float:
        """The value at which the figure reaches ``target_ns``, or the bound that comes nearest."""

        def is_short(value: float) -> bool:
            return self.figure(apply_factor(hardware, factor, value)) < target_ns

        return round(_halved(is_short, *BOUNDS[factor], _PRECISION), 6)

    def solve(self, hardware: Hardware, factor: Factor) -> float:
        """The value that makes the figure true; 1 where it is within the noise of no interference."""
        least, most = BOUNDS[factor]
        low_ns, high_ns = (self.figure(apply_factor(hardware, factor, value)) for value in (least, most))
        if low_ns == high_ns:
            raise InputError(self._says_nothing(low_ns, factor))
        short_ns, target_ns = low_ns - self.target_ns, self.target_ns
        if short_ns > self.noise_ns:
            raise InputError(self._too_short(low_ns, short_ns, factor))
        if short_ns >= 0:
            if factor != "curve":
                return least
            if self.figure(hardware) <= target_ns + self.noise_ns:
                return 1.0
            target_ns += self.noise_ns  # all links from some speed on: the one nearest to the given
        if high_ns < self.target_ns - self.noise_ns:
            raise _Beyond(
                f"measured: a {self.what} of {format_ms(self.target_ns)} is beyond what {factor} explains: "
                f"{format_ms(low_ns)} at {format_number(least, 6)}, {format_ms(high_ns)} at "
                f"{format_number(most, 6)}"
            )
        return self.nearest(hardware, factor, target_ns)

    def try_to(self, hardware: Hardware, factor: Factor) -> float | None:
        """As ``solve``; None where this factor cannot make the figure true."""
        try:
            return self.solve(hardware, factor)
        except InputError:
            return None

    def _says_nothing(self, figure_ns: int, factor: Factor) -> str:
        nothing = f"this {self.what} says nothing of {factor}; it is {format_ms(figure_ns)} whatever that is"
        if "interference" in self.workload.ready_includes and factor != "curve":
            return (
                f"workload: ready_includes has interference: its times contain what collectives do to "
                f"computation; of what is left {nothing}; give a workload of a single GPU's step"
            )
        return f"measured: {nothing}; give a row in which communication is hidden in part"

    def _too_short(self, low_ns: int, short_ns: int, factor: Factor) -> str:
        said = (
            f"measured: a {self.what} of {format_ms(self.target_ns)} is shorter by {format_ms(short_ns)} "
            f"than the parts allow without any interference, {format_ms(low_ns)}"
        )
        if factor == "curve":
            return f"{said}; no link is fast enough to make up for it"
        if self.profiled:
            return (
                f"{said}; durations seen on one rank may contain its wait for the last one: leave them out, "
                f"fix the factor curve, or say what noise the figure has"
            )
        return (
            f"{said}; links are often faster in the step than beside it: give the durations of the step's "
            f"all-reduces, fix the factor curve, or say what noise the figure has"
        )
