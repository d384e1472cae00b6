"""What one rank's trace shows of its training steps. Times in ns by that rank's own clock."""

from dataclasses import dataclass, field
from typing import Any, Literal

from sim.importer.kineto.interference import Interference
from sim.metrics.intervals import Interval

Role = Literal["gradients", "earlier", "map", "other", "before"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenCollective:
    """One collective: its kernel's span, and when the CPU launched it.

    ``timed``: ``start_ns`` and ``end_ns`` are those of the collective itself, of its kernel or of gloo's
    thread; otherwise (world size 1) they are those of the call.

    ``role`` says what it carried. ``gradients``: sent by the hooks of the step's last backward, or at its
    end, after the last gradient. ``earlier``: the same of the micro-batches before. ``map``: the map of
    ``find_unused_parameters``. ``before``: launched before the trace began; its end holds up what follows,
    and it belongs to no step. ``other``: all else, such as activations, embeddings and buffers.

    ``ready_ns``: of a collective of gradients, when the compute lane came to its launch.
    """

    kind: str
    role: Role
    launched_ns: int
    ready_ns: int | None
    start_ns: int
    end_ns: int
    num_elements: int | None
    dtype: str | None
    group: str | None
    timed: bool
    group_size: int | None = None

    @property
    def duration_ns(self) -> int:
        """How long the kernel was resident: its transfer, and its wait for the last rank."""
        return self.end_ns - self.start_ns

    @property
    def is_ddps(self) -> bool:
        """Whether DDP's reducer sent it in this step."""
        return self.role not in ("other", "before")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenGradient:
    """One gradient in hook order: when the compute lane had it, and its copy in a bucket.

    ``hooked_at_ns`` is when AccumulateGrad ended on the CPU; ``shape`` and ``dtype`` are None where the trace
    has none; ``reduced`` says whether DDP copied it, None where that cannot be seen.
    """

    ready_ns: int
    hooked_at_ns: int
    shape: tuple[int, ...] | None
    dtype: str | None
    reduced: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenUnit:
    """A unit of FSDP2: ``modules`` that were wrapped together, none of the root's.

    ``shapes`` are its gradients', None where the trace does not tell them; ``ready_ns`` has the time of each,
    or one for all, as work since backward began. ``dtype``: what gradients are computed in. ``reduction``:
    what was sent of them, padding included; None where nothing was, on one rank.
    """

    modules: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] | None
    ready_ns: tuple[int, ...]
    dtype: str | None
    reduction: SeenCollective | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSharding:
    """What FSDP2 did in a step: ``units`` as they were reduced, ``forward`` their modules as forward came to
    them, ``gathers`` with all their elements, and the settings that show. Times in ns are of work, without
    what FSDP2 does and waits for; copies are its own.
    """

    units: tuple[SeenUnit, ...]
    forward: tuple[tuple[str, ...], ...]
    gathers: tuple[SeenCollective, ...]
    forward_ns: int
    backward_ns: int
    copy_in_ns: int
    copy_out_ns: int
    settings: dict[str, bool | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenStep:
    """One training step on the device.

    ``backward_end_ns`` is the end of the compute lane's backward, DDP's copies into buckets in it;
    ``sync_end_ns`` the end of the last copy out of a bucket, or of the last collective. ``copy_out_ns`` is
    what copies out add to it: not their waits for collectives, but those for the CPU that launches them.
    ``synchronised_batches`` of the ``micro_batches`` were reduced; ``other_backwards`` of them are of
    another model than the last, or lie before an optimizer's step. ``busy_ns`` is how long the lane worked in
    the last backward, ``plain_busy_ns`` in each before it, where only the last one was reduced.
    ``sharding``: None but under FSDP2.
    """

    number: int
    start_ns: int
    end_ns: int
    backward_start_ns: int
    backward_end_ns: int
    sync_end_ns: int
    copy_in_ns: int
    copy_out_ns: int
    micro_batches: int
    gradients: tuple[SeenGradient, ...]
    collectives: tuple[SeenCollective, ...]
    synchronised_batches: int = 0
    other_backwards: int = 0
    busy_ns: int = 0
    plain_busy_ns: tuple[int, ...] = ()
    sharding: SeenSharding | None = None

    @property
    def reductions(self) -> tuple[SeenCollective, ...]:
        """The all-reduces of the last backward's gradients, in launch order."""
        return tuple(one for one in self.collectives if one.role == "gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """One rank: its whole steps, what the device was busy with, and who it is.

    ``is_marked``: steps have the profiler's own numbers. ``is_compiled``: torch.compile made some of its
    backward. ``base_ns``: what all times count from.
    ``calls_alone``: of how many of its AccumulateGrads the trace has only the engine's call. ``doubts``:
    sentences on what may not be as it was taken. ``unseen_calls``: calls of collectives without a kernel that
    is known to communicate.
    """

    source: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str
    on_gpu: bool
    host: str | None
    steps: tuple[SeenStep, ...]
    computation: tuple[Interval, ...]
    communication: tuple[Interval, ...]
    all_reduces: tuple[Interval, ...]
    interference: Interference | None = None
    is_marked: bool = True
    is_compiled: bool = False
    unseen_calls: int = 0
    calls_alone: int = 0
    doubts: tuple[str, ...] = ()
    base_ns: int = 0
    dropped: tuple[str, ...] = ()
    header: dict[str, Any] = field(default_factory=dict)
