"""The critical path on the timeline: where on its lanes the spans lie that decide the end of the step."""

from collections.abc import Sequence
from dataclasses import dataclass

from sim.nouns.path import PathSpan
from sim.nouns.timeline import Timeline

_ON_LANE = ("backward", "copy_in", "hook")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A stretch of one lane that the path runs along without a gap, ns from the start of backward."""

    lane: str
    start_ns: int
    end_ns: int


def path_marks(timeline: Timeline, path: Sequence[PathSpan]) -> tuple[Mark, ...]:
    """The path by the lanes of ``timeline_data``, neighbours joined.

    What has no lane there (what a callback computes between collectives) is left out.
    """
    marks: list[Mark] = []
    several = any(played.channel > 0 for played in timeline.collectives)
    for span in path:
        lane = _lane(timeline, span, several)
        if lane is None or span.end_ns == span.start_ns:
            continue
        last = marks[-1] if marks else None
        if last is not None and last.lane == lane and last.end_ns == span.start_ns:
            marks[-1] = Mark(lane=lane, start_ns=last.start_ns, end_ns=span.end_ns)
        else:
            marks.append(Mark(lane=lane, start_ns=span.start_ns, end_ns=span.end_ns))
    return tuple(marks)


def _lane(timeline: Timeline, span: PathSpan, several: bool) -> str | None:
    if span.kind in _ON_LANE:
        return "compute"
    if span.kind == "copy_out":
        return "copy back"
    if span.kind == "launch":
        if span.collective is None:
            return "compute"
        return None if timeline.hardware.launch_blocks_compute else "launch"
    if span.kind == "settle" or span.collective is None:
        return None
    return f"communication {timeline.collectives[span.collective].channel}" if several else "communication"
