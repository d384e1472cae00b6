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
class SeenStep:
    """One training step on the device.

    ``backward_end_ns`` is the end of the compute lane's backward, DDP's copies into buckets in it;
    ``sync_end_ns`` the end of the last copy out of a bucket, or of the last collective. ``copy_out_ns`` is
    the part of it that copies out take, with waits for the CPU to launch them, without waits for collectives.
    ``synchronised_batches`` of the ``micro_batches`` were reduced; ``other_backwards`` of them are of
    another model than the last, or lie before an optimizer's step. ``busy_ns`` is how long the lane worked in
    the last backward, ``plain_busy_ns`` in each backward before it, if only the last one was reduced.
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

    @property
    def reductions(self) -> tuple[SeenCollective, ...]:
        """The all-reduces of the last backward's gradients, in launch order."""
        return tuple(one for one in self.collectives if one.role == "gradients")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """One rank: its complete steps, what its device was busy with, and which rank it is.

    ``is_marked``: steps have the profiler's own numbers. ``is_compiled``: torch.compile made some of its
    backward. ``base_ns``: the instant from which all times count. ``calls_alone``: how many AccumulateGrads
    the trace shows only as a call of the autograd engine. ``doubts``: sentences on work of a device that the
    trace may not show. ``unseen_calls``: calls of collectives without a kernel that is known to communicate.
    ``long_calls``: start, end and name of calls of the runtime that held the host.
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
    long_calls: tuple[tuple[int, int, str], ...] = ()
    dropped: tuple[str, ...] = ()
    header: dict[str, Any] = field(default_factory=dict)
