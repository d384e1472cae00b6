"""What ranks say to each other: one collective of a step, and what launches it."""

from dataclasses import dataclass
from typing import Literal

CollectiveKind = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast"]

# Where in a step a collective is launched: by the wrapper's constructor, in its forward before the module's,
# in the hook of a module that forward comes to, in a gradient's hook, in autograd's final callback, after
# ``loss.backward()``, or in the optimizer's step.
Phase = Literal[
    "construction",
    "before forward",
    "forward",
    "backward",
    "end of backward",
    "after backward",
    "step",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective: what travels, and what launches it.

    ``num_bytes`` travel as ``elements`` of ``dtype``, for ``purpose``; ``service_ns`` is its time alone on a
    channel.
    ``gradient`` is the one in whose hook it is launched (phase ``backward``), ``bucket`` the one that it
    carries. ``after`` chains it behind another collective of the same step: it is launched once that one's
    result can be used, by a callback beside the compute lane. Its own result can be used ``settle_ns`` after
    its end; ``holds_channel`` says that its channel is busy until then. ``root`` is the rank that a
    broadcast comes from.
    """

    kind: CollectiveKind
    elements: int
    dtype: str
    num_bytes: int
    service_ns: int
    phase: Phase
    gradient: int | None = None
    bucket: int | None = None
    after: int | None = None
    settle_ns: int = 0
    holds_channel: bool = False
    root: int | None = None
    purpose: str = "gradients"


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
