"""Is it real: what one assignment saves against another over the same draws, and whether anybody notices.

All assignments play the same draws, so that they differ by what they are. A table of steps has a row for each
machine that the calibration allows, a column an iteration; a cell is a step, or a paired difference of steps.
What is the same in a whole row is an error of the calibration: a training run has one machine, and no number
of steps averages it out. What is the same in a whole column belongs to an iteration: more recorded iterations
would make the average over a long run better known. Jitter is new in every cell, and averages out.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from sim.clock.arrays import Floats
from sim.costs.doubts import doubts_about, doubts_about_step
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain, Shortfall
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.systems.simulate import simulated_step_ns
from sim.tuner.draws import NO_ITERATIONS, Draws
from sim.tuner.problem import Buckets, Problem
from sim.units import format_ms, format_number, format_percent

NOTHING = 0.001  # of the step: no gain worth a change, whatever is proved about it
# Of the step, where neither the machine nor any step is measured: by this much predictions are off where both
# are (median of paced records).
NOTHING_UNMEASURED = 0.005
SMALL = 0.01  # of the step: below it a gain has to show beside the noise of a step

DEFAULT_WORDS = "DDP's default"

_NORMAL = 1.4826  # standard deviation over median absolute deviation, of a normal distribution
# Student's t, two-sided 95 %, by degrees of freedom; linear in 1 / freedom between them.
_FREEDOM = (1, 1.5, 2, 3, 4, 5, 7, 10, 15, 30, 1e9)
_STUDENT = (12.7062, 6.0167, 4.3027, 3.1824, 2.7764, 2.5706, 2.3646, 2.2281, 2.1314, 2.0423, 1.96)


class Estimate(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def told(self, nominal: float) -> float:
        """What to tell and judge: the nominal value, or this where that lies outside of the interval."""
        return nominal if self.low <= nominal <= self.high else self.value


def student(freedom: float) -> float:
    """The factor of a standard error that makes a 95 % interval, by degrees of freedom (>= 1)."""
    inverse = [1 / each for each in reversed(_FREEDOM)]
    return float(np.interp(1 / freedom, inverse, _STUDENT[::-1]))


def estimate_mean(table: Floats, *, is_ranged: bool = False) -> Estimate:
    """The mean of a long run on the real machine, in ns, from a table [machines, iterations].

    Its variance is that between machines times (1 + 1 / number of them), plus that between the means of
    columns over their number; degrees of freedom are Satterthwaite's. Means of rows have no luck of single
    cells in them (``Draws``). Of machines that lie in ranges (``is_ranged``) the interval holds all, and what
    few iterations leave open.
    """
    machines, iterations = table.shape
    center, rows, columns = float(table.mean()), table.mean(axis=1), table.mean(axis=0)
    systematic = sampled = spent = 0.0
    if machines > 1 and not is_ranged:
        systematic = float(rows.var(ddof=1)) * (1 + 1 / machines)
        spent += systematic**2 / (machines - 1)
    if iterations > 1:
        sampled = float(columns.var(ddof=1)) / iterations
        spent += sampled**2 / (iterations - 1)
    variance = systematic + sampled
    half = student(variance**2 / spent) * variance**0.5 if spent else 0.0
    low, high = (float(rows.min()), float(rows.max())) if is_ranged else (center, center)
    return Estimate(center, low - half, high + half)


def noise_between_steps(table: Floats) -> float | None:
    """A robust standard deviation in ns of a step from iteration to iteration on one machine.

    None if there is only one iteration.
    """
    iterations = table.shape[1]
    if iterations == 1:
        return None
    rest = table - np.quantile(table, 0.5, axis=1, keepdims=True)
    return float(_NORMAL * np.quantile(np.abs(rest), 0.5) * (iterations / (iterations - 1)) ** 0.5)


class Paired:
    """Assignments over the same draws, each played once, and held against the one that ``default`` is.

    ``noise_ns`` is by how much one step of the default varies on one machine, None where nothing that varies
    was recorded.
    """

    def __init__(self, draws: Draws, default: Assignment) -> None:
        self.draws, self.default = draws, default
        self._played: dict[Buckets, Floats] = {}
        self._nominal: dict[Buckets, int] = {}
        self.default_ns = self.step_ns(default)
        noise = noise_between_steps(self.steps(default))
        self.noise_ns = None if noise is None else round(noise)

    def step_ns(self, assignment: Assignment) -> int:
        """The nominal step."""
        problem, buckets = self.draws.problem, assignment.bucket_indices
        if buckets not in self._nominal:
            self._nominal[buckets] = simulated_step_ns(problem.job, problem.hardware, assignment)
        return self._nominal[buckets]

    def steps(self, assignment: Assignment) -> Floats:
        """The step in ns under every draw: [machines, iterations]."""
        buckets = assignment.bucket_indices
        if buckets not in self._played:
            self.draws.problem.tell("playing steps as they vary")
            self._played[buckets] = self.draws.steps(buckets, self.draws.problem.rest_ns)
        return self._played[buckets]

    def gain(self, one: Assignment, than: Assignment | None = None) -> Estimate:
        """What ``one`` saves against ``than`` (None: the default), the mean over the draws, in whole ns."""
        saved = self.steps(than or self.default) - self.steps(one)
        return Estimate(*map(round, estimate_mean(saved, is_ranged=bool(self.draws.rests_on))))

    @property
    def varies(self) -> bool:
        """Whether anything varies at all."""
        return len(self.draws) > 1

    @property
    def least(self) -> float:
        """Share of the step that a gain has to be more than."""
        return NOTHING_UNMEASURED if self.draws.rests_on and self.noise_ns is None else NOTHING

    def shortfall(self, gain: Estimate, nominal_ns: float, step_ns: float) -> Shortfall | None:
        """What a gain lacks to be significant; None where it lacks nothing. All sentences rest on this.

        A gain is significant if its whole 95 % interval is above 0 and if it is more than ``least`` of the
        step. Below 1 % of the step it also has to be more than one step of DDP's default varies by, since
        predictions are themselves off by some tenths of a percent. ``nominal_ns``: what is saved in the
        nominal step; ``step_ns``: the nominal step of the other assignment.
        """
        figure = gain.told(nominal_ns)
        fraction = figure / step_ns if step_ns else 0.0
        if nominal_ns == figure == 0:
            return "no_gain"
        if self.varies and gain.low <= 0:
            return "uncertain"
        if fraction < SMALL and figure <= (self.noise_ns or 0):
            return "noise"
        return "little" if fraction < self.least else None

    def is_as_good(self, other: Assignment, best: Assignment, other_ns: int) -> bool:
        """Whether ``best`` is not significantly better than ``other``, whose nominal step is ``other_ns``."""
        return self.shortfall(self.gain(best, other), other_ns - self.step_ns(best), other_ns) is not None


def choose(paired: Paired, candidates: Iterable[Assignment], best: Assignment) -> Assignment:
    """What to recommend: ``best``, unless its gain is in doubt.

    The candidate whose gain is surest, where one is significant; else the default, where on some machine that
    explains what was measured ``best`` costs more than noise.
    """
    if not paired.is_as_good(paired.default, best, paired.default_ns):
        return best
    gains = [(paired.gain(one), one) for one in candidates]
    sure = [pair for pair in gains if paired.shortfall(pair[0], pair[0].value, paired.default_ns) is None]
    if sure:
        return max(sure, key=lambda pair: pair[0].low)[1]
    noise_ns = max(paired.noise_ns or 0, NOTHING * paired.default_ns)
    return paired.default if paired.gain(best).low < -noise_ns else best


def judge_gain(
    paired: Paired, best: Assignment, *, against: str = DEFAULT_WORDS, instead_of: Assignment | None = None
) -> Gain:
    """The gain of ``best`` over what it is held against (in words: ``against``), with its verdict.

    Where nothing lacks it is significant; but None with fewer than two recorded iterations, since nobody
    knows how much steps vary, and where the inputs are doubtful. On a link that cannot have given a measured
    step of the job no gain can be told. Where the default is recommended ``instead_of`` another assignment,
    the sentence says what that one might gain.
    """
    kept, them = ("the default", "it") if against == DEFAULT_WORDS else (against, "them")
    default_ns, draws, noise_ns = paired.default_ns, paired.draws, paired.noise_ns or 0
    gain, gain_ns = paired.gain(best), default_ns - paired.step_ns(best)
    figure, lacks = round(gain.told(gain_ns)), paired.shortfall(gain, gain_ns, default_ns)
    share = format_percent(figure / default_ns if default_ns else 0.0)
    about = f"over {'; '.join(draws.rests_on)}" if draws.rests_on else "with 95% confidence"
    significant: bool | None = False
    if instead_of is None and lacks is None:
        significant = NO_ITERATIONS not in draws.not_known or None
        sentence = f"saves {_amount(figure)} a step against {against} ({share})"
        if figure != gain_ns:
            sentence += " in the mean of steps as they vary"
        if paired.varies:
            sentence += f", {_interval(gain)} {about}"
        if figure <= noise_ns:
            sentence += f"; one step varies by more ({_amount(noise_ns)}), so it shows in the mean of many"
        if draws.not_known:
            sentence += f"; not recorded, so not known: {' and '.join(draws.not_known)}"
    elif instead_of is None and lacks == "no_gain":
        sentence = f"no contiguous assignment that was found is better than {against}; keep {them}"
    else:
        unmeasured = ", on a machine that nobody measured" if paired.least > NOTHING else ""
        why = {
            "uncertain": f"the gain is {_interval(gain)} {about}",
            "little": f"{_amount(figure)} a step is less than {paired.least:.1%} of it{unmeasured}",
        }.get(lacks or "", f"{_amount(figure)} ({share}) is less than steps vary by ({_amount(noise_ns)})")
        if instead_of is not None:
            might = _interval(paired.gain(instead_of))
            why = f"the gain of the buckets that are best by the times as given is {might} {about}"
        sentence = f"no significant difference: {why}; keep {kept}"
    sentence += over_merges(draws.problem.workload)
    refuted = doubts_about_step(draws.problem.hardware)
    if refuted:
        significant, sentence = False, f"no gain can be told: {refuted[0]}"
    elif significant and doubts_about(draws.problem.job, draws.problem.hardware):
        significant, sentence = None, f"{sentence}; what it rests on is doubtful, see the notes"
    mean, low, high = (round(end) if paired.varies else None for end in gain)
    return Gain(
        gain_ns=gain_ns,
        fraction=gain_ns / default_ns if default_ns else 0.0,
        low_ns=low,
        high_ns=high,
        mean_ns=mean,
        significant=significant,
        sentence=sentence,
        why_not=lacks,
        refuted=bool(refuted),
        noise_ns=paired.noise_ns,
        not_known=draws.not_known,
        rests_on=draws.rests_on,
    )


def _interval(gain: Estimate) -> str:
    return f"{_amount(round(gain.low))} to {_amount(round(gain.high))}"


def _amount(ns: int) -> str:
    """A time for people: ``9.87 ms``, or ``26 us`` where that is next to nothing."""
    return format_ms(ns) if abs(ns) >= 100_000 or ns == 0 else f"{format_number(ns / 1000)} us"


def over_merges(workload: Workload) -> str:
    """The end of a sentence on what is best, if only merges of whole buckets were searched; else empty."""
    if not workload.is_of_whole_buckets:
        return ""
    return f" (over merges of the {len(workload.gradients)} buckets as recorded only)"


class BandPoint(NamedTuple):
    """Of 100 drawn steps under ``cap_mb`` (MiB; None: DDP's default) 95 lie between both ends, ns."""

    cap_mb: float | None
    low_ns: int
    high_ns: int


def step_band(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float | None],
    progress: Callable[[str], None] | None = None,
) -> tuple[BandPoint, ...]:
    """How single steps vary under each cap (MiB; None is DDP's default); empty: nothing varies.

    Steps are those that ``tune`` draws, the same for every cap. ``progress`` as in ``tune``.

    Raises:
        InputError, NotModelledError: as ``tune``.
    """
    paired, points = Paired(Draws(Problem(workload, hardware, progress)), assign(workload)), []
    for cap in caps_mb:
        steps = paired.steps(assign(workload, bucket_cap_mb=cap))
        points.append(BandPoint(cap, *np.quantile(steps, (0.025, 0.975)).round().astype(int).tolist()))
    return tuple(points) if any(one.low_ns < one.high_ns for one in points) else ()
