"""What happens: the spans of one simulated step, from the start of backward."""

from dataclasses import dataclass, field
from typing import Literal

from sim.nouns.assignment import Assignment
from sim.nouns.collective import Collective, CollectiveKind, CollectiveTimes, EarlyLaunch
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload

PathKind = (
    Literal["backward", "copy_in", "launch", "hook", "copy_out", "settle", "straggler"] | CollectiveKind
)
Iteration = Literal["steady"] | int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What took time in a step, ns from the start of backward.

    ``gradient`` is None for backward's tail. ``hook`` is what a communication hook or another system's own
    hook computes before it launches; ``settle`` what a callback computes between collectives, or between one
    and the use of its result; ``straggler`` what a collective that has its channel waits for the last rank to
    come to it. ``collective`` is the place among the timeline's: those of a chain may be alike but for it.
    """

    kind: PathKind
    start_ns: int
    end_ns: int
    bucket: int | None = None
    gradient: int | None = None
    collective: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRow:
    """One bucket's life as reports have it, in ns from the start of backward; ``num_bytes`` is what travels.

    ready (all gradients copied in) -> launch -> start (has a channel, and all ranks are there) -> end of its
    collective -> available (copied back). For ``late_ns`` it (or they, where several carry the bucket) had a
    channel and waited for the slowest rank.
    """

    index: int
    num_bytes: int
    ready_ns: int
    launch_ns: int
    start_ns: int
    end_ns: int
    available_ns: int
    late_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTimes(BucketRow):
    """A played bucket: ``service_ns`` is its collective alone, and copying back begins when it begins."""

    service_ns: int
    copy_out_start_ns: int
    channel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One simulated step with all that went into it; times in ns.

    The spans are those of its last micro-batch, from the start of its backward; ``earlier`` are the
    micro-batches before it, each told the same way (alike ones are one object). ``before`` and ``after`` are
    the collectives that this one's forward waits for or hides, and that follow its backward;
    ``before_forward`` are the parts of ``pre_forward_ns``, by what they are for. ``optimizer_ns`` is the
    optimizer's step as this system runs it, ``post_sync_ns`` what else follows (ZeRO's all-gather), and
    ``rest_ns`` what is nobody's, at the end.
    ``slowest`` is the workload as the slowest other rank ran it; None: no rank was later than this one.
    ``buffer_bytes`` is the most that buckets hold in memory. ``spans`` are those of all collectives, then the
    lane's in order; ``causes`` the number of the span that released each, which began at the end of that one
    (-1: the start of backward); ``released_by`` is the number of the one that synchronisation ends with, -1
    where it takes no time.
    """

    workload: Workload
    hardware: Hardware
    assignment: Assignment
    iteration: Iteration
    engine: str = field(compare=False)  # all tell the same
    pre_forward_ns: int
    buckets: tuple[BucketTimes, ...]
    collectives: tuple[CollectiveTimes, ...]
    backward_end_ns: int
    sync_end_ns: int
    optimizer_ns: int
    post_sync_ns: int = 0
    rest_ns: int = 0
    earlier: tuple["Timeline", ...] = ()
    before: tuple[Collective, ...] = ()
    after: tuple[Collective, ...] = ()
    before_forward: tuple[tuple[str, int], ...] = ()
    early_launches: tuple[EarlyLaunch, ...] = ()
    notes: tuple[str, ...] = ()
    slowest: Workload | None = None
    buffer_bytes: int = 0
    spans: tuple[Span, ...] = ()
    causes: tuple[int, ...] = ()
    released_by: int = -1

    @property
    def compute(self) -> tuple[Span, ...]:
        """What the lane does until backward is over, in order: without copies back."""
        return tuple(one for one in self.spans if one.collective is None and one.kind != "copy_out")

    @property
    def micro_batches(self) -> tuple["Timeline", ...]:
        """All of the step's, in order; the last one is this."""
        return (*self.earlier, self)

    @property
    def reducing(self) -> tuple["Timeline", ...]:
        """The micro-batches whose backward sends anything; the last one counts as one in any case."""
        return (*(batch for batch in self.earlier if batch.collectives), self)

    @property
    def own_ns(self) -> int:
        """How long this micro-batch takes, from before its forward to the end of what follows backward."""
        computed = self.workload.forward_ns + self.workload.loss_ns + self.optimizer_ns + self.rest_ns
        return self.pre_forward_ns + computed + self.sync_end_ns + self.post_sync_ns

    @property
    def step_ns(self) -> int:
        """How long the whole step takes."""
        return sum(batch.own_ns for batch in self.micro_batches)

    @property
    def accumulation_ns(self) -> int:
        """What the micro-batches before the last take."""
        return sum(batch.own_ns for batch in self.earlier)

    @property
    def own_exposed_ns(self) -> int:
        """What this micro-batch adds to a plain backward."""
        return self.sync_end_ns - self.workload.backward_ns

    @property
    def exposed_ns(self) -> int:
        """What synchronising adds to plain backwards, in all micro-batches that reduce."""
        return sum(batch.own_exposed_ns for batch in self.reducing)

    @property
    def outside_ns(self) -> int:
        """What the system adds before forward, to it and after backward, in all micro-batches."""
        return sum(batch.pre_forward_ns + batch.post_sync_ns for batch in self.micro_batches)
