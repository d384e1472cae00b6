"""What is trained: the gradients that backward makes ready, and when."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from sim.errors import InputError
from sim.nouns.checks import Checked, Count, Legal, Positive, check, no_duplicates

DTYPE_BYTES = {  # by torch's names
    **dict.fromkeys(("float64", "complex64", "int64"), 8),
    **dict.fromkeys(("float32", "int32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
    "complex128": 16,
}
Dtype = Annotated[str, Legal(words=tuple(DTYPE_BYTES))]
_WHOLE_BUCKET = re.compile(r"bucket \d+")
ReadyIncludes = Literal["copy_in", "launch", "interference"]
BandOn = Literal["ready", "length"]
ReadyTimes = tuple[Count | None, ...]  # ns by gradient index; None: it never becomes ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient(Checked):
    """One parameter's gradient.

    ``index`` is its position among ``module.parameters()`` that require grad, de-duplicated: what
    ``bucket_indices`` refers to. ``num_bytes`` is the dense size; ``wire_bytes`` what travels when
    that differs. ``ready_ns`` counts from the start of backward on the compute stream; None means
    that it never becomes ready (an unused parameter).
    """

    index: Count
    name: str
    shape: tuple[Count, ...]
    dtype: Dtype
    num_bytes: Count
    ready_ns: Count | None
    sparse: bool = False
    wire_bytes: Count | None = None
    device: str | None = None
    group: Count = 0
    uses: Positive = 1

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return self.num_bytes // DTYPE_BYTES[self.dtype]

    @property
    def on_wire(self) -> int:
        """Bytes that travel: ``wire_bytes`` where given, else ``num_bytes``."""
        return self.num_bytes if self.wire_bytes is None else self.wire_bytes

    @property
    def key(self) -> tuple[str, str | None]:
        """The key under which DDP accumulates buckets: (dtype, device) (A1.3)."""
        return (self.dtype, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer(Checked):
    """Module buffers of one dtype, broadcast before each synchronised forward (A3.16)."""

    dtype: Dtype
    num_bytes: Count


CAPS = frozenset({"bucket_cap_mb", "bucket_cap_mb_list", "first_bucket_mb"})  # of DDP's buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class AsRun:
    """How the job that a workload was recorded from ran under DistributedDataParallel.

    ``switches`` are DDP's arguments and what the training loop sets (micro-batches a step, a communication
    hook), by torch's names, where they are not at their defaults; ``bucket_indices`` the buckets that it had,
    in launch order, empty where none were recorded.
    """

    switches: dict[str, Any] = field(default_factory=dict)
    bucket_indices: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for name in self.switches.keys() & CAPS:
            raise InputError(
                f"switches.{name}: {self.switches[name]!r} is not legal; caps are no switches of a job: give "
                "them to what makes buckets of it (bucketsim simulate --set, sim.assign)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one training step computes, without copies, launches or communication.

    All times in ns; ``ready_ns`` of each gradient and ``backward_ns`` count from the start of
    backward. ``ready_includes`` names the effects of DDP that the times already contain.
    ``samples`` holds the ready times of each recorded iteration, by gradient index. ``estimated``
    says that no profile stands behind the times, ``band`` then gives (low, high) factors on them:
    on all times of the step (``band_on`` "length" or None), or, where the length of backward is known, on
    ready times inside it ("ready"). ``rest_ns``: what is at the end of the step, and nobody's.
    ``whole_buckets`` says that each gradient stands for a whole bucket as it ran, whose gradients nothing
    tells apart: buckets can be merged, never divided. ``job`` is how the job ran that it was recorded from:
    what ``sim.assign`` and all that asks it take its switches to be, unless others are given.
    """

    KIND: ClassVar[str] = "workload"
    name: str
    gradients: tuple[Gradient, ...]
    forward_ns: Count
    backward_ns: Count
    optimizer_ns: Count
    loss_ns: Count = 0
    rest_ns: Count = 0
    ready_order: tuple[int, ...] | None = None
    ready_includes: tuple[ReadyIncludes, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    samples: tuple[ReadyTimes, ...] = ()
    estimated: bool = False
    band: tuple[float, float] | None = None
    band_on: BandOn | None = None
    whole_buckets: bool | None = None
    job: AsRun | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if not self.gradients:
            raise InputError("gradients: an empty list is not legal; give at least one gradient")
        no_duplicates("gradients: index", [gradient.index for gradient in self.gradients])
        ordered = tuple(sorted(self.gradients, key=lambda gradient: gradient.index))
        count, last = len(ordered), ordered[-1].index
        if last != count - 1:
            raise InputError(
                f"gradients: index {last} is not legal; {count} gradients have the indices 0 to {count - 1}"
            )
        object.__setattr__(self, "gradients", ordered)
        for one in ordered:
            if one.ready_ns is not None and one.ready_ns > self.backward_ns:
                raise InputError(
                    f"gradients.{one.index}.ready_ns: {one.ready_ns} is not legal; it must not exceed "
                    f"backward_ns, {self.backward_ns}"
                )
        if self.ready_order is not None:
            self._check_order(self.ready_order)
        indices = [] if self.job is None else [one for row in self.job.bucket_indices for one in row]
        if indices and sorted(indices) != list(range(count)):
            raise InputError(
                f"job.bucket_indices: {len(indices)} indices are not legal; give each of the gradients 0 to "
                f"{count - 1} once"
            )
        no_duplicates("ready_includes", self.ready_includes)
        low, high = self.band or (1, 1)
        if not 0 <= low <= high < math.inf:
            raise InputError(f"band: {[low, high]} is not legal; give [low, high], 0 <= low <= high")
        for number, sample in enumerate(self.samples):
            if len(sample) != count:
                raise InputError(f"samples.{number}: {len(sample)} ready times for {count} gradients")

    def _check_order(self, order: tuple[int, ...]) -> None:
        no_duplicates("ready_order", order)
        ready = {one.index: one.ready_ns for one in self.gradients if one.ready_ns is not None}
        if set(order) != ready.keys():
            raise InputError(
                f"ready_order: wrong or missing indices {sorted(set(order) ^ ready.keys())[:5]}; it must "
                f"list each of the {len(ready)} gradients that become ready, once"
            )
        for before, index in pairwise(order):
            if ready[index] < ready[before]:
                raise InputError(
                    f"ready_order: gradient {index} is ready at {ready[index]} ns, before the one listed "
                    f"ahead of it ({ready[before]} ns); ready_ns must not fall along ready_order"
                )

    @property
    def switches(self) -> dict[str, Any]:
        """DDP's switches in the job that it was recorded from; none where nobody said."""
        return {} if self.job is None else self.job.switches

    def with_switches(self, given: Mapping[str, Any]) -> "Workload":
        """The same workload in a job that has the switches ``given`` beside its own, or in place of them."""
        if not given:
            return self
        job = AsRun() if self.job is None else self.job
        return replace(self, job=replace(job, switches={**job.switches, **given}))

    def order(self) -> tuple[int, ...]:
        """Indices in the order in which gradients become ready; unused parameters are left out."""
        if self.ready_order is not None:
            return self.ready_order
        times = [-1 if gradient.ready_ns is None else gradient.ready_ns for gradient in self.gradients]
        ready = [index for index in reversed(range(len(times))) if times[index] >= 0]
        return tuple(sorted(ready, key=times.__getitem__))  # of those ready at once, the last index first

    def retimed(self, moved: Callable[[ReadyTimes], ReadyTimes], **changes: Any) -> "Workload":
        """With its ready times, and those of each recorded iteration, as ``moved`` makes them.

        Other fields by ``changes``: ``ready_order`` too, where the order is another then.
        """
        ready = moved(tuple(gradient.ready_ns for gradient in self.gradients))
        gradients = tuple(
            replace(gradient, ready_ns=time) for gradient, time in zip(self.gradients, ready, strict=True)
        )
        return replace(self, gradients=gradients, samples=tuple(map(moved, self.samples)), **changes)

    @property
    def is_of_whole_buckets(self) -> bool:
        """Whether each gradient is a whole bucket; files that lack ``whole_buckets`` tell it by names."""
        if self.whole_buckets is not None:
            return self.whole_buckets
        return all(_WHOLE_BUCKET.fullmatch(gradient.name) for gradient in self.gradients)

    def label(self, gradient: Gradient) -> str:
        """What messages call one of its gradients."""
        return f"workload {self.name!r}: gradient {gradient.index} ({gradient.name})"

    @property
    def total_bytes(self) -> int:
        """Dense bytes of all gradients."""
        return sum(gradient.num_bytes for gradient in self.gradients)
