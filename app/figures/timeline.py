"""Timelines: what the compute lane, the channels and the copies back do during a step, of one or several."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from app.figures import style
from sim.nouns.timeline import BucketTimes, Span, Timeline
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


@dataclass(frozen=True, slots=True)
class Mark:
    """A stretch of one lane that the path runs along without a gap, ns from the start of backward."""

    lane: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Bar(Mark):
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
    spans: tuple[Bar, ...]
    backward_end_ns: int
    sync_end_ns: int
    note: str = ""
    letter: str = ""
    name: str = ""

    @property
    def are_few(self) -> bool:
        """Whether there are so few buckets that their numbers stand on the bars."""
        return len({span.bucket for span in self.spans}) <= _LABELLED

    def of_lane(self, lane: str) -> list[Bar]:
        """The spans of one lane."""
        return [span for span in self.spans if span.lane == lane]


def timeline_data(timeline: Timeline, max_spans: int = MAX_SPANS) -> TimelineData:
    """Bars of a timeline; a collective that outlasts backward becomes two, hidden and exposed.

    Of more than ``max_spans``, short neighbours of one bucket are merged; of still more, any neighbours.
    """
    spans, note = list(_spans(timeline)), ""
    lanes, count = tuple(dict.fromkeys(span.lane for span in spans)), len(spans)
    if count > max_spans:
        spans = _merged(spans, timeline.sync_end_ns / _TOLD_APART)
        if len(spans) > max_spans:  # two neighbours that stay are together longer than this
            spans = _merged(spans, timeline.sync_end_ns * 2 * len(lanes) / max_spans, is_of_any=True)
        note = (
            f"{count:,} spans are too many to draw: neighbours are merged, which leaves {len(spans):,}. "
            "The Perfetto export holds them all."
        )
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
    names = ", ".join(style.safe(timeline.workload.gradients[index].name, 40) for index in members[:3])
    more = f" and {len(members) - 3} more" if len(members) > 3 else ""
    duration, waited = bucket.end_ns - bucket.start_ns, style.ms_text(bucket.start_ns - bucket.ready_ns)
    rate = f"{format_number(bucket.num_bytes / duration)} GB/s" if duration else "free"
    late = f", for the slowest rank {style.ms_text(bucket.late_ns)}" if bucket.late_ns else ""
    rows = (
        f"<b>bucket {bucket.index}</b>: {format_number(bucket.num_bytes / MIB)} MiB",
        f"{len(members)} gradient{'s' if len(members) > 1 else ''}: {names}{more}",
        f"ready {style.ms_text(bucket.ready_ns)}",
        f"launch {style.ms_text(bucket.launch_ns)}",
        f"start {style.ms_text(bucket.start_ns)}, waited {waited}{late}",
        f"duration {style.ms_text(duration)}, effectively {rate}",
        f"end {style.ms_text(bucket.end_ns)}, copied back {style.ms_text(bucket.available_ns)}",
    )
    return "<br>".join(rows)


def _spans(timeline: Timeline) -> Iterator[Bar]:
    """All bars, lane by lane; a collective that outlasts backward is two, hidden and exposed."""
    home = {
        index: number for number, bucket in enumerate(timeline.assignment.bucket_indices) for index in bucket
    }
    texts = [bucket_text(timeline, bucket) for bucket in timeline.buckets]
    cut, cost = timeline.backward_end_ns, timeline.hardware.launch_cost_ns
    for span in timeline.compute:
        bucket = span.bucket if span.gradient is None else home.get(span.gradient)
        rows = [f"<b>{KIND_WORDS[span.kind]}</b>" + (f", bucket {bucket}" if bucket is not None else "")]
        if span.gradient is not None:
            gradient = timeline.workload.gradients[span.gradient]
            size = format_number(gradient.on_wire / MIB)
            rows.append(f"gradient {gradient.index}, {style.safe(gradient.name)}: {size} MiB")
        rows.append(_when(span.start_ns, span.end_ns))
        yield Bar("compute", span.start_ns, span.end_ns, span.kind, bucket, False, "<br>".join(rows))
    if cost and not timeline.hardware.launch_blocks_compute:  # where they block it they are on it already
        for one in timeline.buckets:
            end = one.launch_ns
            yield Bar("launch", end - cost, end, "launch", one.index, end > cut, texts[one.index])
    lanes = _channel_lanes(timeline)
    for played in sorted(timeline.collectives, key=lambda played: (played.channel, played.start_ns)):
        what, start, end = played.collective, played.start_ns, played.end_ns
        text = f"<b>{what.kind}</b> of {what.purpose}: {what.elements:,} elements of {what.dtype}"
        text = f"{text}<br>{_when(start, end)}" if what.bucket is None else texts[what.bucket]
        whole = Bar(lanes[played.channel], start, end, what.kind, what.bucket, start >= cut, text)
        if played.late_ns:
            taken = start - played.late_ns
            yield replace(whole, kind="straggler", start_ns=taken, end_ns=start, exposed=taken >= cut)
        if start < cut < end:
            yield from (replace(whole, end_ns=cut), replace(whole, start_ns=cut, exposed=True))
        elif end > start:
            yield whole
    for one in timeline.buckets:
        begin, end = one.copy_out_start_ns, one.available_ns
        if end > begin:
            yield Bar("copy back", begin, end, "copy_out", one.index, True, texts[one.index])


def _when(start_ns: int, end_ns: int) -> str:
    return f"start {style.ms_text(start_ns)}, duration {style.ms_text(end_ns - start_ns)}"


def _channel_lanes(timeline: Timeline) -> dict[int, str]:
    """The lane of each channel, which has a number where there are several."""
    channels = {played.channel for played in timeline.collectives}
    several = max(channels, default=0) > 0
    return {one: f"communication {one}" if several else "communication" for one in channels}


def _merged(spans: Sequence[Bar], most_ns: float, *, is_of_any: bool = False) -> list[Bar]:
    """Neighbours on a lane that take at most ``most_ns`` from end to end become one.

    Those of one bucket where they touch; ``is_of_any``: those of any, grey where of several. A wait for the
    slowest rank stays by itself.
    """
    merged: list[Bar] = []
    for span in spans:
        last = merged[-1] if merged else span
        if (
            not merged
            or (last.lane, last.exposed) != (span.lane, span.exposed)
            or span.end_ns - last.start_ns > most_ns
            or "straggler" in (last.kind, span.kind)
            or not (is_of_any or (last.bucket, last.end_ns) == (span.bucket, span.start_ns))
        ):
            merged.append(span)
            continue
        bucket = last.bucket if last.bucket == span.bucket else None
        named = "" if bucket is None else f", bucket {bucket}"
        told = f"<b>{last.lane}</b>{named}, merged<br>{_when(last.start_ns, span.end_ns)}"
        text = last.text if last.text == span.text else told
        merged[-1] = replace(last, end_ns=span.end_ns, kind="merged", bucket=bucket, text=text)
    return merged


def _bars(
    name: str, data: TimelineData, spans: Sequence[Bar], rows: Iterable[Any], **more: Any
) -> style.Trace:
    """Bars of some of the spans; of few buckets, each collective bears the number of its own."""
    edge = {"width": 0.5 if len(spans) <= 300 else 0, "color": "rgba(255,255,255,0.6)"}
    told = [span.bucket if span.lane.startswith("communication") else None for span in spans]
    return style.bars(
        name,
        rows,
        [style.ms(span.length_ns) for span in spans],
        [style.bucket_colour(span.bucket) for span in spans],
        [f"{data.letter}: {span.text}" if data.letter else span.text for span in spans],
        pattern=[span.pattern for span in spans],
        marker={"line": edge},
        base=[style.ms(span.start_ns) for span in spans],
        text=[f"<b>{bucket}</b>" if data.are_few and bucket is not None else "" for bucket in told],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        showlegend=False,
        **more,
    )


def _legend(spans: Sequence[Bar]) -> list[style.Trace]:
    """What the patterns of these spans mean, in one order, run after run."""
    kinds = {span.kind for span in spans}
    exposed = [style.pattern_entry("exposed", "/")] if any(span.exposed for span in spans) else []
    return exposed + [
        style.pattern_entry(KIND_WORDS[kind], shape) for kind, shape in PATTERNS.items() if kind in kinds
    ]


def draw_timeline(data: TimelineData, path: Sequence[Mark] = (), meta: object = None) -> go.Figure:
    """One bar trace a lane; hatched is exposed, dotted a copy into a bucket; ``path`` runs above the bars.

    ``meta`` is carried along for scripts in the browser, which see it once the figure is drawn.
    """
    traces = []
    for lane in data.lanes:
        spans = data.of_lane(lane)
        traces.append(_bars(lane, data, spans, [lane] * len(spans)))
    if path:  # a thin band in the gap above the bars of each lane
        times = [
            f"{mark.lane}<br>{style.ms_text(mark.start_ns)} to {style.ms_text(mark.end_ns)}" for mark in path
        ]
        lengths = [style.ms(mark.end_ns - mark.start_ns) for mark in path]
        texts = [f"<b>critical path</b>: {time}" for time in times]
        look = {"base": [style.ms(mark.start_ns) for mark in path], "marker": {"line": {"width": 0}}}
        rows = [mark.lane for mark in path]
        traces.append(
            style.bars("critical path", rows, lengths, style.PATH, texts, **look, width=0.08, offset=0.4)
        )
    end, sync = style.ms(data.backward_end_ns), style.ms(data.sync_end_ns)
    shapes = [style.instant(end, "backward ends")]
    if sync > end:
        shapes += [
            style.stretch(end, sync, style.EXPOSED),
            style.instant(sync, "all gradients available", dash="dot"),
        ]
    return style.figure(
        [*traces, *_legend(data.spans)],
        100 + 62 * len(data.lanes),
        xaxis={"title": style.TIME_AXIS, "range": [0, sync * 1.01]},
        yaxis=style.rows_axis(data.lanes),
        shapes=shapes,
        barmode="overlay",
        bargap=0.25,
        legend=style.LEGEND_ABOVE | {"maxheight": _LEGEND_PX},
        meta=meta,
    )


def path_marks(timeline: Timeline, path: Sequence[Span]) -> tuple[Mark, ...]:
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
        marks.append(Mark(lane, start, span.end_ns))
    return tuple(marks)


def _lane_of(timeline: Timeline, span: Span, channels: dict[int, str]) -> str | None:
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

    Each candidate may have its share of ``max_spans``.
    """
    share = max_spans // max(1, len(candidates))
    rows = tuple(
        replace(timeline_data(timeline, share), letter=letter, name=name)
        for letter, name, timeline in candidates
    )
    merged = ", ".join(row.letter for row in rows if row.note)
    note = f"Too many spans to draw: neighbours of {merged} are merged. Tune shows one at a time."
    return rows, note if merged else ""


