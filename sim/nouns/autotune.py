"""What became of a job that tuned its own buckets."""

from dataclasses import dataclass
from typing import Literal

from sim.nouns.ab import AbTest
from sim.nouns.assignment import Assignment
from sim.nouns.checks import at_least

Outcome = Literal["kept", "reverted", "refused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotuned:
    """How ``sim.autotune`` ended.

    ``kept``: the job trains with the buckets of ``assignment``. ``reverted``: with its own, as no gain was
    shown or none was to be expected. ``refused``: with its own, as it could not be tried. ``ab`` is the
    trial, where there was one; its interval holds 95 % of the time though it was looked at several times.
    ``predicted_gain_ns`` is what the simulator said of ``assignment``. ``steps`` and ``seconds`` count from
    the first call of ``step``.
    """

    outcome: Outcome
    why: str
    steps: int
    seconds: float
    assignment: Assignment | None = None
    predicted_gain_ns: int | None = None
    ab: AbTest | None = None

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 0)

    def __str__(self) -> str:
        return f"{self.outcome}: {self.why} ({self.steps} steps, {self.seconds:.1f} s)"
