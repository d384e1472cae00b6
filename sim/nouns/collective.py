"""What ranks say to each other: one collective of a step, and what launches it."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

CollectiveKind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast"]


def bus_factor(collective: str, ranks: int) -> float:
    """Bus over algorithm bandwidth: how often a ring of ``ranks`` sends a message over each of its wires.

    2 (n - 1) / n in an all-reduce, half of that in a reduce-scatter or an all-gather, once in a broadcast and
    all else (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002; nccl-tests' PERFORMANCE.md). One rank
    sends nothing.
    """
    share, once = (ranks - 1) / ranks, float(ranks > 1)
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}.get(collective, once)


# Where in a step a collective is launched: by the wrapper's constructor, in its forward before the module's,
# in the hook of a module that forward comes to, in a gradient's hook, in autograd's final callback, after
# ``loss.backward()``, or in the optimizer's step.
Phase = Literal[
    "construction", "before forward", "forward", "backward", "end of backward", "after backward", "step"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What travels, and what launches it: ``num_bytes`` as ``elements`` of ``dtype``, for ``purpose``.

    ``gradient`` is the one in whose hook it is launched (phase ``backward``), ``bucket`` the one that it
    carries, ``root`` the rank that a broadcast comes from.
    """

    kind: CollectiveKind
    elements: int
    dtype: str
    num_bytes: int
    phase: Phase
    purpose: str = "gradients"
    gradient: int | None = None
    bucket: int | None = None
    root: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Message):
    """One collective of a step.

    ``service_ns`` is its time alone on a channel, ``queued_ns`` that of one that waited for its channel;
    None: the same. ``after`` chains it behind another collective of the same step: it is launched once that
    one's result can be used, by a callback beside the compute lane. Its own result can be used ``settle_ns``
    after its end; ``holds_channel`` says that its channel is busy until then.
    """

    service_ns: int
    after: int | None = None
    settle_ns: int = 0
    holds_channel: bool = False
    queued_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTimes:
    """One collective that was played, in ns from the start of backward; ``usable_ns``: its result is.

    ``late_ns`` before its start it had a channel, and waited there for the last rank to come to it.
    """

    collective: Collective
    launch_ns: int
    start_ns: int
    end_ns: int
    usable_ns: int
    channel: int
    late_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LateGradient:
    """A gradient that its bucket did not wait for; it is ready ``late_ns`` after the hooked one."""

    index: int
    name: str
    late_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyLaunch:
    """A bucket whose hooked parameter is not the last to be ready (A6.2): what is sent of ``late`` is stale.

    ``is_sent`` False: the hooked parameter is never ready, so that the bucket is never sent and ranks drift
    apart (A6.4); then ``late`` is empty.
    """

    bucket: int
    hooked: int
    hooked_name: str
    late: tuple[LateGradient, ...] = ()
    is_sent: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Message):
    """A collective as ``explain`` tells it: in which micro-batch (from 1), and ``gradient`` by its name."""

    micro_batch: int = 1
    name: str | None = None


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
