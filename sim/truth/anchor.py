"""What a job's own step says of its machine: one measured step fixes one factor, whichever it is.

A profile of that step says more: how long its collectives took tells the link as it is in the step.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import median
from typing import Any, Literal

from sim.costs.doubts import doubts_about, doubts_about_step, without_own_costs
from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Checked, Count, Positive
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate
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
    in_step: "InStepCurve | None" = None
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
    seen: "InStepTimes | None" = None,
    second: MeasuredStep | None = None,
) -> Anchored:
    """The hardware with one factor changed so that one measured step is predicted as it was measured.

    Parts measured apart (a single GPU's step, a link's curve) say nothing of what computation and
    communication do to each other. One measured step is one number, and fixes one factor:

    - ``mutual``: both slow-downs, taken as equal. The default where neither is known: the two share memory,
      multiprocessors and power, and one number does not say who yields.
    - ``compute_slowdown``: the default where ``comm_slowdown`` is known, from ``hardware`` or from ``seen``.
    - ``comm_slowdown``: the default where ``compute_slowdown`` is known, or the workload's times contain
      interference already, as those of a trace do; the two above are refused there.
    - ``curve``: the link itself is faster or slower in the step than beside it. The default where a slow-down
      would have to be more than ``FAIR_SLOWDOWN``: then most likely another link trains.

    A slow-down that ``hardware`` has, and that is not to be fixed, stays. The other factors that make the
    step true as well, each alone, are kept with how likely they are, in ``spread.readings`` of the hardware:
    ``sim.tune`` says what holds under all of them. What is no fit is told in ``spread.anchor``, and no gain
    is told of such a hardware.

    Args:
        workload: what a single GPU computes.
        hardware: the link beside the step, and what copies cost.
        measured: the step to make true; its ``sync_end_ns`` goes before its step where it is given.
        factor: which factor to fix.
        seen: durations of the step's collectives, from a profile; they first turn the curve measured beside
            the step into that in it (``in_step_curve``).
        second: another step of the same job, with another number of buckets. It fixes what each collective
            costs on the compute lane (``launch_cost_ns``), which no curve of collectives in a loop holds.

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
        in_step = in_step_curve(hardware.all_reduce, [one.num_bytes for one in timeline.buckets], seen)
        hardware = with_in_step(hardware, in_step)
        reasons.append(_told_of_link(in_step))
    slowed = "interference" in workload.ready_includes
    asked, chosen = factor is not None, factor or _default(hardware, slowed=slowed)
    if slowed and chosen in ("mutual", "compute_slowdown"):
        raise InputError(
            f"workload: ready_includes has interference: its times contain what collectives do to "
            f"computation, so that {chosen} cannot be fixed; give a workload of a single GPU's step, or fix "
            f"the factor comm_slowdown or curve"
        )
    search = _Search(workload, measured, profiled=seen is not None)
    if second is not None:
        cost_ns = _launch_cost_ns(search, _Search(workload, second, profiled=False), hardware, chosen)
        hardware = apply_factor(hardware, "launch_cost_ns", cost_ns)
        told = f"each collective costs the compute lane {cost_ns / 1e3:.0f} us"
        reasons.append(f"a second step fixes a second number: {told}")
    chosen, value = search.likeliest(hardware, chosen, asked=asked)
    reasons.append(f"one number fixes one factor: {chosen}{_why(chosen, hardware, asked, slowed)}")
    if chosen != "curve" and value > FAIR_SLOWDOWN:
        reasons.append(
            f"{chosen} {format_number(value)} is more than sharing one GPU fairly explains, "
            f"{format_number(FAIR_SLOWDOWN, 6)}; part of it may be something else (a link that is slower in "
            f"the step, a slower rank, data loading)"
        )
    anchored = apply_factor(hardware, chosen, value)
    nothing_known = not slowed and hardware.compute_slowdown == hardware.comm_slowdown == 1
    also: list[Factor] = [*(SLOWDOWN_FACTORS if nothing_known else ()), *(() if seen else ("curve",))]
    if second is None and not hardware.launch_cost_ns:
        also.append("launch_cost_ns")
    values = {one: search.try_to(hardware, one) for one in also if one != chosen}
    readings = _weighed(hardware, {chosen: value} | {one: told for one, told in values.items() if told})
    predicted_ns = search.figure(anchored)
    misfit = _misfit(readings, hardware, predicted_ns / search.target_ns - 1)
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
            spread=_spread(anchored, readings, misfit),
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


