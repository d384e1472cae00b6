"""What happens: the spans of one simulated step, from the start of backward."""

from dataclasses import dataclass
from typing import Literal

from sim.nouns.assignment import Assignment
from sim.nouns.collective import CollectiveTimes
from sim.nouns.early_launch import EarlyLaunch
from sim.nouns.hardware import Hardware
from sim.nouns.memory import Holding
from sim.nouns.workload import Workload

SpanKind = Literal["backward", "copy_in", "launch", "hook"]
Iteration = Literal["steady"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSpan:
    """Work on the compute lane, in ns. ``gradient`` is None for backward's tail; ``bucket`` for launches.

    ``hook`` is what a communication hook or another system's own hook computes before it launches.
    """

    kind: SpanKind
    start_ns: int
    end_ns: int
    gradient: int | None = None
    bucket: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTimes:
    """One bucket's life, in ns from the start of backward; ``num_bytes`` is what travels.

    ready (all gradients copied in) -> launch -> start (has a channel, and all ranks are there) -> end of its
    collective -> ``copy_out_start_ns`` -> ``available_ns`` (copied back). ``service_ns`` is the collective
    alone. For ``late_ns`` it (or they, where several carry the bucket) had a channel and waited for the
    slowest rank.
    """

    index: int
    num_bytes: int
    ready_ns: int
    launch_ns: int
    start_ns: int
    end_ns: int
    available_ns: int
    service_ns: int
    copy_out_start_ns: int
    channel: int
    late_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One simulated step with all that went into it; times in ns.

    The spans are those of its last micro-batch, from the start of its backward; ``accumulation_ns`` is what
    the micro-batches before it take, ``earlier_exposed_ns`` what synchronising adds to the backward of each
    of them that reduces. ``before_forward`` are the parts of ``pre_forward_ns``, by what they are for.
    ``optimizer_ns`` is the optimizer's step as this system runs it,
    ``post_sync_ns`` what else follows (ZeRO's all-gather). ``slowest`` is the workload as the slowest other
    rank ran it; None: no rank was later than this one. ``holdings`` are what buckets hold in memory.
    """

    workload: Workload
    hardware: Hardware
    assignment: Assignment
    iteration: Iteration
    engine: str
    pre_forward_ns: int
    compute: tuple[ComputeSpan, ...]
    buckets: tuple[BucketTimes, ...]
    collectives: tuple[CollectiveTimes, ...]
    backward_end_ns: int
    sync_end_ns: int
    optimizer_ns: int
    post_sync_ns: int = 0
    accumulation_ns: int = 0
    earlier_exposed_ns: tuple[int, ...] = ()
    before_forward: tuple[tuple[str, int], ...] = ()
    early_launches: tuple[EarlyLaunch, ...] = ()
    notes: tuple[str, ...] = ()
    slowest: Workload | None = None
    holdings: tuple[Holding, ...] = ()

    @property
    def last_exposed_ns(self) -> int:
        """What synchronising adds to a plain backward, in the last micro-batch."""
        return self.sync_end_ns - self.workload.backward_ns

    @property
    def exposed_ns(self) -> int:
        """What synchronising adds to plain backwards, in all micro-batches that reduce."""
        return sum(self.earlier_exposed_ns) + self.last_exposed_ns
