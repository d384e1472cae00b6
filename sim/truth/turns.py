"""Is the recommended assignment faster in the user's own training, and what is that worth?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sim.errors import InputError
from sim.metrics.intervals import difference_interval
from sim.nouns.recommendation import Gain
from sim.units import format_ms, format_number, format_percent

# By chance, all of six rounds agree once in 32 times. Fewer rounds cannot give an interval of 95 %.
MIN_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class AbTest:
    """DDP's default against a recommended assignment, each run once in every round; times in ns.

    Steps are medians over ``rounds``, of the slowest rank. ``gain_ns`` is the default's step minus the
    recommended one's: positive where the recommendation is faster; ``gain_low_ns`` and ``gain_high_ns``
    are its 95 % paired bootstrap interval. ``significant`` is False where the interval holds 0 or there were
    too few rounds to say. ``plain_step_ns`` is the step without communication: no assignment can gain more
    than what is beyond it. ``gpu_hours_saved_per_day`` is world size x 24 h x the gain's share of the step.
    ``predicted_gain_ns`` is the predicted mean, where workload and hardware were given, with its 95 %
    interval, as far as it has one.
    """

    name: str
    world_size: int
    rounds: int
    default_step_ns: int
    recommended_step_ns: int
    plain_step_ns: int
    gain_ns: int
    gain_low_ns: int
    gain_high_ns: int
    significant: bool
    gpu_hours_saved_per_day: float
    predicted_gain_ns: int | None
    predicted_low_ns: int | None
    predicted_high_ns: int | None
    sentence: str
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def prediction_met(self) -> bool | None:
        """Whether the measured and the predicted interval meet; None without a predicted one."""
        if self.predicted_low_ns is None or self.predicted_high_ns is None:
            return None
        return self.gain_low_ns <= self.predicted_high_ns and self.predicted_low_ns <= self.gain_high_ns


def judge_turns(
    default: Sequence[int],
    recommended: Sequence[int],
    plain: Sequence[int],
    *,
    name: str,
    world_size: int,
    predicted: Gain | None = None,
    environment: dict[str, Any] | None = None,
    level: float = 0.95,
    hours: str = "GPU-hours",
) -> AbTest:
    """The gain, its interval, and what it is worth, of the steps of one A/B run in ns, by round.

    ``plain`` are those without DDP. Only rounds that both assignments finished count. ``level`` is the
    confidence of the interval: a caller that looks at a growing run several times gives more than 0.95, so
    that all its looks together hold 95 % of the time. ``hours`` names the unit of ranks times hours.

    Raises:
        InputError: no round that both finished, or a step of 0 ns.
    """
    rounds = min(len(default), len(recommended))
    if not rounds or not plain:
        raise InputError(f"A/B {name!r}: no round was finished; nothing can be compared")
    default, recommended = default[:rounds], recommended[:rounds]
    step, recommended_step = round(median(default)), round(median(recommended))
    if not step or not recommended_step:
        raise InputError(f"A/B {name!r}: a median step of 0 ns cannot be compared")
    low, high = difference_interval(default, recommended, level=level)
    gain = step - recommended_step
    told = None if predicted is None or predicted.refuted else predicted
    interval = f"95 % interval {format_ms(low)} to {format_ms(high)} a step"
    share = f"{format_ms(abs(gain))} a step ({format_percent(abs(gain) / step)})"
    saved = world_size * 24 * gain / step
    sentence = f"the recommendation saves {share}, {interval}: {format_number(saved)} {hours} a day"
    if rounds < MIN_ROUNDS:
        few = f"{rounds} round(s) ({interval}); give at least {MIN_ROUNDS}"
        sentence = f"no significant difference can be told from {few}"
    elif low <= 0 <= high:
        sentence = f"no significant difference over {rounds} rounds ({interval}); keep DDP's default"
    elif gain < 0:
        sentence = f"the recommendation is slower by {share}, {interval}; keep DDP's default"
    return AbTest(
        name=name,
        world_size=world_size,
        rounds=rounds,
        default_step_ns=step,
        recommended_step_ns=recommended_step,
        plain_step_ns=round(median(plain)),
        gain_ns=gain,
        gain_low_ns=low,
        gain_high_ns=high,
        significant=rounds >= MIN_ROUNDS and not low <= 0 <= high,
        gpu_hours_saved_per_day=saved,
        # Of a prediction that is drawn the mean over draws, which its interval belongs to.
        predicted_gain_ns=None if told is None else told.gain_ns if told.mean_ns is None else told.mean_ns,
        predicted_low_ns=None if told is None else told.low_ns,
        predicted_high_ns=None if told is None else told.high_ns,
        sentence=sentence,
        environment=environment or {},
    )