def _why(factor: Factor, hardware: Hardware, asked: bool, slowed: bool) -> str:
    """Why this factor: it was ``asked`` for, or it is the likeliest that is not known otherwise."""
    if asked:
        return ", as asked for"
    if factor == "curve":
        return "; no slow-down that two share fairly explains the step"
    if slowed:
        return "; what collectives do to computation is in the workload's times already"
    if factor == "mutual":
        return (
            "; computation and communication share one GPU, and who yields is not known, so that both are "
            "slowed alike"
        )
    known = "comm_slowdown" if factor == "compute_slowdown" else "compute_slowdown"
    return f"; {known} is known, {format_number(getattr(hardware, known))}"


# Which readings there are, how likely each is, and whether the first is a fit.


def _weighed(hardware: Hardware, values: dict[Factor, float]) -> tuple[Reading, ...]:
    """The first reading, and of the others those that are not far less likely than the likeliest; weights sum
    to 1."""
    weights = {factor: _likelihood(factor, value, hardware) for factor, value in values.items()}
    least, first = _UNLIKELY * max(weights.values()), next(iter(values))
    kept = {one: max(weight, least) for one, weight in weights.items() if one == first or weight >= least}
    return tuple(
        Reading(
            what=factor,
            value=values[factor],
            weight=weight / sum(kept.values()),
            hardware=apply_factor(hardware, factor, values[factor]),
        )
        for factor, weight in kept.items()
    )


def _likelihood(factor: Factor, value: float, hardware: Hardware) -> float:
    """How likely it is that a machine has this value, before the step is seen; 1 at the likeliest."""
    if factor == "curve":
        stated = hardware.spread.get("ranges", {}).get("all_reduce", {"low": 1.0, "high": 1.0})
        sigma = max(_LINK_SIGMA, abs(log(stated["high" if value > 1 else "low"])) / 2)
        return 1 / (1 + (log(value) / sigma) ** 2)
    sigmas = value / _LAUNCH_SIGMA_NS if factor == "launch_cost_ns" else log(value) / _SLOWDOWN_SIGMA
    times = 2 if factor == "mutual" else 1  # it takes both to be as slow
    return exp(-times * sigmas**2 / 2)


def _misfit(readings: tuple[Reading, ...], hardware: Hardware, error: float) -> dict[str, Any]:
    """Why the first reading is no fit, as ``spread.anchor`` has it; empty where it is one."""
    factor, value = readings[0].what, readings[0].value
    low, high = BOUNDS[factor]
    is_held = log(high / value) < AT_BOUND if value else False
    if factor == "curve":
        fair = {"low": 1 / FAIR_RATIO, "high": FAIR_RATIO}
        said = hardware.spread.get("ranges", {}).get("all_reduce", fair)
        low, high = said["low"], said["high"]
    if factor == "curve" and not log(low) - AT_BOUND <= log(value) <= log(high) + AT_BOUND:
        why = "beyond"
    elif is_held:
        why = "bound"
    elif hardware.launch_cost_ns > _MOST_LAUNCH_NS:
        why, factor, value = "bound", "launch_cost_ns", float(hardware.launch_cost_ns)
        low, high = BOUNDS[factor]
    elif abs(error) > MISSED:
        why = "off"
    else:
        return {}
    link = next((one.value for one in readings if one.what == "curve"), None)
    told = {"why": why, "factor": factor, "value": value, "low": low, "high": high}
    return {"fits": False, **told, "error": error, "explained_by": link}


