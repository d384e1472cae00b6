"""What the machine carries: service-time curves and the second-order effects beside them."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sim.errors import InputError
from sim.nouns.checks import at_least, curve_scatter, factor, rate, scatter
from sim.nouns.collective import CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Service time of one collective of ``num_bytes`` alone on its channel, back to back, warm."""

    num_bytes: int
    duration_ns: int

    def __post_init__(self) -> None:
        at_least("num_bytes", self.num_bytes, 0)
        at_least("duration_ns", self.duration_ns, 0)


Curve = tuple[CurvePoint, ...]

MAX_CHANNELS = 65_536
GLOO_CHANNELS = 2  # worker threads per process group: two collectives at once (A3.8)
MAX_RANKS = 1_000_000  # of one job, wherever one is described, computed or imported

SLOWDOWNS = (
    "channel_slowdown",
    "compute_slowdown",
    "comm_slowdown",
    "copy_in_slowdown",
    "copy_out_slowdown",
    "comm_copy_out_slowdown",
)

CURVES: tuple[CollectiveKind, ...] = ("all_reduce", "reduce_scatter", "all_gather", "reduce", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine or cluster as a backward pass sees it.

    Copy bandwidths in bytes/s, None is free; ``accumulate_bytes_per_s`` is that at which a micro-batch's
    gradients are added to those of the ones before it (A3.12), ``low_rank_bytes_per_s`` that at which a
    product with a few vectors passes over a matrix (PowerSGD, A3.17). ``queued_gather_factor`` is what an
    all-gather that begins as another one ends takes of its time alone (A10.8). Slow-downs are factors >= 1:
    ``compute_slowdown`` of the compute lane beside a collective, ``comm_slowdown`` of a collective beside
    the compute lane, ``channel_slowdown`` beside another collective, ``copy_in_slowdown`` and
    ``copy_out_slowdown`` of copies into and out of buckets beside a collective, ``comm_copy_out_slowdown``
    of a collective beside copies out of buckets, which come in one go. ``shared_connection`` says that all
    channels send through one connection, as gloo's do, so that small messages wait behind larger ones and do
    not slow them (``sim.clock.small_messages``). ``search_unused_ns`` and
    ``mark_used_ns`` are what ``find_unused_parameters`` adds per parameter, to a forward and to each hook.
    ``spread`` keeps, for each measured quantity, what is known of its scatter: quantiles that rise, and of a
    curve's points, by size, none below 0.
    """

    name: str
    world_size: int
    all_reduce: Curve
    comm_channels: int = 1
    channel_slowdown: float = 1.0
    shared_connection: bool = False
    launch_cost_ns: int = 0
    launch_blocks_compute: bool = False
    copy_in_bytes_per_s: float | None = None
    copy_out_bytes_per_s: float | None = None
    accumulate_bytes_per_s: float | None = None
    low_rank_bytes_per_s: float | None = None
    queued_gather_factor: float = 1.0
    compute_slowdown: float = 1.0
    comm_slowdown: float = 1.0
    copy_in_slowdown: float = 1.0
    copy_out_slowdown: float = 1.0
    comm_copy_out_slowdown: float = 1.0
    search_unused_ns: int = 0
    mark_used_ns: int = 0
    reduce_scatter: Curve | None = None
    all_gather: Curve | None = None
    reduce: Curve | None = None
    broadcast: Curve | None = None
    spread: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, most in (("world_size", MAX_RANKS), ("comm_channels", MAX_CHANNELS)):
            count = getattr(self, name)
            at_least(name, count, 1)
            if count > most:
                raise InputError(f"{name}: {count} is not legal; give an integer 1 to {most}")
        for cost in ("launch_cost_ns", "search_unused_ns", "mark_used_ns"):
            at_least(cost, getattr(self, cost), 0)
        for name in SLOWDOWNS:
            factor(name, getattr(self, name), 1.0)
        rate("copy_in_bytes_per_s", self.copy_in_bytes_per_s)
        rate("copy_out_bytes_per_s", self.copy_out_bytes_per_s)
        rate("accumulate_bytes_per_s", self.accumulate_bytes_per_s)
        rate("low_rank_bytes_per_s", self.low_rank_bytes_per_s)
        if not 0 < self.queued_gather_factor <= 1:
            raise InputError(
                f"queued_gather_factor: {self.queued_gather_factor} is not legal; give a factor above 0, "
                f"at most 1"
            )
        for name, known in self.spread.items():
            if name in CURVES:
                curve_scatter(f"spread.{name}", known)
            scatter(f"spread.{name}", known)
        for name in CURVES:
            curve = self.curve(name)
            if curve is None:
                continue
            if not curve:
                raise InputError(f"{name}: an empty list is not legal; give at least one point")
            for number, (before, after) in enumerate(pairwise(curve), start=1):
                if after.num_bytes <= before.num_bytes:
                    raise InputError(
                        f"{name}.{number}.num_bytes: {after.num_bytes} is not legal; sizes must "
                        f"ascend without repeats, and the point before has {before.num_bytes}"
                    )

    def curve(self, kind: CollectiveKind) -> Curve | None:
        """The curve of collectives of ``kind``; None where it was not measured."""
        curve: Curve | None = getattr(self, kind)
        return curve
