"""What sets steps apart: ``bucket_cap_mb``, where their time goes, and by which mechanisms they differ."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app.figures import style
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.recommendation import Plateau
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline
from sim.tuner.gain import BandPoint
from sim.tuner.sweep import SweepRow
from sim.units import format_ms, format_number, format_percent, format_size

DEFAULT = "default"  # the column left of the axis, which a logarithm cannot hold
_CURVE: dict[str, Any] = {"xaxis": "x2", "yaxis": "y"}


def draw_sweep(
    rows: Sequence[SweepRow],
    plateau: Plateau | None = None,
    band: Sequence[BandPoint] = (),
    *,
    shown: tuple[float, int] | None = None,
    best_ns: int | None = None,
    star_mb: float | None = None,
    star: str = "recommended cap",
) -> go.Figure:
    """The curve on a logarithmic axis; left of it, in a column of its own, DDP's default.

    ``customdata`` of each point is [hover text, cap in MiB or None], so that a click tells its cap. The row
    without a cap is DDP's default. Caps of ``plateau`` are shaded, ``band`` (how far single steps range) lies
    behind; ``shown`` is the page's own cap and its step in ns, ``best_ns`` that of the recommended buckets.
    """
    curve = sorted((row for row in rows if row.bucket_cap_mb), key=lambda row: row.bucket_cap_mb or 0.0)
    beside = [row for row in rows if row.bucket_cap_mb is None]
    starred = [row for row in curve if row.bucket_cap_mb == star_mb]
    lined = {"mode": "lines+markers", "line": {"color": style.ACCENT, "width": 2}}
    kinds: tuple[tuple[list[SweepRow], str, str, dict[str, Any]], ...] = (
        (beside, "DDP's default", style.ALARM, {"symbol": "diamond", "size": 13}),
        (curve, "bucket_cap_mb", style.ACCENT, lined),
        (starred, star, style.GOOD, {"symbol": "star", "size": 16}),
    )
    traces = [
        _marks([(row.bucket_cap_mb, row.step_ns, _text(row)) for row in members], name, colour, **look)
        for members, name, colour, look in kinds
        if members
    ]
    if shown is not None:
        cap_mb, step_ns = shown
        text = f"<b>shown: {format_number(cap_mb, 6)} MiB</b><br>step {format_ms(step_ns)}"
        traces.append(_marks([(cap_mb, step_ns, text)], "shown", style.LINE, symbol="circle-open", size=18))
    shapes = []
    if plateau is not None and curve:
        first, last = curve[0].bucket_cap_mb or 0.0, curve[-1].bucket_cap_mb or 0.0
        clipped = [(max(low, first), min(high, last)) for low, high in plateau.stretches_mb]
        # A little wider than its caps, so that a stretch of one cap can be seen.
        zones = [(low / 1.03, high * 1.03) for low, high in clipped if low <= high]
        shapes += [style.stretch(low, high, "rgba(0,158,115,0.16)", xref="x2") for low, high in zones]
    default_ns = next((row.step_ns for row in beside), None)
    for step, colour, dash in ((default_ns, style.ALARM, "dash"), (best_ns, style.GOOD, "dot")):
        if step is not None:  # across both columns
            across = style.level(style.ms(step), colour, dash)
            shapes += [across, {**across, "xref": "x2 domain"}]
    return style.figure(
        [*traces, *(_band(band) if band else [])],
        300,
        xaxis={"type": "category", "domain": [0, 0.1]},
        xaxis2=style.mib_ticks() | {"domain": [0.11, 1], "anchor": "y", "title": "bucket_cap_mb, MiB (log)"},
        yaxis={"title": "step time, ms"},
        shapes=shapes,
        clickmode="event+select",
    )


def _text(row: SweepRow) -> str:
    cap = row.bucket_cap_mb
    lines = (
        f"<b>{'DDP&#39;s default' if cap is None else f'cap {format_number(cap, 6)} MiB'}</b>",
        f"step {format_ms(row.step_ns)}",
        f"exposed {format_ms(row.exposed_comm_ns)}, overlap {format_percent(row.overlap_ratio, 0)}",
        f"{row.num_buckets} buckets, the largest {format_size(row.largest_bucket_bytes)}",
    )
    return "<br>".join(lines)


def _marks(
    points: Sequence[tuple[float | None, int, str]], name: str, colour: str, **more: Any
) -> style.Trace:
    """Points of (cap in MiB, step in ns, hover text), on the curve or in the column beside it."""
    caps = [cap for cap, _, _ in points]
    return style.dots(
        name,
        [cap or DEFAULT for cap in caps],
        [style.ms(step) for _, step, _ in points],
        colour,
        {"%{customdata[0]}": [[text, cap] for cap, _, text in points]},
        marker={"line": {"width": 2, "color": colour}},
        unselected={"marker": {"opacity": 1}},
        **(_CURVE if all(caps) else {"xaxis": "x", "yaxis": "y"}),
        **more,
    )


def _band(points: Sequence[BandPoint]) -> list[style.Trace]:
    """The band, below the curve; clicks pass through to the points."""
    each = [(point.cap_mb, style.ms(point.low_ns), style.ms(point.high_ns)) for point in points]
    caps, lows, highs = zip(*sorted(one for one in each if one[0]), strict=True)
    traces = [style.area("95 of 100 steps", caps, highs, lows, style.ACCENT, **_CURVE, zorder=-1)]
    look: dict[str, Any] = {"width": 10, "opacity": 0.3, "showlegend": False, "zorder": -1}
    beside = [ends for cap, *ends in each if cap is None]
    return traces + [
        style.line("95 of 100 steps", [DEFAULT, DEFAULT], ends, style.ALARM, **look) for ends in beside
    ]


# Parts of a step: in words, their colour and pattern.
PARTS = {
    "rest": ("forward, optimizer and the like", "#B4B8BF", ""),
    "parameters": ("parameters, before forward and after the optimizer", style.BUCKETS[3], "."),
    "compute": ("backward alone", style.BUCKETS[0], ""),
    "overlapped": ("backward and communication", style.BUCKETS[4], ""),
    "exposed": ("communication alone", style.ALARM, "/"),
    "idle": ("neither: copies back, waiting", style.NEUTRAL, ""),
}


def breakdown(report: Report, timeline: Timeline | None = None) -> dict[str, int]:
    """The parts of a reported step, ns: unions of intervals, so two channels at work count once.

    Without its ``timeline`` it is taken for one of DDP: it sends buckets alone, and backward never waits.
    """
    if timeline is None:
        sent = [(bucket.start_ns, bucket.end_ns) for bucket in report.buckets]
        lane = [(0, report.backward_end_ns)]
    else:
        sent = [(played.start_ns, played.end_ns) for played in timeline.collectives]
        lane = [(span.start_ns, span.end_ns) for span in timeline.compute]
    overlapped, busy = intersection_length(lane, sent), length(union(sent))
    compute = length(union(lane)) - overlapped
    earlier = sum(report.exposed_by_micro_batch_ns[:-1])
    return {
        "rest": report.step_ns - report.sync_end_ns - report.outside_ns - earlier,
        "parameters": report.outside_ns,
        "compute": compute,
        "overlapped": overlapped,
        "exposed": busy - overlapped + earlier,
        "idle": report.sync_end_ns - busy - compute,
    }


def draw_breakdown(
    reports: Mapping[str, Report], timelines: Mapping[str, Timeline] | None = None
) -> go.Figure:
    """A stacked bar an assignment, the first on top; ``timelines`` by the same names."""
    names = [style.safe(name) for name in reports]
    rows = [breakdown(report, (timelines or {}).get(name)) for name, report in reports.items()]
    traces = [
        style.bars(
            words,
            names,
            [style.ms(row[part]) for row in rows],
            colour,
            f"%{{y}}<br>{words}: %{{x:.2f}} ms",
            pattern=pattern,
        )
        for part, (words, colour, pattern) in PARTS.items()
    ]
    axes = {"xaxis": {"title": "one step, ms"}, "yaxis": {"autorange": "reversed", "showgrid": False}}
    legend = style.LEGEND_ABOVE | {"traceorder": "normal"}
    return style.figure(traces, 110 + 44 * len(rows), **axes, barmode="stack", bargap=0.3, legend=legend)


def draw_parts(changes: Sequence[tuple[str, int]]) -> go.Figure:
    """``(part, change in ns)`` as bars that begin where the one before ended, and their total.

    Parts that change nothing are left out. Orange is longer, green shorter, grey the sum at the end.
    """
    rows, reached = [], 0
    for part, change in changes:
        if change:
            rows.append((part, reached, change))
            reached += change
    rows.append(("together", 0, reached))
    ends = [0, *(at for _, at, _ in rows), *(at + change for _, at, change in rows)]
    low, high = style.ms(min(ends)), style.ms(max(ends))
    room = 0.2 * (high - low) or 1.0  # for the figures beside short bars
    drawn = style.bars(
        None,
        [style.safe(name) for name, _, _ in rows],
        [style.ms(change) for _, _, change in rows],
        [*(style.ALARM if change > 0 else style.GOOD for _, _, change in rows[:-1]), style.NEUTRAL],
        "%{y}<br>%{text} ms",
        base=[style.ms(at) for _, at, _ in rows],
        text=[f"{style.ms(change):+,.2f}" for _, _, change in rows],
        textposition="auto",
        cliponaxis=False,
        showlegend=False,
    )
    return style.figure(
        [drawn],
        80 + 34 * len(rows),
        xaxis={"title": "change of the step, ms (left: shorter)", "range": (low - room, high + room)},
        yaxis={"autorange": "reversed", "showgrid": False},
        shapes=[style.instant(0, "", colour=style.LINE, showlegend=False)],
        bargap=0.25,
    )
