"""What it means: the figures of one simulated or measured step."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sim.nouns.collective import EarlyLaunch
from sim.nouns.timeline import BucketRow, Iteration


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one step, as CONTRACT defines them; all durations in ns.

    ``step = accumulation + pre_forward + forward + loss + sync_end + optimizer + post_sync + rest``, where
    ``accumulation`` are the micro-batches before the last, ``optimizer`` the step as this system runs it;
    ``exposed_comm = sync_end - backward`` (a plain backward), and as much of each earlier micro-batch that
    reduces: ``exposed_by_micro_batch_ns`` has them one by one, the last one last. ``outside_ns`` is what is
    added outside of backwards, before forward and after the optimizer, in all micro-batches; ``parts_ns`` are
    the parts of the step by name, which add up to it. ``overlap_ratio`` is, of the last micro-batch, the time
    in which the compute lane and at least one collective are busy over the time in which at least one
    collective is busy (interval unions, HolisticTraceAnalysis's definition). ``verdict_ns`` is the time that
    the verdict is about: what its cause takes in the whole step; ``verdict_saves_ns`` what the change that it
    proposes saves of it at most. ``buffer_bytes`` is the most memory that buckets hold on one rank beside the
    gradients; None: not told.
    """

    KIND: ClassVar[str] = "report"
    policy: str
    iteration: Iteration
    pre_forward_ns: int
    backward_end_ns: int
    sync_end_ns: int
    post_sync_ns: int
    step_ns: int
    exposed_comm_ns: int
    overlap_ratio: float
    verdict: str
    verdict_code: str
    buckets: tuple[BucketRow, ...]
    bucket_indices: tuple[tuple[int, ...], ...] = ()
    verdict_ns: int = 0
    verdict_saves_ns: int | None = None
    accumulation_ns: int = 0
    optimizer_ns: int = 0
    rest_ns: int = 0
    exposed_by_micro_batch_ns: tuple[int, ...] = ()
    outside_ns: int = 0
    parts_ns: dict[str, int] = field(default_factory=dict)
    engine: str = "simpy"
    early_launches: tuple[EarlyLaunch, ...] = ()
    notes: tuple[str, ...] = ()
    buffer_bytes: int | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)