def draw_stacked(rows: Sequence[TimelineData]) -> go.Figure:
    """A group of lanes a candidate, the first on top; lines where its backward and synchronisation end."""
    traces: list[style.Trace] = []
    ticks: dict[float, str] = {}
    titles: list[dict[str, Any]] = []
    top = 0.0
    for row in rows:
        places = {lane: top - index for index, lane in enumerate(row.lanes)}
        low = top - len(row.lanes) + 1
        ticks |= {at: f"{row.letter} {lane.replace('communication', 'comm.')}" for lane, at in places.items()}
        traces.append(_bars(row.letter, row, row.spans, [places[span.lane] for span in row.spans], width=0.8))
        for ns, name, dash in (
            (row.backward_end_ns, "backward ends", "solid"),
            (row.sync_end_ns, "all gradients available", "dot"),
        ):
            ends, group = [low - 0.5, top + 0.5], {"legendgroup": name, "showlegend": row is rows[0]}
            hover = f"{name}: %{{x:.3f}} ms"
            traces.append(style.line(name, [style.ms(ns)] * 2, ends, style.LINE, hover, dash=dash, **group))
        left = {"x": 0, "xref": "paper", "xanchor": "left", "y": top + 0.5, "yanchor": "bottom"}
        titles.append({**left, "text": f"<b>{row.letter}</b> {style.safe(row.name)}", "showarrow": False})
        top = low - 1 - _GAP
    last = max((row.sync_end_ns for row in rows), default=0)
    across = {"tickvals": list(ticks), "ticktext": list(ticks.values()), "showgrid": False}
    return style.figure(
        [*traces, *_legend([span for row in rows for span in row.spans])],
        100 + _LANE_PX * len(ticks) + _GAP_PX * len(rows),
        xaxis={"title": style.TIME_AXIS, "range": [0, style.ms(last) * 1.01]},
        yaxis=across | {"range": [top + _GAP + 0.4, 0.5 + _GAP]},
        annotations=titles,
        barmode="overlay",
    )
