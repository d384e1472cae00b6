"""Timelines: what the compute lane, the channels and the copies back do during a step, of one or several."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import plotly.graph_objects as go

from app.figures.style import (
    EXPOSED,
    LEGEND_ABOVE,
    LINE,
    PATH,
    TIME_AXIS,
    Trace,
    bars,
    bucket_colour,
    figure,
    instant,
    line,
    ms,
    ms_text,
    pattern_entry,
    rows_axis,
    safe,
    stretch,
)
from sim.nouns.timeline import BucketTimes, PathSpan, Timeline
from sim.units import MIB, format_number

MAX_SPANS = 1000  # beyond, a browser plots for longer than one waits: 4,000 take it two seconds
_MOST_STACKED = 5000
_TOLD_APART = 400  # spans of a lane, side by side and as long as each other
_LABELLED = 48  # beyond this many buckets their numbers no longer fit on the bars
_LEGEND_PX = 80  # of a narrow window's legend: four rows
_GAP, _GAP_PX, _LANE_PX = 0.7, 30, 34  # between two candidates, in lanes and pixels; a lane
KIND_WORDS = {
    "backward": "backward",
    "copy_in": "copy into bucket",
    "launch": "launch",
    "hook": "hook",
    "straggler": "waits for the slowest rank",
}
PATTERNS = {"copy_in": ".", "launch": "|", "hook": "x", "straggler": "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A stretch of one lane that the path runs along without a gap, ns from the start of backward."""

    lane: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Span(Mark):
    """One bar. ``exposed``: after the compute lane has ended."""

    kind: str
    bucket: int | None
    exposed: bool
    text: str

    @property
    def length_ns(self) -> int:
        """How long it is."""
        return self.end_ns - self.start_ns

    @property
    def pattern(self) -> str:
        """The pattern of its bar, by plotly's name: exposed hatched, else by kind; empty: none."""
        return "/" if self.exposed and self.kind != "straggler" else PATTERNS.get(self.kind, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineData:
    """All that the figure draws; ``note`` says what was merged to keep it drawable.

    ``letter`` and ``name`` are those of a candidate among several.
    """

    lanes: tuple[str, ...]
    spans: tuple[Span, ...]
    backward_end_ns: int
    sync_end_ns: int
    note: str = ""
    letter: str = ""
    name: str = ""

    @property
    def are_few(self) -> bool:
        """Whether there are so few buckets that their numbers stand on the bars."""
        return len({span.bucket for span in self.spans}) <= _LABELLED

    def of_lane(self, lane: str) -> list[Span]:
        """The spans of one lane."""
        return [span for span in self.spans if span.lane == lane]


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
    late = f", for the slowest rank {ms_text(bucket.late_ns)}" if bucket.late_ns else ""
    rows = [
        f"<b>bucket {bucket.index}</b>: {format_number(bucket.num_bytes / MIB)} MiB",
        f"{len(members)} gradient{'s' if len(members) > 1 else ''}: {', '.join(names)}{more}",
        f"ready {ms_text(bucket.ready_ns)}",
        f"launch {ms_text(bucket.launch_ns)}",
        f"start {ms_text(bucket.start_ns)}, waited {ms_text(bucket.start_ns - bucket.ready_ns)}{late}",
        f"duration {ms_text(duration)}, effectively {rate}",
        f"end {ms_text(bucket.end_ns)}, copied back {ms_text(bucket.available_ns)}",
    ]
    return "<br>".join(rows)


def _span(
    lane: str, kind: str, bucket: int | None, start_ns: int, end_ns: int, text: str, *, exposed: bool = False
) -> Span:
    times = {"start_ns": start_ns, "end_ns": end_ns}
    return Span(lane=lane, kind=kind, bucket=bucket, exposed=exposed, text=text, **times)


def _compute(timeline: Timeline) -> Iterator[Span]:
    home = {
        index: number for number, bucket in enumerate(timeline.assignment.bucket_indices) for index in bucket
    }
    for span in timeline.compute:
        bucket = span.bucket if span.gradient is None else home.get(span.gradient)
        rows = [f"<b>{KIND_WORDS[span.kind]}</b>" + (f", bucket {bucket}" if bucket is not None else "")]
        if span.gradient is not None:
            gradient = timeline.workload.gradients[span.gradient]
            size = format_number(gradient.on_wire / MIB)
            rows.append(f"gradient {gradient.index}, {safe(gradient.name)}: {size} MiB")
        rows.append(f"start {ms_text(span.start_ns)}, duration {ms_text(span.end_ns - span.start_ns)}")
        yield _span("compute", span.kind, bucket, span.start_ns, span.end_ns, "<br>".join(rows))


def _launches(timeline: Timeline) -> Iterator[Span]:
    """Launches beside the compute lane; where they block it they are on it already."""
    cost = timeline.hardware.launch_cost_ns
    if not cost or timeline.hardware.launch_blocks_compute:
        return
    for bucket in timeline.buckets:
        end, text = bucket.launch_ns, bucket_text(timeline, bucket)
        exposed = end > timeline.backward_end_ns
        yield _span("launch", "launch", bucket.index, end - cost, end, text, exposed=exposed)


def _channel_lanes(timeline: Timeline) -> dict[int, str]:
    """The lane of each channel, which has a number where there are several."""
    channels = {played.channel for played in timeline.collectives}
    several = max(channels, default=0) > 0
    return {one: f"communication {one}" if several else "communication" for one in channels}


def _collectives(timeline: Timeline) -> Iterator[Span]:
    cut, lanes = timeline.backward_end_ns, _channel_lanes(timeline)
    for played in sorted(timeline.collectives, key=lambda played: (played.channel, played.start_ns)):
        what, start, end = played.collective, played.start_ns, played.end_ns
        if what.bucket is None:
            text = f"<b>{what.kind}</b> of {what.purpose}: {what.elements:,} elements of {what.dtype}<br>"
            text += f"start {ms_text(start)}, duration {ms_text(end - start)}"
        else:
            text = bucket_text(timeline, timeline.buckets[what.bucket])
        whole = _span(lanes[played.channel], what.kind, what.bucket, start, end, text, exposed=start >= cut)
        if played.late_ns:
            taken = start - played.late_ns
            yield replace(whole, kind="straggler", start_ns=taken, end_ns=start, exposed=taken >= cut)
        if start < cut < end:
            yield replace(whole, end_ns=cut)
            yield replace(whole, start_ns=cut, exposed=True)
        elif end > start:
            yield whole


def _copies(timeline: Timeline) -> Iterator[Span]:
    for bucket in timeline.buckets:
        start, end = bucket.copy_out_start_ns, bucket.available_ns
        if end > start:
            text = bucket_text(timeline, bucket)
            yield _span("copy back", "copy_out", bucket.index, start, end, text, exposed=True)


def _merge_neighbours(spans: Sequence[Span], least_ns: float) -> list[Span]:
    """Spans of one bucket that touch on a lane and are shorter than ``least_ns`` become one.

    That is whatever their kind, but for ``straggler``, the wait for the slowest rank.
    """
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if (
            last is None
            or (last.lane, last.bucket, last.exposed) != (span.lane, span.bucket, span.exposed)
            or last.end_ns != span.start_ns
            or max(last.length_ns, span.length_ns) >= least_ns
            or "straggler" in (last.kind, span.kind)
        ):
            merged.append(span)
            continue
        merged[-1] = replace(last, end_ns=span.end_ns)
        if last.lane == "compute":
            took = f"start {ms_text(last.start_ns)}, duration {ms_text(span.end_ns - last.start_ns)}"
            text = f"<b>compute</b>, bucket {span.bucket}, merged<br>{took}"
            merged[-1] = replace(merged[-1], kind="backward", text=text)
    return merged


def _bars(spans: Sequence[Span], rows: Sequence[Any], hover: Sequence[str], **more: Any) -> Trace:
    """Bars of ``spans``, in their colours and patterns, whichever figure has them."""
    edge = {"width": 0.5 if len(spans) <= 300 else 0, "color": "rgba(255,255,255,0.6)"}
    return bars(
        more.pop("name"),
        rows,
        [ms(span.length_ns) for span in spans],
        [bucket_colour(span.bucket) for span in spans],
        pattern=[span.pattern for span in spans],
        hover=hover,
        marker={"line": edge},
        base=[ms(span.start_ns) for span in spans],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        showlegend=False,
        **more,
    )


def _numbers(data: TimelineData, spans: Sequence[Span]) -> list[str]:
    """The number of its bucket on each collective, where they are few."""
    told = [span.bucket if span.lane.startswith("communication") else None for span in spans]
    return [f"<b>{bucket}</b>" if data.are_few and bucket is not None else "" for bucket in told]


def _legend(spans: Sequence[Span]) -> list[Trace]:
    """What the patterns of these spans mean, in one order, run after run."""
    kinds = {span.kind for span in spans}
    exposed = [pattern_entry("exposed", "/")] if any(span.exposed for span in spans) else []
    return exposed + [
        pattern_entry(KIND_WORDS[kind], shape) for kind, shape in PATTERNS.items() if kind in kinds
    ]


def draw_timeline(data: TimelineData, path: Sequence[Mark] = (), meta: object = None) -> go.Figure:
    """One bar trace a lane; hatched is exposed, dotted a copy into a bucket; ``path`` runs above the bars.

    ``meta`` is carried along for scripts in the browser, which see it once the figure is drawn.
    """
    traces = []
    for lane in data.lanes:
        spans = data.of_lane(lane)
        texts = [span.text for span in spans]
        traces.append(_bars(spans, [lane] * len(spans), texts, name=lane, text=_numbers(data, spans)))
    if path:  # a thin band in the gap above the bars of each lane
        times = [f"{mark.lane}<br>{ms_text(mark.start_ns)} to {ms_text(mark.end_ns)}" for mark in path]
        traces.append(
            bars(
                "critical path",
                [mark.lane for mark in path],
                [ms(mark.end_ns - mark.start_ns) for mark in path],
                PATH,
                hover=[f"<b>critical path</b>: {time}" for time in times],
                base=[ms(mark.start_ns) for mark in path],
                marker={"line": {"width": 0}},
                width=0.08,
                offset=0.4,
            )
        )
    end, sync = ms(data.backward_end_ns), ms(data.sync_end_ns)
    shapes = [instant(end, "backward ends")]
    if sync > end:
        shapes += [stretch(end, sync, EXPOSED), instant(sync, "all gradients available", dash="dot")]
    return figure(
        [*traces, *_legend(data.spans)],
        100 + 62 * len(data.lanes),
        xaxis={"title": TIME_AXIS, "range": [0, sync * 1.01]},
        yaxis=rows_axis(data.lanes),
        shapes=shapes,
        barmode="overlay",
        bargap=0.25,
        legend=LEGEND_ABOVE | {"maxheight": _LEGEND_PX},
        meta=meta,
    )


def path_marks(timeline: Timeline, path: Sequence[PathSpan]) -> tuple[Mark, ...]:
    """The path by the lanes of ``timeline_data``, neighbours joined.

    What has no lane there (what a callback computes between collectives) is left out.
    """
    marks: list[Mark] = []
    channels = _channel_lanes(timeline)
    for span in path:
        lane = _lane_of(timeline, span, channels)
        if lane is None or span.end_ns == span.start_ns:
            continue
        start = span.start_ns
        if marks and (marks[-1].lane, marks[-1].end_ns) == (lane, start):
            start = marks.pop().start_ns
        marks.append(Mark(lane=lane, start_ns=start, end_ns=span.end_ns))
    return tuple(marks)


def _lane_of(timeline: Timeline, span: PathSpan, channels: dict[int, str]) -> str | None:
    if span.kind in ("backward", "copy_in", "hook"):
        return "compute"
    if span.kind == "copy_out":
        return "copy back"
    if span.kind == "launch":
        beside = None if timeline.hardware.launch_blocks_compute else "launch"
        return "compute" if span.collective is None else beside
    if span.kind == "settle" or span.collective is None:
        return None
    return channels[timeline.collectives[span.collective].channel]


def stacked_data(
    candidates: Sequence[tuple[str, str, Timeline]], max_spans: int = _MOST_STACKED
) -> tuple[tuple[TimelineData, ...], str]:
    """Bars of ``(letter, name, timeline)``, top to bottom, and a note of what was merged.

    Each candidate may have its share of ``max_spans``: first neighbours of one bucket are merged, then what
    lies in one slot of the axis.
    """
    share = max_spans // max(1, len(candidates))
    horizon = max((timeline.sync_end_ns for _, _, timeline in candidates), default=0)
    rows, merged = [], []
    for letter, name, timeline in candidates:
        data = timeline_data(timeline, share)
        spans = data.spans
        if len(spans) > share:
            spans = tuple(_by_slot(spans, horizon, slots=share // (2 * len(data.lanes))))
        merged += [letter] if data.note else []
        rows.append(replace(data, letter=letter, name=name, spans=spans))
    note = f"Too many spans to draw: neighbours of {', '.join(merged)} are merged. Tune shows one at a time."
    return tuple(rows), note if merged else ""


def _by_slot(spans: Sequence[Span], horizon_ns: int, slots: int) -> list[Span]:
    """Neighbours on a lane that start in one slot of the axis become one bar, grey if of several buckets.

    A lane has hidden and exposed bars, so that at most two remain of each slot.
    """
    width = max(1, -(-horizon_ns // max(1, slots)))
    groups: dict[tuple[str, bool, int], list[Span]] = {}
    for span in spans:
        groups.setdefault((span.lane, span.exposed, span.start_ns // width), []).append(span)
    return [_together(members) if len(members) > 1 else members[0] for members in groups.values()]


def _together(members: Sequence[Span]) -> Span:
    start, end = min(span.start_ns for span in members), max(span.end_ns for span in members)
    busy = ms_text(sum(span.length_ns for span in members))
    buckets = {span.bucket for span in members}
    return replace(
        members[0],
        kind="merged",
        bucket=buckets.pop() if len(buckets) == 1 else None,
        start_ns=start,
        end_ns=end,
        text=f"<b>{len(members)} spans</b> from {ms_text(start)} to {ms_text(end)}, together {busy}",
    )


def draw_stacked(rows: Sequence[TimelineData]) -> go.Figure:
    """A group of lanes a candidate, the first on top; lines where its backward and synchronisation end."""
    traces: list[Trace] = []
    ticks: dict[float, str] = {}
    titles: list[dict[str, Any]] = []
    top = 0.0
    for row in rows:
        places = {lane: top - index for index, lane in enumerate(row.lanes)}
        for lane, place in places.items():
            ticks[place] = f"{row.letter} {lane.replace('communication', 'comm.')}"
        texts = [f"{row.letter}: {span.text}" for span in row.spans]
        lanes = [places[span.lane] for span in row.spans]
        numbers = _numbers(row, row.spans)
        traces.append(_bars(row.spans, lanes, texts, name=row.letter, text=numbers, width=0.8))
        low = top - len(row.lanes) + 1
        for ns, name, dash in (
            (row.backward_end_ns, "backward ends", "solid"),
            (row.sync_end_ns, "all gradients available", "dot"),
        ):
            ends, hover = [low - 0.5, top + 0.5], f"{name}: %{{x:.3f}} ms"
            group: dict[str, Any] = {
                "legendgroup": name,
                "showlegend": row is rows[0],
            }  # named once in the legend
            traces.append(line(name, [ms(ns)] * 2, ends, LINE, dash=dash, hover=hover, **group))
        left = {"x": 0, "xref": "paper", "xanchor": "left", "y": top + 0.5, "yanchor": "bottom"}
        titles.append({**left, "text": f"<b>{row.letter}</b> {safe(row.name)}", "showarrow": False})
        top = low - 1 - _GAP
    last = max((row.sync_end_ns for row in rows), default=0)
    return figure(
        [*traces, *_legend([span for row in rows for span in row.spans])],
        100 + _LANE_PX * len(ticks) + _GAP_PX * len(rows),
        xaxis={"title": TIME_AXIS, "range": [0, ms(last) * 1.01]},
        yaxis={
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
            "range": [top + _GAP + 0.4, 0.5 + _GAP],
            "showgrid": False,
        },
        annotations=titles,
        barmode="overlay",
    )
