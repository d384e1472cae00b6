"""One link of the chain that decides how long a step's synchronisation takes."""

from dataclasses import dataclass
from typing import Literal

from sim.nouns.collective import CollectiveKind
from sim.nouns.timeline import SpanKind

PathKind = SpanKind | CollectiveKind | Literal["copy_out", "settle", "straggler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSpan:
    """One link of the critical path, ns from the start of backward.

    ``settle`` is what a callback computes between collectives, or between one and the use of its result;
    ``straggler`` what a collective that has its channel waits for the last rank to come to it.
    ``collective`` is the place among the timeline's: those of a chain may be alike but for it.
    """

    kind: PathKind
    start_ns: int
    end_ns: int
    bucket: int | None = None
    gradient: int | None = None
    collective: int | None = None
