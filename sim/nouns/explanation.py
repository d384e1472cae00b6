"""What happens in the first iterations: every collective in order, what it carries and what launches it."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sim.nouns.collective import CollectiveKind, Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One collective: ``elements`` of ``dtype``, launched in ``phase`` of a micro-batch (from 1).

    In phase ``backward`` the hook of ``gradient`` launches it; ``name`` is that parameter's. ``bucket`` is
    the one that it carries, ``purpose`` what it is for, ``root`` the rank that sends or receives alone.
    """

    kind: CollectiveKind
    elements: int
    dtype: str
    num_bytes: int
    phase: Phase
    purpose: str
    micro_batch: int = 1
    gradient: int | None = None
    name: str | None = None
    bucket: int | None = None
    root: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedIteration:
    """One training step: its buckets in launch order, by parameter index, and its collectives in order."""

    iteration: int
    bucket_indices: tuple[tuple[int, ...], ...]
    events: tuple[Event, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a system does with a workload: when constructed, and in each iteration."""

    KIND: ClassVar[str] = "explanation"
    policy: str
    workload: str
    world_size: int
    options: dict[str, Any]
    construction: tuple[Event, ...]
    iterations: tuple[ExplainedIteration, ...]
    provenance: dict[str, Any] = field(default_factory=dict)
