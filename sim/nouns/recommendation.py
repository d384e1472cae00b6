"""What the tuner answers: an assignment, its proof, and what each knob can reach."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sim.nouns.assignment import Assignment
from sim.nouns.report import Report
from sim.nouns.timeline import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The best that one knob reaches; ``regret_ns`` is its step minus the recommended step.

    ``complete``: every assignment of the knob was tried; ``how`` says in words what was.
    """

    assignment: Assignment
    report: Report
    regret_ns: int
    complete: bool = True
    how: str = ""


# Why a gain is not significant: there is none, its interval reaches 0, steps vary by more, it is too small.
Shortfall = Literal["no_gain", "uncertain", "noise", "little"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What the recommendation saves against DDP's default, per step.

    ``gain_ns`` and ``fraction`` are those of the nominal step. ``mean_ns`` is the mean gain over recorded
    iterations, jitter and machines that the calibration allows, ``low_ns`` to ``high_ns`` its 95 % interval
    in a long run; None where nothing that varies was recorded. ``noise_ns`` is by how much one step of the
    default varies. ``significant``: the interval is above 0, and the gain is more than 0.1 % of the step and,
    unless it is 1 % of it, more than that noise; else ``why_not`` says which of this fails. None where none
    does, but how much steps vary is not known, or the recording or the calibration is doubtful. ``refuted``:
    a measured step of the job cannot come from this link, so that no gain can be told. ``not_known`` names
    what was not recorded, ``rests_on`` what was not measured: the interval then holds all that it may be.
    """

    gain_ns: int
    fraction: float
    low_ns: int | None
    high_ns: int | None
    significant: bool | None
    sentence: str
    why_not: Shortfall | None = None
    refuted: bool = False
    mean_ns: int | None = None
    noise_ns: int | None = None
    not_known: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()

    @property
    def told_ns(self) -> int:
        """The gain to tell: the nominal one, or the mean where the nominal lies outside of its interval."""
        if self.low_ns is None or self.high_ns is None or self.mean_ns is None:
            return self.gain_ns
        return self.gain_ns if self.low_ns <= self.gain_ns <= self.high_ns else self.mean_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau:
    """The caps (MiB) that do as well as what is recommended, and whether DDP's default does.

    ``decided_by`` says how they were told: by the rule of ``Gain``, as the recommendation is not
    significantly better than they are (``"noise"``); where how much steps vary was not recorded, as their
    step is within 1 % of the best cap's (``"tolerance"``). ``stretches_mb`` are their unbroken stretches,
    [first, last] each, in true bounds of caps and not points of a grid (beyond what holds everything in one
    bucket, caps are cut off there), and ``caps_mb`` one round cap of each layout. ``holds_default``: the
    default does as well, which is so where ``Gain`` is not significant; ``is_flat``: all caps do.
    ``sentence`` says it in words.
    """

    caps_mb: tuple[float, ...]
    stretches_mb: tuple[tuple[float, float], ...]
    holds_default: bool
    is_flat: bool
    decided_by: Literal["noise", "tolerance"]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What to set: a round cap (``cap``), the ``recommended`` buckets, or nothing (``default``).

    All that says what to set says this one: commands, pages, autotune.

    ``step_ns`` is the step with it and ``saved_ns`` what it saves against what the job has. ``cap_mb`` (MiB)
    is the round cap, whose step ``cap_step_ns`` is ``behind_ns`` longer than the best buckets'; None where no
    cap is faster than what the job has. ``is_alike``: the cap is far behind, but over steps as they vary the
    two cannot be told apart.
    """

    pick: Literal["cap", "recommended", "default"]
    step_ns: int
    saved_ns: int = 0
    cap_mb: float | None = None
    cap_step_ns: int | None = None
    behind_ns: int | None = None
    is_alike: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The tuner's answer. ``lower_bound_ns`` bounds ``sync_end_ns`` over all partitions that are
    contiguous in ready order within each dtype and device; ``proved_optimal`` is over the same, to within
    one ns a gradient where copies back are rounded one by one (``lower_bound_ns`` then says how far). On a
    ``shared_connection`` both are of small messages that share the wire as others do.

    ``critical_path`` and ``baseline_path`` are the spans that decide the end of the recommended step and of
    DDP's default. ``notes`` say what the search could not know, and how to let it. ``setting`` is what to
    set. ``against`` is what ``baseline`` and the gain are of: DDP's default, or the buckets that a job had.
    """

    KIND: ClassVar[str] = "recommendation"
    assignment: Assignment
    report: Report
    baseline: Report
    lower_bound_ns: int
    proved_optimal: bool
    proof: str
    families: dict[str, Family]
    gain: Gain
    plateau: Plateau
    setting: Setting
    critical_path: tuple[Span, ...] = ()
    baseline_path: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()
    against: str = "DDP's default"
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
