"""A job that is still running: what was read of it so far, what was predicted, and how the two differ."""

from array import array
from dataclasses import dataclass
from typing import TypeAlias

from sim.nouns.checks import one_of
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Setting
from sim.nouns.recording import RecordedEnd, RecordedLayout, Recording, RecordingHeader
from sim.nouns.workload import Workload

Column: TypeAlias = "array[int]"  # signed, 64 bits
PARTS = ("before", "forward", "backward", "sync", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Steps in their parts, a column each, times in ns.

    The parts are sums over a step's micro-batches: ``sync`` is what follows the end of backward until DDP's
    finalize has ended, ``before`` all that is neither (buffer broadcasts, gaps between micro-batches).
    ``optimizer`` is -1 where no optimizer step was seen.
    """

    step: Column
    started_at: Column
    step_ns: Column
    before: Column
    forward: Column
    backward: Column
    sync: Column
    optimizer: Column

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTable(StepColumns):
    """All steps of one rank. ``arrival`` is the end of the last backward since the step began.

    ``backwards`` counts micro-batches, ``reduced`` those of them that were synchronised.
    """

    arrival: Column
    backwards: Column
    reduced: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedRank:
    """One rank's file so far. ``written_at_s`` is when it last grew (Unix epoch, the file system's clock).

    ``unread_bytes`` are still to be read, ``torn_bytes`` of a last line that is not whole yet. ``end`` is
    there once the job has closed the recording.
    """

    header: RecordingHeader
    layouts: tuple[RecordedLayout, ...]
    steps: StepTable
    written_at_s: float
    unread_bytes: int = 0
    torn_bytes: int = 0
    end: RecordedEnd | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What was read of a recording so far; ``run`` changes when another run takes its place.

    ``first`` and ``latest`` hold whole steps: the first ones of each rank and the last ones (None before the
    first rank's header), so many that a window can have ``whole_steps`` after ``warmup_steps``. ``faults``
    are lines or files that could not be used, the first few of
    ``fault_count``; ``dropped`` says what was read and is not kept.
    """

    name: str
    run: str
    ranks: tuple[FollowedRank, ...] = ()
    first: Recording | None = None
    latest: Recording | None = None
    whole_steps: int = 0
    warmup_steps: int = 0
    faults: tuple[str, ...] = ()
    fault_count: int = 0
    dropped: tuple[str, ...] = ()

    @property
    def step_count(self) -> int:
        """Steps of the rank that is furthest."""
        return max((len(rank.steps) for rank in self.ranks), default=0)

    @property
    def unread_bytes(self) -> int:
        """What is still to be read, over all ranks."""
        return sum(rank.unread_bytes for rank in self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """One step in its parts, in ns; ``step_ns`` is their sum where it is predicted."""

    before_ns: int
    forward_ns: int
    backward_ns: int
    sync_ns: int
    optimizer_ns: int
    step_ns: int

    def part_ns(self, name: str) -> int:
        """The part of this name, one of ``PARTS``."""
        one_of("part", name, PARTS)
        value: int = getattr(self, f"{name}_ns")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """What is predicted from ``step`` on, when the job has these buckets; None where ``why_not`` says why."""

    step: int
    bucket_indices: tuple[tuple[int, ...], ...]
    parts: StepParts | None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries(StepColumns):
    """The job's steps that every rank has finished.

    Each step is told by the rank that is slowest in it: the one whose own work until the end of its backward
    takes longest. ``late_by`` is how much later than the median of the others the last rank came to the end
    of backward, ``last_rank`` which that was. ``predicted`` is the predicted step, -1 where there is none.
    """

    last_rank: Column
    late_by: Column
    predicted: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """How some steps compare with their prediction: the ones that it was not made from, or its window's.

    Errors are measured / predicted - 1, so that longer steps have larger ones; ``low`` and ``high`` hold nine
    of ten steps between them.
    """

    count: int
    measured_ns: int
    predicted_ns: int
    median_error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Steps became longer or shorter for good. Shares are of the predicted step.

    ``before`` and ``after`` are median errors on either side of ``since_step``, ``shift`` their difference;
    ``parts`` holds the shift of each of ``PARTS``. ``p_value`` is the chance that steps which do not drift
    show as much, at one look.
    """

    since_step: int
    before: float
    after: float
    shift: float
    parts: dict[str, float]
    p_value: float

    @property
    def largest_part(self) -> str:
        """The part that moved furthest in the direction of the whole."""
        sign = 1.0 if self.shift >= 0 else -1.0
        return max(self.parts, key=lambda name: sign * self.parts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How often one rank is the last to end its backward, and by how much in the median of those steps.

    ``is_chance``: ranks that are alike would come last so often, too.
    """

    rank: int
    share: float
    behind_ns: int
    is_chance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """Measured against predicted so far; ``calibrated`` is (first step, last step) of the window.

    ``window`` holds the errors of the window's own steps: what the model is off by on what it was made from.
    ``recent`` holds medians of the latest steps, ``left_out`` counts steps of other micro-batches.
    ``period_ns`` is the median time from the start of one step to that of the next, by the wall clock: data
    loading and all else between steps are in it.
    """

    series: StepSeries
    calibrated: tuple[int, int]
    unseen: Unseen | None
    drift: Drift | None
    lateness: tuple[Lateness, ...]
    recent: StepParts | None
    window: Unseen | None = None
    left_out: int = 0
    period_ns: int | None = None

    @property
    def window_error(self) -> float | None:
        """The median error of the window's own steps."""
        return None if self.window is None else self.window.median_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the first steps of a job say: its workload, and what is predicted for each of its layouts.

    ``accumulation`` is (micro-batches a step, how many of them reduce). ``hardware_is_own``: it was made of
    the collectives of these very steps. ``switches`` are DDP's, ``settings`` those of the training loop, as
    in ``Assignment``. ``notes`` say what was assumed.
    """

    first_step: int
    last_step: int
    workload: Workload
    hardware: Hardware
    hardware_is_own: bool
    accumulation: tuple[int, int]
    layouts: tuple[LayoutPrediction, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGain:
    """What the recommended buckets save against those in use, a step, in ns; predicted, not measured.

    ``recommended_ns`` is the step of what is pasted: ``snippet`` and ``assignment_json`` are one assignment,
    the job's switches among it. ``low_ns`` to ``high_ns`` is the 95 % interval of the mean
    gain of a long run, None where nothing that varies was recorded. ``gain_ns`` is the gain that is told
    (``Gain.told_ns``); ``significant`` is as in ``Gain``. ``setting`` is what to set, as ``tune`` has it,
    compared with ``against``. ``why_none``: why no gain can be told; empty where one can.
    """

    in_use_ns: int
    recommended_ns: int
    gain_ns: int
    low_ns: int | None
    high_ns: int | None
    significant: bool | None
    not_known: tuple[str, ...]
    world_size: int
    in_use_buckets: int
    recommended_buckets: int
    setting: Setting | None
    against: str
    snippet: str
    assignment_json: str
    why_none: str = ""

    def samples_per_s(self, samples: int, period_ns: int) -> tuple[float, float]:
        """Samples a second now and with the gain, at ``samples`` a step of all ranks.

        Args:
            samples: in one step of all ranks.
            period_ns: from one step to the next, as measured.
        """
        return samples * 1e9 / period_ns, samples * 1e9 / max(1, period_ns - self.gain_ns)

    def gpu_hours_a_day(self, period_ns: int) -> float:
        """Device-hours that a day of training in use would be shorter by, at a step each ``period_ns``."""
        return self.gpu_hours(86_400 * 10**9 / period_ns)

    def gpu_hours(self, steps: float) -> float:
        """Device-hours that ``steps`` of training in use would be shorter by, over all ranks."""
        return self.world_size * steps * self.gain_ns / (3_600 * 10**9)
