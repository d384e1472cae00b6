"""What the tuner answers: an assignment, its proof, and what each knob can reach."""

from dataclasses import dataclass, field
from typing import Any

from sim.nouns.assignment import Assignment
from sim.nouns.report import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The best that one knob reaches; ``regret_ns`` is its step minus the recommended step."""

    assignment: Assignment
    report: Report
    regret_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What the recommendation saves against DDP's default, per step.

    ``low_ns`` and ``high_ns`` bound the gain over the recorded iterations (2.5 and 97.5 percentiles);
    None where the workload holds no samples. ``significant`` is False where the interval reaches 0.
    """

    gain_ns: int
    fraction: float
    low_ns: int | None
    high_ns: int | None
    significant: bool | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """The caps (MiB) whose step is within ``tolerance`` of the best cap's, and whether the default is.

    ``low_mb`` to ``high_mb`` is the unbroken stretch of such caps around the best; ``caps_mb`` are all
    of the grid's, ``stretches_mb`` its unbroken stretches of them, [first, last] each.
    """

    tolerance: float
    caps_mb: tuple[float, ...]
    stretches_mb: tuple[tuple[float, float], ...]
    low_mb: float
    high_mb: float
    holds_default: bool
    is_flat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The tuner's answer. ``lower_bound_ns`` bounds ``sync_end_ns`` over all partitions that are
    contiguous in ready order within each dtype and device; ``proved_optimal`` is over the same."""

    assignment: Assignment
    report: Report
    baseline: Report
    lower_bound_ns: int
    proved_optimal: bool
    proof: str
    families: dict[str, Family]
    gain: Gain
    plateau: Plateau
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
