"""What ``sim.record`` wrote of a real training run: per rank, its steps, backwards and buckets."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from sim.errors import InputError
from sim.nouns.checks import Checked, Count, Positive, check, no_duplicates
from sim.nouns.devices import device_type
from sim.nouns.workload import Buffer

Level = Literal["full", "light"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedParameter(Checked):
    """A parameter that requires grad, in DDP's order; ``num_bytes`` is the dense size."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    num_bytes: Count
    device: str
    sparse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedEnd:
    """The last line of a rank that closed its recording; ``failed``: because its training raised."""

    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingHeader:
    """The first line of a rank's file: what was recorded, on what, with which settings of DDP.

    ``backend`` is the one that reduces tensors on ``device``. ``clock`` is ``"host"`` or ``"cuda events"``;
    ``comm_hook`` the communication hook that ran, None where it was DDP's own all-reduce. ``environment``
    has the variables that change how a GPU runs, where they are set.
    """

    KIND: ClassVar[str] = "recording"
    rank: Count
    world_size: Positive
    level: Level
    every: Positive
    torch: str
    backend: str
    device: str
    clock: str
    module: str
    comm_hook: str | None
    ddp: dict[str, Any]
    parameters: tuple[RecordedParameter, ...]
    environment: dict[str, str] = field(default_factory=dict)
    buffers: tuple[Buffer, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if self.rank >= self.world_size:
            raise InputError(f"rank: {self.rank} is not legal; world_size is {self.world_size}")
        if not self.parameters:
            raise InputError("parameters: an empty list is not legal; give at least one parameter")

    @property
    def device_type(self) -> str:
        """The type of the device, which all ranks of a job have in common."""
        return device_type(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLayout(Checked):
    """DDP's buckets from ``step`` on, in launch order, as indices of parameters.

    ``fired``: the order in which gradients came in that step, which times that are equal do not tell.
    """

    step: Count
    bucket_indices: tuple[tuple[int, ...], ...]
    fired: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBucket(Checked):
    """One bucket of one backward, in ns from the end of forward (A3.1); ``index`` in launch order."""

    index: Count
    num_bytes: Count
    ready_ns: int
    launch_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBackward(Checked):
    """One forward and backward of a step.

    ``started_ns`` (DDP's forward called), ``forward_start_ns`` (the module's, after buffer broadcasts and the
    rebuild) and ``forward_end_ns`` count from the start of the step; all else from the end of forward, where
    DDP's clock starts (A3.1): the loss is part of backward. ``backward_ns`` is the end of the compute lane,
    ``sync_end_ns`` that of DDP's finalize. In a backward that is not ``synchronised`` (``no_sync``) nothing
    was copied or sent (A3.12). ``forwards`` counts the forwards with gradients since the last backward: one
    of more than 1 may belong to several. ``uses``: by parameter index, how often a hook fired, if not once.
    """

    synchronised: bool
    forwards: Positive
    started_ns: Count
    forward_start_ns: Count
    forward_end_ns: Count
    backward_ns: Count
    sync_end_ns: Count
    ready_ns: tuple[Count | None, ...]
    buckets: tuple[RecordedBucket, ...] = ()
    uses: dict[int, int] = field(default_factory=dict)

    @property
    def forward_ns(self) -> int:
        """The module's forward alone."""
        return self.forward_end_ns - self.forward_start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """One optimizer step; numbers count from 1 at the start of the recording.

    ``started_at_ns`` is the host's wall clock (Unix epoch). ``step_ns`` runs from the start of the
    first forward to the end of the optimizer; ``optimizer_ns`` from the end of the last backward,
    so that clipping is in it, and is None where no optimizer step was seen. ``compiled``: torch.compile
    made some of its backward. ``kept``: gradients were still there as its first backward began, zeroed or
    added to (``set_to_none=False``); of a recording's first step that is not known.
    """

    step: Positive
    started_at_ns: int
    step_ns: Count
    optimizer_ns: Count | None
    backwards: tuple[RecordedBackward, ...]
    compiled: bool = False
    kept: bool = False

    def __post_init__(self) -> None:
        check(self)
        if not self.backwards:
            raise InputError("backwards: an empty list is not legal; a step has at least one")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRank:
    """One rank's file. ``torn``: its last line was cut off (a killed rank, a full disk) and left out."""

    header: RecordingHeader
    layouts: tuple[RecordedLayout, ...]
    steps: tuple[RecordedStep, ...]
    torn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A directory of rank files, sorted by rank."""

    name: str
    ranks: tuple[RecordedRank, ...]

    def __post_init__(self) -> None:
        if not self.ranks:
            raise InputError("ranks: an empty list is not legal; give at least one rank")
        no_duplicates("ranks", [rank.header.rank for rank in self.ranks])

    @property
    def world_size(self) -> int:
        """Number of ranks that trained."""
        return self.ranks[0].header.world_size

    @property
    def backend(self) -> str:
        """The backend that reduced gradients."""
        return self.ranks[0].header.backend

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that trained and left no file here."""
        here = {rank.header.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.world_size) if rank not in here)