def _spread(anchored: Hardware, readings: tuple[Reading, ...], misfit: dict[str, Any]) -> dict[str, Any]:
    """The spread of the anchored hardware: without the ranges of what the step fixed, with the readings."""
    factor = readings[0].what
    fixed = {"curve": {"all_reduce"}, "mutual": {"compute_slowdown", "comm_slowdown"}}.get(factor, {factor})
    spread = {name: known for name, known in anchored.spread.items() if name not in ("readings", "anchor")}
    ranges = {name: known for name, known in spread.pop("ranges", {}).items() if name not in fixed}
    told = [_told(one, readings[0]) for one in readings] if len(readings) > 1 else []
    made = {"ranges": ranges, "readings": told, "anchor": misfit}
    return spread | {name: known for name, known in made.items() if known}


def _told(reading: Reading, first: Reading) -> dict[str, Any]:
    """A reading as ``spread.readings`` has it: what it changes of the first."""
    names = ("launch_cost_ns", "launch_blocks_compute", "compute_slowdown", "comm_slowdown")
    mine, other = ({name: getattr(one.hardware, name) for name in names} for one in (reading, first))
    by, of = (one.value if one.what == "curve" else 1.0 for one in (reading, first))
    changed = {name: value for name, value in mine.items() if value != other[name]}
    return {"what": reading.what, "weight": reading.weight, "set": changed, "curve": by / of}


# The search for a value.


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

    def leaves_room(cost_ns: float) -> bool:
        return first.figure(costly(cost_ns)) <= first.target_ns

    most = _halved(leaves_room, 0.0, float(first.target_ns), _COST_PRECISION_NS)
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
        return timeline.step_ns if self.uses_step else timeline.sync_end_ns

    def nearest(self, hardware: Hardware, factor: Factor, target_ns: int) -> float:
        """The value at which the figure reaches ``target_ns``, or the bound that comes nearest."""

        def is_short(value: float) -> bool:
            return self.figure(apply_factor(hardware, factor, value)) < target_ns

        return round(_halved(is_short, *BOUNDS[factor], _PRECISION), 6)

    def likeliest(self, hardware: Hardware, chosen: Factor, *, asked: bool) -> tuple[Factor, float]:
        """The factor to fix and its value; the link's where a slow-down that nobody asked for is not enough.

        Raises:
            InputError: what was asked for cannot make the step true; the message has the link that could.
        """
        is_free, value, beyond = not asked and not self.profiled, 0.0, None
        try:
            value = self.solve(hardware, chosen)
        except _Beyond as error:
            beyond = error
        if chosen != "curve" and (beyond is not None or (is_free and value > FAIR_SLOWDOWN)):
            link = self.try_to(hardware, "curve")
            if link is not None and is_free:
                return "curve", link
            if link is not None:
                told = f"a link that is {format_number(link)} times as slow as given explains it"
                raise InputError(
                    f"{beyond}; {told}: fix the factor curve, or measure the link that trains"
                ) from None
        if beyond is not None:
            raise beyond
        return chosen, value

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
        advice = "links are often faster in the step than beside it: give the durations of its all-reduces"
        if self.profiled:
            advice = "durations seen on one rank may contain its wait for the last one: leave them out"
        end = "no link is fast enough to make up for it"
        if factor != "curve":
            end = f"{advice}, fix the factor curve, or say what noise the figure has"
        return (
            f"measured: a {self.what} of {format_ms(self.target_ns)} is shorter by {format_ms(short_ns)} "
            f"than the parts allow without any interference, {format_ms(low_ns)}; {end}"
        )


# The link as it is in the step: a curve measured apart from it, scaled by collectives that were seen in it.

# Where a collective lies against the end of backward.
Place = Literal["during", "across", "after"]
# A collective counts as during backward, or as after it, if at most this share of it lies on the other side.
# That changes its time by less than a step can tell, and the rounding of times does not decide where it lies.
_SLIVER = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class InStepTimes(Checked):
    """How long each bucket's collective took in the step, in launch order, in ns.

    ``after_backward_ns`` of them lie after the end of backward; None: it is not known. ``places`` says it of
    each, where a profile shows it; None: it is told by ``after_backward_ns``, as of collectives that run one
    after another.
    """

    durations_ns: tuple[Positive, ...]
    after_backward_ns: Count | None = None
    places: tuple[Place, ...] | None = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.durations_ns:
            raise InputError("durations_ns: an empty list is not legal; give one duration a bucket")
        if self.places is not None and len(self.places) != len(self.durations_ns):
            raise InputError(f"places: {len(self.places)} places for {len(self.durations_ns)} durations")


