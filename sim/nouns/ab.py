"""Two assignments in the user's own training, run in turns."""

from dataclasses import dataclass, field
from typing import Any


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
