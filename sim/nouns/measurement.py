"""What real ranks did with one candidate."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sim.errors import InputError
from sim.nouns.assignment import Assignment
from sim.nouns.checks import Checked, Count, Positive, check
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

Mode = Literal["paced", "model", "trace"]
Role = Literal["candidate", "plain", "noop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBucket(Checked):
    """One bucket in one iteration, ns from the start of backward, slowest rank; None: cannot be told."""

    index: Count
    ready_ns: int | None
    launch_ns: int | None
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredIteration(Checked):
    """One replayed step, slowest rank, in ns.

    ``backward_end_ns`` is the end of the compute lane, ``sync_end_ns`` the return of backward with
    all gradients available, both from the start of backward.
    """

    step_ns: Count
    backward_end_ns: Count
    sync_end_ns: Count
    buckets: tuple[MeasuredBucket, ...] = ()


LAST = "came_last"  # in the environment of a traced job's steps, in words: which rank, and how often


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One candidate replayed on real ranks.

    ``role`` tells a candidate from the plain backward (no DDP) and the ``noop_hook`` run (DDP without
    communication). ``iterations`` are stock DDP; ``traced`` are the same candidate with a recording
    communication hook, which alone can see buckets. ``asked`` is the assignment asked for,
    ``observed`` the one read back from the Reducer; with a compiled model they may differ (A8.10), otherwise
    the replay fails. ``mode`` is ``paced`` (backward slept through the recorded schedule), ``model``
    (the user's own model, described in ``environment``) or ``trace`` (nothing was replayed: steps of the job
    itself, recorded or traced). ``dropped_warmup`` iterations came before.
    """

    KIND: ClassVar[str] = "measurement"
    name: str
    role: Role
    mode: Mode
    backend: str
    world_size: Positive
    asked: Assignment | None
    observed: tuple[tuple[int, ...], ...] | None
    iterations: tuple[MeasuredIteration, ...]
    traced: tuple[MeasuredIteration, ...] = ()
    plain_backward_ns: Count
    plain_step_ns: Count
    dropped_warmup: Count
    complete: bool = True
    environment: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if self.role == "candidate" and (self.asked is None or self.observed is None):
            raise InputError("asked, observed: null is not legal for a candidate; give its assignment")
        if self.complete and not self.iterations:
            raise InputError("iterations: an empty list is not legal in a complete measurement")

    @property
    def is_of_traces(self) -> bool:
        """Whether a profiler traced these steps of the job, which ``sim.record`` did not see."""
        return self.mode == "trace" and "traced_ranks" in self.environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A cluster in a box, and the ``hosts`` of it that a job's ranks are on, in rank order.

    ``rates_bits`` are the links of its hosts in bit/s, ``uplink_bits`` the link that the two halves share.
    """

    rates_bits: tuple[int, ...]
    uplink_bits: int | None
    hosts: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.hosts:
            raise InputError("hosts: an empty list is not legal; give those that the ranks are on")
        for host in self.hosts:
            if not 0 <= host < len(self.rates_bits):
                raise InputError(
                    f"hosts: {host} is not legal; the box has hosts 0 to {len(self.rates_bits) - 1}"
                )

    @property
    def ranks(self) -> tuple[str, ...]:
        """Where the ranks are in the box's Cluster: the one GPU of each host."""
        return tuple(f"host{host}.gpu0" for host in self.hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What ``bucketsim validate`` leaves in a directory: candidates, plain and noop runs, inputs.

    ``box`` is where it was measured and ``calibrated_in`` where the hardware was, as far as they are boxes
    and say so; ``slow`` are the ranks whose backward was so many times as long as the workload says.
    ``own_step`` is what the job itself did when it was recorded, in another run than those measured here:
    predictions are held to it first (``sim.own_step``).
    """

    name: str
    workload: Workload
    hardware: Hardware
    measurements: tuple[Measurement, ...]
    box: Box | None = None
    calibrated_in: Box | None = None
    slow: tuple[tuple[int, float], ...] = ()
    own_step: Measurement | None = None

    @property
    def candidates(self) -> tuple[Measurement, ...]:
        """The measurements of assignments, without the plain and noop runs."""
        return tuple(m for m in self.measurements if m.role == "candidate")

    @property
    def is_carried(self) -> bool:
        """Whether it was measured in another box than its hardware, and both say theirs."""
        return None not in (self.box, self.calibrated_in) and self.box != self.calibrated_in
