"""What a job's own step says of interference: one measured step fixes one factor."""

from collections.abc import Callable
from dataclasses import replace

from sim.costs.in_step import in_step_curve, scaled, with_in_step
from sim.errors import InputError
from sim.metrics.step import step_ns
from sim.nouns.anchored import SLOWDOWN_FACTORS, Anchored, Factor, InStepTimes, MeasuredStep
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.simulate import simulate
from sim.truth.anchor_reasons import told_of_link, why
from sim.units import format_ms

FAIR_SLOWDOWN = 2.0  # of two that share one resource fairly
MOST_SLOWDOWN = 4.0  # beyond it nothing is shared any more: one waits for the other
# A curve beside the step that is off by more than this is another link's.
MOST_RATIO = 4.0
# What medians of one job's steps differ by from run to run: 0.25 % on four A40, 0.5 to 1.2 % on two A100.
USUAL_NOISE = 0.005
_PRECISION = 1e-6  # of a factor: far below what a step can tell
_COST_STEP_NS = 100  # of the cost of a collective: this is also far below what a step can tell


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
    - ``curve``: the link itself is faster or slower in the step than beside it; never the default.

    Where the workload's times contain interference already, as those of a trace do, what collectives do to
    computation cannot be told again: ``comm_slowdown`` is the default there, ``mutual`` and
    ``compute_slowdown`` are refused.

    A slow-down that ``hardware`` has, and that is not to be fixed, stays. ``seen`` first turns the curve
    measured beside the step into that in it (``in_step_curve``). A second step, with another number of
    buckets, fixes what each collective costs on the compute lane (``launch_cost_ns``), which no curve of
    collectives that follow one another in a loop holds.

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
    in_step, reasons = None, []
    if seen is not None:
        timeline = simulate(workload, hardware, measured.assignment, "analytic")
        sizes = [bucket.num_bytes for bucket in timeline.buckets]
        in_step = in_step_curve(hardware.all_reduce, sizes, seen)
        hardware = with_in_step(hardware, in_step)
        reasons.append(told_of_link(in_step))
    slowed = "interference" in workload.ready_includes
    chosen = _default(hardware, slowed=slowed) if factor is None else factor
    if slowed and chosen in ("mutual", "compute_slowdown"):
        raise InputError(
            f"workload: ready_includes has interference: its times contain what collectives do to "
            f"computation, so that {chosen} cannot be fixed; give a workload of a single GPU's step, or fix "
            f"the factor comm_slowdown or curve"
        )
    reasons.append(why(chosen, hardware, asked=factor is not None, slowed=slowed))
    search = _Search(workload, measured, profiled=seen is not None)
    if second is not None:
        other_search = _Search(workload, second, profiled=seen is not None)
        cost_ns = _launch_cost_ns(search, other_search, hardware, chosen)
        hardware = _with_launch_cost(hardware, cost_ns)
        reasons.append(
            f"a second step fixes a second number: each collective costs the compute lane "
            f"{cost_ns / 1e3:.0f} us"
        )
    value = search.solve(hardware, chosen)
    if chosen != "curve" and value > FAIR_SLOWDOWN:
        reasons.append(
            f"{chosen} {value:.3g} is more than sharing one GPU fairly explains, {FAIR_SLOWDOWN:g}; part of "
            f"it may be something else (a link that is slower in the step, a slower rank, data loading)"
        )
    anchored = apply_factor(hardware, chosen, value)
    others: list[tuple[Factor, float, Hardware]] = []
    nothing_known = not slowed and hardware.compute_slowdown == hardware.comm_slowdown == 1
    for other in SLOWDOWN_FACTORS if nothing_known else ():
        if other == chosen:
            continue
        try:
            value_of_other = search.solve(hardware, other)
        except InputError:
            continue  # it cannot make this step true
        others.append((other, value_of_other, apply_factor(hardware, other, value_of_other)))
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
        hardware=replace(anchored, provenance={**anchored.provenance, "anchored": provenance}),
        factor=chosen,
        value=value,
        fitted="step" if measured.sync_end_ns is None else "sync_end",
        measured_ns=search.target_ns,
        plain_ns=search.figure(hardware),
        predicted_ns=search.figure(anchored),
        in_step=in_step,
        others=tuple(others),
        reasons=tuple(reasons),
    )


def apply_factor(hardware: Hardware, factor: Factor, value: float) -> Hardware:
    """``hardware`` with one factor at ``value``; ``curve`` multiplies the durations of its all-reduces."""
    if factor == "curve":
        return scaled(hardware, value)
    if factor == "mutual":
        return replace(hardware, compute_slowdown=value, comm_slowdown=value)
    if factor == "compute_slowdown":
        return replace(hardware, compute_slowdown=value)
    return replace(hardware, comm_slowdown=value)


