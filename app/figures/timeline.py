"""The timeline: what the compute lane, the channels and the copies back do during one step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import plotly.graph_objects as go

from app.figures.style import (
    EXPOSED,
    LEGEND_ABOVE,
    PATH,
    TIME_AXIS,
    bucket_colour,
    built,
    hatch,
    instant,
    legend_entry,
    ms,
    ms_text,
    safe,
)
from sim.nouns.collective import CollectiveTimes
from sim.nouns.timeline import BucketTimes, ComputeSpan, PathSpan, Timeline
from sim.units import MIB, format_number

MAX_SPANS = 1000  # beyond, a browser plots for longer than one waits: 4,000 take it two seconds
_TOLD_APART = 400  # spans of a lane, side by side and as long as each other
_LABELLED = 48  # beyond this many buckets their numbers no longer fit on the bars
_LEGEND_PX = 80  # of a narrow window's legend: four rows
KIND_WORDS = {
    "backward": "backward",
    "copy_in": "copy into bucket",
    "launch": "launch",
    "hook": "hook",
    "straggler": "waits for the slowest rank",
}
PATTERNS = {"copy_in": ".", "launch": "|", "hook": "x", "straggler": "-"}
_ON_LANE = ("backward", "copy_in", "hook")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A stretch of one lane that the path runs along without a gap, ns from the start of backward."""

    lane: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One bar, ns from the start of backward. ``exposed``: after the compute lane has ended."""

    lane: str
    kind: str
    bucket: int | None
    start_ns: int
    end_ns: int
    exposed: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineData:
    """All that the figure draws; ``note`` says what was merged to keep it drawable."""

    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    backward_end_ns: int
    sync_end_ns: int
    note: str = ""


def timeline_data(timeline: Timeline, max_spans: int = MAX_SPANS) -> TimelineData:
    """Bars of a timeline; a collective that outlasts backward becomes two, hidden and exposed."""
    spans = [*_compute(timeline), *_launches(timeline), *_collectives(timeline), *_copies(timeline)]
    lanes = tuple(dict.fromkeys(span.lane for span in spans))
    note = ""
    if len(spans) > max_spans:
        merged = _merge_neighbours(spans, timeline.sync_end_ns / _TOLD_APART)
        if len(merged) > max_spans:
            merged = _merge_neighbours(spans, inf)
        note = (
            f"{len(spans):,} spans are too many to draw: neighbours of one bucket are merged, "
            f"which leaves {len(merged):,}. The Perfetto export holds them all."
        )
        spans = merged
    return TimelineData(
        lanes=lanes,
        spans=tuple(spans),
        backward_end_ns=timeline.backward_end_ns,
        sync_end_ns=timeline.sync_end_ns,
        note=note,
    )


def bucket_text(timeline: Timeline, bucket: BucketTimes) -> str:
    """What a hover tells of a bucket."""
    members = timeline.assignment.bucket_indices[bucket.index]
    names = [safe(timeline.workload.gradients[index].name, 40) for index in members[:3]]
    more = f" and {len(members) - 3} more" if len(members) > 3 else ""
    duration = bucket.end_ns - bucket.start_ns
    rate = f"{format_number(bucket.num_bytes / duration)} GB/s" if duration else "free"
    rows = [
        f"<b>bucket {bucket.index}</b>: {format_number(bucket.num_bytes / MIB)} MiB",
        f"{len(members)} gradient{'s' if len(members) > 1 else ''}: {', '.join(names)}{more}",
        f"ready {ms_text(bucket.ready_ns)}",
        f"launch {ms_text(bucket.launch_ns)}",
        f"start {ms_text(bucket.start_ns)}, waited {ms_text(bucket.start_ns - bucket.ready_ns)}"
        + (f", for the slowest rank {ms_text(bucket.late_ns)}" if bucket.late_ns else ""),
        f"duration {ms_text(duration)}, effectively {rate}",
        f"end {ms_text(bucket.end_ns)}, copied back {ms_text(bucket.available_ns)}",
    ]
    return "<br>".join(rows)


def _compute(timeline: Timeline) -> Iterator[Span]:
    home = {
        index: number for number, bucket in enumerate(timeline.assignment.bucket_indices) for index in bucket
    }
    for span in timeline.compute:
        bucket = span.bucket if span.gradient is None else home.get(span.gradient)
        yield Span(
            lane="compute",
            kind=span.kind,
            bucket=bucket,
            start_ns=span.start_ns,
            end_ns=span.end_ns,
            exposed=False,
            text=_compute_text(timeline, span, bucket),
        )


def _compute_text(timeline: Timeline, span: ComputeSpan, bucket: int | None) -> str:
    rows = [f"<b>{KIND_WORDS[span.kind]}</b>" + (f", bucket {bucket}" if bucket is not None else "")]
    if span.gradient is not None:
        gradient = timeline.workload.gradients[span.gradient]
        rows.append(
            f"gradient {gradient.index}, {safe(gradient.name)}: {format_number(gradient.on_wire / MIB)} MiB"
        )
    start, duration = ms_text(span.start_ns), ms_text(span.end_ns - span.start_ns)
    rows.append(f"start {start}, duration {duration}")
    return "<br>".join(rows)


def _launches(timeline: Timeline) -> Iterator[Span]:
    """Launches beside the compute lane; where they block it they are on it already."""
    cost = timeline.hardware.launch_cost_ns
    if not cost or timeline.hardware.launch_blocks_compute:
        return
    for bucket in timeline.buckets:
        yield Span(
            lane="launch",
            kind="launch",
            bucket=bucket.index,
            start_ns=bucket.launch_ns - cost,
            end_ns=bucket.launch_ns,
            exposed=bucket.launch_ns > timeline.backward_end_ns,
            text=bucket_text(timeline, bucket),
        )


def _collectives(timeline: Timeline) -> Iterator[Span]:
    several = max((played.channel for played in timeline.collectives), default=0) > 0
    cut = timeline.backward_end_ns
    for played in sorted(timeline.collectives, key=lambda played: (played.channel, played.start_ns)):
        number = played.collective.bucket
        whole = Span(
            lane=f"communication {played.channel}" if several else "communication",
            kind=played.collective.kind,
            bucket=number,
            start_ns=played.start_ns,
            end_ns=played.end_ns,
            exposed=played.start_ns >= cut,
            text=_other_text(played) if number is None else bucket_text(timeline, timeline.buckets[number]),
        )
        if played.late_ns:
            taken = played.start_ns - played.late_ns
            yield replace(
                whole, kind="straggler", start_ns=taken, end_ns=played.start_ns, exposed=taken >= cut
            )
        if played.start_ns < cut < played.end_ns:
            yield replace(whole, end_ns=cut)
            yield replace(whole, start_ns=cut, exposed=True)
        elif played.end_ns > played.start_ns:
            yield whole


def _other_text(played: CollectiveTimes) -> str:
    """What a hover tells of a collective that carries no bucket."""
    what = played.collective
    return (
        f"<b>{what.kind}</b> of {what.purpose}: {what.elements:,} elements of {what.dtype}<br>"
        f"start {ms_text(played.start_ns)}, duration {ms_text(played.end_ns - played.start_ns)}"
    )


def _copies(timeline: Timeline) -> Iterator[Span]:
    for bucket in timeline.buckets:
        if bucket.available_ns > bucket.copy_out_start_ns:
            yield Span(
                lane="copy back",
                kind="copy_out",
                bucket=bucket.index,
                start_ns=bucket.copy_out_start_ns,
                end_ns=bucket.available_ns,
                exposed=True,
                text=bucket_text(timeline, bucket),
            )


def _merge_neighbours(spans: Sequence[Span], least_ns: float) -> list[Span]:
    """Spans of one bucket that touch on a lane and are shorter than ``least_ns`` become one.

    That is whatever their kind, but for ``straggler``, the wait for the slowest rank.
    """
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if (
            last is not None
            and (last.lane, last.bucket, last.exposed) == (span.lane, span.bucket, span.exposed)
            and last.end_ns == span.start_ns
            and max(last.end_ns - last.start_ns, span.end_ns - span.start_ns) < least_ns
            and "straggler" not in (last.kind, span.kind)
        ):
            merged[-1] = replace(
                last,
                kind="backward" if last.lane == "compute" else last.kind,
                end_ns=span.end_ns,
                text=f"<b>compute</b>, bucket {span.bucket}, merged<br>start {ms_text(last.start_ns)}, "
                f"duration {ms_text(span.end_ns - last.start_ns)}"
                if last.lane == "compute"
                else last.text,
            )
        else:
            merged.append(span)
    return merged


def pattern(span: Span) -> str:
    """The pattern of a bar, by plotly's name: exposed hatched, else by kind; empty: none."""
    return "/" if span.exposed and span.kind != "straggler" else PATTERNS.get(span.kind, "")


