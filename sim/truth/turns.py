"""Is the recommended assignment faster in the user's own training, and what is that worth?"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from sim.errors import InputError
from sim.metrics.intervals import difference_interval
from sim.nouns.recommendation import Gain
from sim.units import NS_PER_S, format_ms, format_number, format_percent

HOURS_PER_DAY = 24
# By chance, all of six rounds agree once in 32 times. Fewer rounds cannot give an interval of 95 %.
MIN_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class AbTest:
    """DDP's default against a recommended assignment, each run once in every round; times in ns.

    Steps are medians over ``rounds``, of the slowest rank. ``gain_ns`` is the default's step minus the
    recommended one's: positive where the recommendation is faster; ``gain_low_ns`` and ``gain_high_ns``
    are its 95 % paired bootstrap interval, and the fractions are of the default's step. ``significant``
    is False where the interval holds 0 or there were too few rounds to say. ``plain_step_ns`` is the step
    without communication: no assignment can gain more than ``default_step_ns - plain_step_ns``.
    ``samples_per_step`` counts all ranks. ``gpu_hours_saved_per_day`` is world size x 24 h x the gain's
    fraction. ``predicted_gain_ns`` is the predicted mean, where workload and hardware were given, with its
    95 % interval, as far as it has one.
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
    gain_fraction: float
    gain_low_fraction: float
    gain_high_fraction: float
    significant: bool
    samples_per_step: int | None
    default_samples_per_s: float | None
    recommended_samples_per_s: float | None
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Steps of one A/B run in ns, by round: value ``k`` of both is round ``k``. ``plain`` is without DDP."""

    default: Sequence[int]
    recommended: Sequence[int]
    plain: Sequence[int]


def judge_turns(
    turns: Turns,
    *,
    name: str,
    world_size: int,
    samples_per_rank: int | None = None,
    predicted: Gain | None = None,
    environment: dict[str, Any] | None = None,
    level: float = 0.95,
    hours: str = "GPU-hours",
) -> AbTest:
    """The gain, its interval, and what it is worth.

    Only rounds that both assignments finished count. ``samples_per_rank`` is the batch of one rank.
    ``level`` is the confidence of the interval. A caller that looks at a growing run several times gives more
    than 0.95, so that all its looks together hold 95 % of the time. ``hours`` names the unit of ranks times
    hours in the sentence.

    Raises:
        InputError: no round that both finished, or a step of 0 ns.
    """
    rounds = min(len(turns.default), len(turns.recommended))
    if not rounds or not turns.plain:
        raise InputError(f"A/B {name!r}: no round was finished; nothing can be compared")
    defaults, recommended = turns.default[:rounds], turns.recommended[:rounds]
    default_step, recommended_step = round(median(defaults)), round(median(recommended))
    if not default_step or not recommended_step:
        raise InputError(f"A/B {name!r}: a median step of 0 ns cannot be compared")
    low, high = difference_interval(defaults, recommended, level=level)
    gain = default_step - recommended_step
    significant = rounds >= MIN_ROUNDS and (low > 0 or high < 0)
    if predicted is not None and predicted.refuted:
        predicted = None
    samples = None if samples_per_rank is None else samples_per_rank * world_size
    saved = world_size * HOURS_PER_DAY * gain / default_step
    return AbTest(
        name=name,
        world_size=world_size,
        rounds=rounds,
        default_step_ns=default_step,
        recommended_step_ns=recommended_step,
        plain_step_ns=round(median(turns.plain)),
        gain_ns=gain,
        gain_low_ns=low,
        gain_high_ns=high,
        gain_fraction=gain / default_step,
        gain_low_fraction=low / default_step,
        gain_high_fraction=high / default_step,
        significant=significant,
        samples_per_step=samples,
        default_samples_per_s=None if samples is None else samples * NS_PER_S / default_step,
        recommended_samples_per_s=None if samples is None else samples * NS_PER_S / recommended_step,
        gpu_hours_saved_per_day=saved,
        predicted_gain_ns=None if predicted is None else _mean_gain_ns(predicted),
        predicted_low_ns=None if predicted is None else predicted.low_ns,
        predicted_high_ns=None if predicted is None else predicted.high_ns,
        sentence=_sentence(
            gain, low, high, default_step, rounds, significant, f"{format_number(saved)} {hours}"
        ),
        environment=environment or {},
    )


def _mean_gain_ns(predicted: Gain) -> int:
    """The gain that the predicted interval belongs to: the mean over draws; without draws the nominal one."""
    return predicted.gain_ns if predicted.mean_ns is None else predicted.mean_ns


def _sentence(
    gain: int, low: int, high: int, default_step: int, rounds: int, significant: bool, saved: str
) -> str:
    interval = f"95 % interval {format_ms(low)} to {format_ms(high)} a step"
    if rounds < MIN_ROUNDS:
        return (
            f"no significant difference can be told from {rounds} round(s) ({interval}); give at least "
            f"{MIN_ROUNDS}"
        )
    if not significant:
        return f"no significant difference over {rounds} rounds ({interval}); keep DDP's default"
    share = f"{format_ms(abs(gain))} a step ({format_percent(abs(gain) / default_step)})"
    if gain < 0:
        return f"the recommendation is slower by {share}, {interval}; keep DDP's default"
    return f"the recommendation saves {share}, {interval}: {saved} a day"
