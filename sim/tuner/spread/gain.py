"""What the recommendation saves against DDP's default, and whether anybody would notice."""

from dataclasses import replace
from typing import Literal

from sim.costs.doubts import doubts_about, doubts_about_step
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Gain
from sim.nouns.robust import Robust, RobustRow
from sim.nouns.workload import Workload
from sim.tuner.spread.crossed import Estimate
from sim.tuner.spread.draws import NO_ITERATIONS
from sim.units import format_ms, format_number, format_percent

NOTHING = 0.001  # of the step: no gain worth a change, whatever is proved about it
# Of the step, where neither the machine nor any step is measured: by this much predictions are off where both
# are (median of paced records).
NOTHING_UNMEASURED = 0.005
SMALL = 0.01  # of the step: below it a gain has to show beside the noise of a step

DEFAULT_WORDS = "DDP's default"

Shortfall = Literal["nothing", "uncertain", "noise", "little"]


def told_ns(gain: Estimate, nominal_ns: float) -> float:
    """The gain to tell and judge: the nominal one, or the mean over the draws where the nominal lies outside
    of that mean's interval."""
    return nominal_ns if gain.low <= nominal_ns <= gain.high else gain.value


def find_shortfall(gain: Estimate, nominal_ns: float, step_ns: float, robust: Robust) -> Shortfall | None:
    """What a gain lacks to be significant; None where it lacks nothing. All sentences rest on this judgement.

    A gain is significant if its whole 95 % interval is above 0 and if it is more than 0.1 % of the step, or
    0.5 % where it rests on what nobody measured and no step tells its noise.
    Below 1 % of the step it also has to be more than one step of DDP's default varies by
    (``Robust.noise_ns``), since predictions are themselves off by some tenths of a percent.

    Args:
        gain: what one assignment saves against another, the mean over the draws, rounded to ns.
        nominal_ns: what it saves in the nominal step.
        step_ns: the nominal step of the other assignment.
    """
    figure = told_ns(gain, nominal_ns)
    fraction = figure / step_ns if step_ns else 0.0
    if nominal_ns == figure == 0:
        return "nothing"
    if robust.draws > 1 and gain.low <= 0:
        return "uncertain"
    if fraction < SMALL and figure <= (robust.noise_ns or 0):
        return "noise"
    return "little" if fraction < _least(robust) else None


def _least(robust: Robust) -> float:
    """Share of the step that a gain has to be more than."""
    return NOTHING_UNMEASURED if robust.rests_on and robust.noise_ns is None else NOTHING


def choose(robust: Robust, name: str, default: str, *, step_ns: int, default_step_ns: int) -> str:
    """What to recommend: candidate ``name``, whose nominal step this is, unless its gain is in doubt.

    The candidate whose gain is surest, where one is significant; else the default, where on some machine that
    explains what was measured ``name`` costs more than noise.
    """
    row = robust.row(name)
    if find_shortfall(_mean_gain(row), default_step_ns - step_ns, default_step_ns, robust) is None:
        return name
    sure = [
        one
        for one in robust.rows
        if find_shortfall(_mean_gain(one), one.gain_ns, default_step_ns, robust) is None
    ]
    if sure:
        return max(sure, key=lambda one: one.gain_low_ns).name
    noise_ns = max(robust.noise_ns or 0, NOTHING * default_step_ns)
    return default if row.gain_low_ns < -noise_ns else name