def are_few(data: TimelineData) -> bool:
    """Whether there are so few buckets that their numbers stand on the bars."""
    return len({span.bucket for span in data.spans}) <= _LABELLED


def bars(spans: Sequence[Span], *, numbered: bool) -> dict[str, Any]:
    """What bars of ``spans`` look like, whichever figure has them; ``numbered``: collectives tell theirs."""
    return {
        "orientation": "h",
        "base": [ms(span.start_ns) for span in spans],
        "x": [ms(span.end_ns - span.start_ns) for span in spans],
        "marker": {
            "color": [bucket_colour(span.bucket) for span in spans],
            "pattern": hatch([pattern(span) for span in spans]),
            "line": {"width": 0.5 if len(spans) <= 300 else 0, "color": "rgba(255,255,255,0.6)"},
        },
        "text": [_number(span) if numbered else "" for span in spans],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": False,
    }


def _number(span: Span) -> str:
    is_of_bucket = span.bucket is not None and span.lane.startswith("communication")
    return f"<b>{span.bucket}</b>" if is_of_bucket else ""


def draw_timeline(data: TimelineData, path: Sequence[Mark] = (), meta: object = None) -> go.Figure:
    """One bar trace a lane; hatched is exposed, dotted a copy into a bucket; ``path`` runs above the bars.

    ``meta`` is carried along for scripts in the browser, which see it once the figure is drawn.
    """
    numbered = are_few(data)
    kinds = {span.kind for span in data.spans}
    traces = [
        _lane_trace(lane, [span for span in data.spans if span.lane == lane], numbered) for lane in data.lanes
    ]
    if path:
        traces.append(_path(path))
    if any(span.exposed for span in data.spans):
        traces.append(legend_entry("exposed", "/"))
    traces += [legend_entry(KIND_WORDS[kind], shape) for kind, shape in PATTERNS.items() if kind in kinds]
    end, sync = ms(data.backward_end_ns), ms(data.sync_end_ns)
    shapes = [instant(end, "backward ends", dash="solid")]
    if data.sync_end_ns > data.backward_end_ns:
        shapes.append(
            {
                "type": "rect",
                "xref": "x",
                "x0": end,
                "x1": sync,
                "yref": "y domain",
                "y0": 0,
                "y1": 1,
                "fillcolor": EXPOSED,
                "line": {"width": 0},
                "layer": "below",
            }
        )
        shapes.append(instant(sync, "all gradients available", dash="dot"))
    return built(
        traces,
        100 + 62 * len(data.lanes),
        xaxis={"title": {"text": TIME_AXIS}, "range": [0, sync * 1.01]},
        yaxis={"categoryorder": "array", "categoryarray": list(data.lanes[::-1]), "showgrid": False},
        shapes=shapes,
        barmode="overlay",
        bargap=0.25,
        showlegend=True,
        legend=LEGEND_ABOVE | {"maxheight": _LEGEND_PX},
        meta=meta,
    )


