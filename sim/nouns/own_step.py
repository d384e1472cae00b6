"""The step that a job took under its own buckets: predicted from its parts, and what makes it come out."""

from dataclasses import dataclass

from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

# What DDP itself takes on a GPU, where nobody measured it: a factor on each is fitted within its range.
UNMEASURED_COSTS = ("hook_cost_ns", "launch_cost_ns", "copy_in_bytes_per_s", "copy_out_bytes_per_s")
FACTORS = ("link", "tilt", *UNMEASURED_COSTS, "comm_slowdown", "compute_slowdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFactor:
    """One thing that the parts leave open, with the range that the recorded steps leave it (95 %).

    ``link`` multiplies every duration of the all-reduce curve, ``tilt`` those of messages 16 times larger
    against those of others; ``comm_slowdown`` and ``compute_slowdown`` are the hardware's. Costs that are not
    measured (``UNMEASURED_COSTS``) are told as how many times as much time as the hardware says.
    """

    name: str
    before: float
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """One time of the step, in ns from the start of backward (the step itself: from its own start).

    ``measured_ns`` is the median over the recorded steps, ``parts_ns`` what the parts predict, measured
    apart; ``anchored_ns`` what they predict with the factors.
    """

    what: str
    measured_ns: int
    parts_ns: int
    anchored_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStep:
    """Workload and hardware that predict the recorded step, and how far their parts were from it.

    ``rest_ns`` is what the step holds beside its parts; it is in the workload's optimizer step.
    ``recorder_ns`` is what the recorder's own passes over the buckets take of the recorded step; workload and
    hardware predict the job without them.
    """

    workload: Workload
    hardware: Hardware
    assignment: Assignment
    steps: int
    times: tuple[OwnTime, ...]
    factors: tuple[OwnFactor, ...]
    doubtful: tuple[str, ...] = ()
    rest_ns: int = 0
    recorder_ns: int = 0