def judge_gain(
    robust: Robust,
    name: str,
    *,
    step_ns: int,
    default_step_ns: int,
    against: str = DEFAULT_WORDS,
    instead_of: str | None = None,
) -> Gain:
    """The gain of candidate ``name`` over DDP's default, whose nominal steps these are, with its verdict.

    ``against`` is what is in the default's place where it is not what is compared with.

    The gain is significant where ``find_shortfall`` finds nothing that it lacks. With fewer than two recorded
    iterations ``significant`` is then None, since nobody knows how much steps vary. Where the default is
    recommended ``instead_of`` another candidate, the sentence says what that one might gain.
    """
    kept = "the default" if against == DEFAULT_WORDS else against
    row = robust.row(name)
    gain = _mean_gain(row)
    gain_ns = default_step_ns - step_ns
    figure = round(told_ns(gain, gain_ns))
    lacks = find_shortfall(gain, gain_ns, default_step_ns, robust)
    is_varied = robust.draws > 1
    noise_ns = robust.noise_ns or 0
    significant: bool | None = NO_ITERATIONS not in robust.not_known or None
    fraction = figure / default_step_ns if default_step_ns else 0.0
    size = f"{_amount(figure)} ({format_percent(fraction)})"
    if instead_of is not None:
        significant = False
        sentence = (
            f"no significant difference: the gain of the buckets that are best by the times as given is "
            f"{_interval(robust.row(instead_of), robust)}; keep {kept}"
        )
    elif lacks == "nothing":
        significant = False
        sentence = f"no contiguous assignment that was found is better than {against}; keep it"
    elif lacks == "uncertain":
        significant = False
        sentence = f"no significant difference: the gain is {_interval(row, robust)}; keep {kept}"
    elif lacks == "noise":
        significant = False
        sentence = (
            f"no significant difference: {size} is less than steps vary by ({_amount(noise_ns)}); keep {kept}"
        )
    elif lacks == "little":
        significant = False
        sentence = (
            f"no significant difference: {_amount(figure)} a step is less than {_least(robust):.1%} of it"
            f"{', on a machine that nobody measured' if _least(robust) > NOTHING else ''}; keep {kept}"
        )
    else:
        sentence = f"saves {_amount(figure)} a step against {against} ({format_percent(fraction)})"
        if figure != gain_ns:
            sentence += " in the mean of steps as they vary"
        if is_varied:
            sentence += f", {_interval(row, robust)}"
        if figure <= noise_ns:
            sentence += f"; one step varies by more ({_amount(noise_ns)}), so it shows in the mean of many"
        if robust.not_known:
            sentence += f"; not recorded, so not known: {' and '.join(robust.not_known)}"
    return Gain(
        gain_ns=gain_ns,
        fraction=gain_ns / default_step_ns if default_step_ns else 0.0,
        low_ns=row.gain_low_ns if is_varied else None,
        high_ns=row.gain_high_ns if is_varied else None,
        significant=significant,
        sentence=sentence,
        mean_ns=row.gain_ns if is_varied else None,
        noise_ns=robust.noise_ns,
        not_known=robust.not_known,
        rests_on=robust.rests_on,
    )


def _mean_gain(row: RobustRow) -> Estimate:
    return Estimate(row.gain_ns, row.gain_low_ns, row.gain_high_ns)


def _interval(row: RobustRow, robust: Robust) -> str:
    how = f"over {'; '.join(robust.rests_on)}" if robust.rests_on else "with 95% confidence"
    return f"{_amount(row.gain_low_ns)} to {_amount(row.gain_high_ns)} {how}"


def _amount(ns: int) -> str:
    """A time for people: ``9.87 ms``, or ``26 us`` where that is next to nothing."""
    return format_ms(ns) if abs(ns) >= 100_000 or ns == 0 else f"{format_number(ns / 1000)} us"


def doubted(gain: Gain, workload: Workload, hardware: Hardware) -> Gain:
    """``gain`` for what its inputs are: none on a link that cannot have given a measured step of the job; not
    for certain, where it is significant, if they are doubtful otherwise."""
    if why := doubts_about_step(hardware):
        return replace(gain, significant=False, refuted=True, sentence=f"no gain can be told: {why[0]}")
    if gain.significant is not True or not doubts_about(workload, hardware):
        return gain
    return replace(
        gain, significant=None, sentence=f"{gain.sentence}; what it rests on is doubtful, see the notes"
    )