def _lane_trace(lane: str, spans: Sequence[Span], numbered: bool) -> dict[str, Any]:
    return {
        "type": "bar",
        "name": lane,
        "y": [lane] * len(spans),
        "customdata": [span.text for span in spans],
        **bars(spans, numbered=numbered),
    }


def _path(path: Sequence[Mark]) -> dict[str, Any]:
    """A thin band in the gap above the bars of each lane."""
    return {
        "type": "bar",
        "name": "critical path",
        "orientation": "h",
        "y": [mark.lane for mark in path],
        "base": [ms(mark.start_ns) for mark in path],
        "x": [ms(mark.end_ns - mark.start_ns) for mark in path],
        "width": 0.08,
        "offset": 0.4,
        "marker": {"color": PATH, "line": {"width": 0}},
        "customdata": [
            f"<b>critical path</b>: {mark.lane}<br>{ms_text(mark.start_ns)} to {ms_text(mark.end_ns)}"
            for mark in path
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
        "showlegend": True,
    }


def path_marks(timeline: Timeline, path: Sequence[PathSpan]) -> tuple[Mark, ...]:
    """The path by the lanes of ``timeline_data``, neighbours joined.

    What has no lane there (what a callback computes between collectives) is left out.
    """
    marks: list[Mark] = []
    several = any(played.channel > 0 for played in timeline.collectives)
    for span in path:
        lane = _lane_of(timeline, span, several)
        if lane is None or span.end_ns == span.start_ns:
            continue
        last = marks[-1] if marks else None
        if last is not None and last.lane == lane and last.end_ns == span.start_ns:
            marks[-1] = Mark(lane=lane, start_ns=last.start_ns, end_ns=span.end_ns)
        else:
            marks.append(Mark(lane=lane, start_ns=span.start_ns, end_ns=span.end_ns))
    return tuple(marks)


def _lane_of(timeline: Timeline, span: PathSpan, several: bool) -> str | None:
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