@dataclass(frozen=True, slots=True, kw_only=True)
class InStepCurve:
    """A link as it is in the step, against the same link measured beside it.

    ``ratio`` is duration in the step over duration beside it, of collectives that no computation slows
    (``alone`` of them), else of all; ``low`` and ``high`` are the least and largest of a single one, all of
    them counted. ``comm_slowdown`` is by how much longer the others took. ``least_bytes`` and
    ``most_bytes`` are the sizes that were seen: beyond them the ratio is carried over.
    """

    ratio: float
    low: float
    high: float
    comm_slowdown: float
    alone: int
    count: int
    least_bytes: int
    most_bytes: int


def in_step_curve(beside: Curve, sizes: Sequence[int], seen: InStepTimes) -> InStepCurve:
    """How the link does in the step, from the collectives of one profiled step.

    A collective's duration in the step differs from the curve for two reasons, which the end of backward
    tells apart. After it nothing is computed while collectives run: ``ratio`` is what they took in all over
    what the curve says for their bytes, and tells how the link itself differs (another channel count, warm
    buffers, another day). Before it collectives run beside computation: ``comm_slowdown`` is the median
    factor by which they took longer than ``ratio`` times the curve; a median, since the first one waits for
    the last rank to arrive. A collective across the end counts for neither. If none lies wholly after
    backward, the two reasons cannot be told apart: ``ratio`` is the median of all.

    Args:
        beside: all-reduce durations, measured apart from the step.
        sizes: bytes that travelled, by bucket in launch order.
        seen: how long they took.

    Raises:
        InputError: not one duration a bucket, or a curve without durations to compare with.
    """
    if len(sizes) != len(seen.durations_ns):
        raise InputError(
            f"durations_ns: {len(seen.durations_ns)} durations for {len(sizes)} buckets; give one a bucket, "
            f"in launch order"
        )
    known = [service_ns(beside, size) for size in sizes]
    if not all(known):
        raise InputError("all_reduce: a curve of durations of 0 ns is not legal here; give a measured one")
    ratios = [duration / time for duration, time in zip(seen.durations_ns, known, strict=True)]
    places = _places(seen) if seen.places is None else seen.places
    during, alone = ([k for k, one in enumerate(places) if one == what] for what in ("during", "after"))
    ratio, comm_slowdown = median(ratios), 1.0
    if alone:
        ratio = sum(seen.durations_ns[k] for k in alone) / sum(known[k] for k in alone)
        comm_slowdown = max(1.0, median(ratios[k] for k in during) / ratio) if during else 1.0
    return InStepCurve(
        ratio=ratio,
        low=min(ratios),
        high=max(ratios),
        comm_slowdown=comm_slowdown,
        alone=len(alone),
        count=len(ratios),
        least_bytes=min(sizes),
        most_bytes=max(sizes),
    )


def in_step_times(measurement: Measurement) -> InStepTimes:
    """Durations of the collectives of an imported trace, medians over its steps, and where each lies in most.

    Raises:
        InputError: no traced step, or a collective whose start or end cannot be told.
    """
    steps = [step for step in measurement.traced if step.buckets]
    if len({len(step.buckets) for step in steps}) != 1:
        raise InputError(f"{measurement.name}: has no traced steps of one and the same number of buckets")
    durations: list[list[int]] = [[] for _ in steps[0].buckets]  # by bucket and step
    alone: list[list[int]] = [[] for _ in steps[0].buckets]  # after the end of backward
    for step in steps:
        for place, bucket in enumerate(step.buckets):
            if bucket.start_ns is None or bucket.end_ns is None:
                raise InputError(f"{measurement.name}: bucket {place} has no start or no end")
            durations[place].append(bucket.end_ns - bucket.start_ns)
            alone[place].append(max(0, bucket.end_ns - max(bucket.start_ns, step.backward_end_ns)))
    places = [Counter(map(_place, *rows)).most_common(1)[0] for rows in zip(durations, alone, strict=True)]
    return InStepTimes(
        durations_ns=tuple(round(median(each)) for each in durations),
        after_backward_ns=round(median(map(sum, zip(*alone, strict=True)))),
        places=tuple(place if 2 * count > len(steps) else "across" for place, count in places),
    )


