"""What a job's own step says of its machine: measured steps, collectives seen in them, and what they fix."""

from dataclasses import dataclass
from typing import Literal

from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import at_least
from sim.nouns.hardware import Hardware

Factor = Literal["mutual", "compute_slowdown", "comm_slowdown", "curve", "launch_cost_ns"]
# Where a collective lies against the end of backward.
Place = Literal["during", "across", "after"]
SLOWDOWN_FACTORS: tuple[Factor, ...] = ("mutual", "compute_slowdown", "comm_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """A step as a dashboard shows it, in ns, and the assignment that it ran with.

    ``sync_end_ns`` is from the start of backward until all gradients are available, where that was measured
    too. ``noise_ns`` is by how much the measured figure may be off; None: by what steps of one job usually
    differ from run to run.
    """

    assignment: Assignment
    step_ns: int
    sync_end_ns: int | None = None
    noise_ns: int | None = None

    def __post_init__(self) -> None:
        at_least("step_ns", self.step_ns, 1)
        at_least("sync_end_ns", self.sync_end_ns, 1)
        at_least("noise_ns", self.noise_ns, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class InStepTimes:
    """How long each bucket's collective took in the step, in launch order, in ns.

    ``after_backward_ns`` of them lie after the end of backward; None: it is not known. ``places`` says it of
    each, where a profile shows it; None: it is told by ``after_backward_ns``, as of collectives that run one
    after another.
    """

    durations_ns: tuple[int, ...]
    after_backward_ns: int | None = None
    places: tuple[Place, ...] | None = None

    def __post_init__(self) -> None:
        if not self.durations_ns:
            raise InputError("durations_ns: an empty list is not legal; give one duration a bucket")
        for duration in self.durations_ns:
            at_least("durations_ns", duration, 1)
        at_least("after_backward_ns", self.after_backward_ns, 0)
        if self.places is not None and len(self.places) != len(self.durations_ns):
            raise InputError(f"places: {len(self.places)} places for {len(self.durations_ns)} durations")


@dataclass(frozen=True, slots=True, kw_only=True)
class InStepCurve:
    """A link as it is in the step, against the same link measured beside it.

    ``ratio`` is duration in the step over duration beside it, of collectives that no computation slows
    (``alone`` of them), else of all; ``low`` and ``high`` are the least and largest of a single one, all of
    them counted. ``comm_slowdown`` is by how much longer the others took. ``least_bytes`` and
    ``most_bytes`` are the sizes that were seen: beyond them the ratio is carried over.
    """

    ratio: float
    low: float
    high: float
    comm_slowdown: float
    alone: int
    count: int
    least_bytes: int
    most_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A machine that makes the measured step true by one factor at ``value``, and how likely it is.

    ``weight``: its share among all readings of the step, by how far such factors usually are from what was
    measured apart. ``launch_cost_ns`` is what each collective costs the compute lane.
    """

    what: Factor
    value: float
    weight: float
    hardware: Hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """Hardware that makes the prediction of one measured step true, and by how much it had to change.

    ``hardware`` is the given one with ``factor`` set to ``value``. ``measured_ns`` is what was fitted: the
    step, or ``sync_end`` where that was measured; ``plain_ns`` is its prediction without the factor,
    ``predicted_ns`` with it.
    ``fits``: whether that is a fit: not beyond what the link may be, not at a bound, and not off by more than
    10 %; ``hardware`` says in ``spread.anchor`` where it is none.
    ``readings`` are all machines that make the step true, this one first: one number fixes one factor, so
    what differs between them is not known. ``hardware`` keeps them in ``spread.readings``.
    ``notes`` says what of workload and hardware is doubtful.
    """

    hardware: Hardware
    factor: Factor
    value: float
    fitted: Literal["step", "sync_end"]
    measured_ns: int
    plain_ns: int
    predicted_ns: int
    fits: bool = True
    in_step: InStepCurve | None = None
    readings: tuple[Reading, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def residual_ns(self) -> int:
        """Predicted minus measured, once anchored."""
        return self.predicted_ns - self.measured_ns
