"""What the recommendation saves against DDP's default, and whether anybody would notice."""

from sim.nouns.recommendation import Gain
from sim.nouns.robust import Robust, RobustRow
from sim.tuner.draws import NO_ITERATIONS
from sim.units import format_ms

NOTHING = 0.001  # of the step: no gain worth a change, whatever is proved about it
SMALL = 0.01  # of the step: below it a gain has to show beside the noise of a step


def judge_gain(
    robust: Robust, name: str, *, step_ns: int, default_step_ns: int, default_is_allowed: bool = True
) -> Gain:
    """The gain of candidate ``name`` over DDP's default, whose nominal steps these are, with its verdict.

    It is significant where all three hold: the 95 % interval of the mean gain lies above 0; the gain is more
    than 0.1 % of the step; and a gain below 1 % of it is also more than one step of the default varies by
    (``Robust.noise_ns``), as predictions are themselves off by some tenths of a percent. It is not where one
    is known not to hold. Where fewer than two iterations were recorded, a gain that passes is neither: how
    much steps vary is not known. Where a limit bars the default, there is none to keep, and the sentence says
    what the limit costs.

    The gain that is judged and told is the nominal one, as all other figures are, unless it lies outside the
    interval of the mean gain, which then takes its place.
    """
    row = robust.row(name)
    gain_ns = default_step_ns - step_ns
    figure = gain_ns if row.gain_low_ns <= gain_ns <= row.gain_high_ns else row.gain_ns
    is_varied = robust.draws > 1
    noise_ns = robust.noise_ns or 0
    significant: bool | None = NO_ITERATIONS not in robust.not_known or None
    fraction = figure / default_step_ns if default_step_ns else 0.0
    size = f"{_amount(figure)} ({fraction:.1%})"
    if not default_is_allowed and figure <= 0:
        significant = False
        sentence = f"DDP's default breaks the limit; keeping to it costs {_amount(-figure)} a step"
    elif gain_ns == figure == 0:
        significant = False
        sentence = "no contiguous assignment that was found is better than DDP's default; keep it"
    elif default_is_allowed and is_varied and row.gain_low_ns <= 0:
        significant = False
        sentence = f"no significant difference: {_interval(row)}; keep the default"
    elif default_is_allowed and fraction < SMALL and figure <= noise_ns:
        significant = False
        sentence = (
            f"no significant difference: {size} is less than steps vary by ({_amount(noise_ns)}); "
            "keep the default"
        )
    elif default_is_allowed and fraction < NOTHING:
        significant = False
        sentence = (
            f"no significant difference: {_amount(figure)} a step is less than {NOTHING:.1%} of it; "
            "keep the default"
        )
    else:
        sentence = f"saves {_amount(figure)} a step against DDP's default ({fraction:.1%})"
        if is_varied:
            sentence += f", {_interval(row)}"
        if figure <= noise_ns:
            sentence += f"; one step varies by more ({_amount(noise_ns)}), so it shows in the mean of many"
        if not default_is_allowed:
            sentence += "; the default breaks the limit"
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
    )


def _interval(row: RobustRow) -> str:
    return f"{_amount(row.gain_low_ns)} to {_amount(row.gain_high_ns)} with 95% confidence"


def _amount(ns: int) -> str:
    """A time for people: ``9.87 ms``, or ``26 us`` where that is next to nothing."""
    return format_ms(ns) if abs(ns) >= 100_000 or ns == 0 else f"{ns / 1000:.3g} us"