def _place(duration_ns: int, alone_ns: int) -> Place:
    """Where a collective lies of which ``alone_ns`` are after the end of backward."""
    sliver = _SLIVER * duration_ns
    if alone_ns >= duration_ns - sliver:
        return "after"
    return "across" if alone_ns > sliver else "during"


def _places(seen: InStepTimes) -> tuple[Place, ...]:
    """Where each collective lies, if they run one by one and ``after_backward_ns`` are after backward."""
    places: list[Place] = []
    left = seen.after_backward_ns or 0
    for duration in reversed(seen.durations_ns):
        places.append(_place(duration, min(left, duration)))
        left -= min(left, duration)
    return tuple(reversed(places))


def _told_of_link(found: InStepCurve) -> str:
    """What the durations seen in the step say of the link, and of how many collectives that is known."""
    sizes = f"{format_number(found.least_bytes / 1e6)} to {format_number(found.most_bytes / 1e6)} MB"
    ratio, within = format_number(found.ratio), f"{format_number(found.low)} to {format_number(found.high)}"
    if not found.alone:
        return (
            f"all-reduces in the step take {ratio} times as long as alone (median of {found.count}, "
            f"{within}, {sizes}); none is known to lie wholly after backward, so that what computation adds "
            f"to them is in it"
        )
    fixed_by = "one all-reduce fixes this" if found.alone == 1 else f"{found.alone} all-reduces fix this"
    return (
        f"all-reduces after backward take {ratio} times as long as alone ({found.alone} of {found.count}; "
        f"all: {within}, {sizes}), those during backward {format_number(found.comm_slowdown)} times that; "
        f"{fixed_by} for all sizes"
    )


def with_in_step(hardware: Hardware, found: InStepCurve) -> Hardware:
    """``hardware`` with its all-reduce curve as it is in the step, its uncertainty in ``spread``."""
    changed = scaled(hardware, found.ratio)
    names = ("ratio", "low", "high", "least_bytes", "most_bytes")
    told = {name: getattr(found, name) for name in names}
    return replace(changed, comm_slowdown=found.comm_slowdown, spread={**changed.spread, "in_step": told})


def scaled(hardware: Hardware, ratio: float) -> Hardware:
    """``hardware`` with every duration of its all-reduce curve, and of what is known of its scatter, times
    ``ratio``.
    """
    return rescaled(hardware, lambda _: ratio)


def rescaled(hardware: Hardware, ratio_at: Callable[[int], float]) -> Hardware:
    """As ``scaled``, by a ratio that goes with the size of the message in bytes."""
    spread = dict(hardware.spread)
    if isinstance(known := spread.get("all_reduce"), dict):
        spread["all_reduce"] = {
            size: _times(value, ratio_at(int(size))) if size.isdecimal() else value
            for size, value in known.items()
        }
    curve = tuple(
        CurvePoint(num_bytes=size, duration_ns=round(time * ratio_at(size)))
        for size, time in ((point.num_bytes, point.duration_ns) for point in hardware.all_reduce)
    )
    return replace(hardware, all_reduce=curve, spread=spread)


def _times(value: Any, ratio: float, name: str = "") -> Any:
    """``value``, a part of a hardware's ``spread``, with every number of nanoseconds times ``ratio``."""
    if isinstance(value, dict):
        return {key: _times(member, ratio, str(key)) for key, member in value.items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value * ratio) if is_number and name.endswith("_ns") else value
