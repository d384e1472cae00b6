"""What sets steps apart: where their time goes, and by which mechanisms their lengths differ."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from app.figures import style
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline

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


def draw_parts(changes: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> go.Figure:
    """``(cause, [(part, change in ns)])`` as bars that begin where the one before ended, and their total.

    Parts that change nothing are left out; the cause is named where there are several. Orange is longer,
    green shorter, grey the sum at the end.
    """
    rows, reached = [], 0
    for cause, parts in changes:
        for part, change in parts:
            if change:
                rows.append((f"{part} ({cause})" if len(changes) > 1 else part, reached, change))
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