def _default(hardware: Hardware, *, slowed: bool) -> Factor:
    if hardware.comm_slowdown > 1:
        return "compute_slowdown"
    return "comm_slowdown" if slowed or hardware.compute_slowdown > 1 else "mutual"


def _with_launch_cost(hardware: Hardware, cost_ns: int) -> Hardware:
    return replace(hardware, launch_cost_ns=cost_ns, launch_blocks_compute=True)


def _launch_cost_ns(first: "_Search", second: "_Search", hardware: Hardware, factor: Factor) -> int:
    """The cost of a collective at which the second step is true too, the factor fixed by the first.

    Searched from the least (0; or, where no factor explains the first step, the cost from which on one does)
    to the most (at which the first step is explained without any factor). If the least makes the second step
    true within its noise, it is the answer.
    """
    if hardware.launch_cost_ns:
        raise InputError(
            f"second: launch_cost_ns is known already, {hardware.launch_cost_ns}; give hardware without it"
        )

    def missing_ns(cost_ns: int) -> int:
        costly = _with_launch_cost(hardware, cost_ns)
        return second.target_ns - second.figure(apply_factor(costly, factor, first.solve(costly, factor)))

    def fits(cost_ns: int) -> bool:
        return first.figure(_with_launch_cost(hardware, cost_ns)) <= first.target_ns

    def falls_short(cost_ns: int) -> bool:
        most_ns = first.figure(apply_factor(_with_launch_cost(hardware, cost_ns), factor, most_of(factor)))
        return most_ns < first.target_ns - first.noise_ns

    most = _last(fits, first.target_ns)
    least = _last(falls_short, most) + _COST_STEP_NS if falls_short(0) else 0
    at_least = missing_ns(least)
    if abs(at_least) <= second.noise_ns:
        return least
    at_most = missing_ns(most)
    if (at_least > 0) == (at_most > 0):
        raise InputError(
            f"second: a {second.what} of {format_ms(second.target_ns)} cannot be true beside the first; with "
            f"{least} to {most} ns a collective it is {format_ms(second.target_ns - at_least)} to "
            f"{format_ms(second.target_ns - at_most)}"
        )
    return _last(lambda cost_ns: (missing_ns(cost_ns) > 0) == (at_least > 0), most, least)


def most_of(factor: Factor) -> float:
    """The largest value that a factor may take."""
    return MOST_RATIO if factor == "curve" else MOST_SLOWDOWN


def _last(holds: Callable[[int], bool], most: int, least: int = 0) -> int:
    """The largest multiple of a tenth of a microsecond from ``least`` to ``most`` for which it holds.

    It holds up to some number and not beyond.
    """
    low, high = least // _COST_STEP_NS, most // _COST_STEP_NS + 1
    while high - low > 1:
        middle = (low + high) // 2
        if holds(middle * _COST_STEP_NS):
            low = middle
        else:
            high = middle
    return low * _COST_STEP_NS


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

    def solve(self, hardware: Hardware, factor: Factor) -> float:
        """The value, by halving; 1 where the figure is within the noise of no interference."""

        def at(value: float) -> int:
            return self.figure(apply_factor(hardware, factor, value))

        least, most = 1 / MOST_RATIO if factor == "curve" else 1.0, most_of(factor)
        low_ns, high_ns = at(least), at(most)
        if low_ns == high_ns:
            raise InputError(self._says_nothing(low_ns, factor))
        short_ns = low_ns - self.target_ns
        if short_ns >= 0:
            if short_ns <= self.noise_ns:
                return least
            raise InputError(self._too_short(low_ns, short_ns, factor))
        if high_ns < self.target_ns - self.noise_ns:
            raise InputError(
                f"measured: a {self.what} of {format_ms(self.target_ns)} is beyond what {factor} explains: "
                f"{format_ms(low_ns)} at {least:g}, {format_ms(high_ns)} at {most:g}; something else takes "
                f"{format_ms(self.target_ns - high_ns)} (data loading, a slower rank, another model)"
            )
        low, high = least, most
        while high - low > _PRECISION:
            middle = (low + high) / 2
            if at(middle) < self.target_ns:
                low = middle
            else:
                high = middle
        return round(high, 6)

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
            return f"{said}; no link that is {MOST_RATIO:g} times as fast makes up for it"
        if self.profiled:
            return (
                f"{said}; durations seen on one rank may contain its wait for the last one: leave them out, "
                f"fix the factor curve, or say what noise the figure has"
            )
        return (
            f"{said}; links are often faster in the step than beside it: give the durations of the step's "
            f"all-reduces, fix the factor curve, or say what noise the figure has"
        )
