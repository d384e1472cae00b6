"""Where a step's time goes, one stacked bar an assignment."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.style import ALARM, BUCKETS, NEUTRAL, built, frame, hatch, ms, safe
from sim.nouns.report import Report

PARTS = {
    "rest": ("forward, optimizer and the like", "#B4B8BF", ""),
    "compute": ("backward alone", BUCKETS[0], ""),
    "overlapped": ("backward and communication", BUCKETS[4], ""),
    "exposed": ("communication alone", ALARM, "/"),
    "idle": ("neither: copies back, waiting", NEUTRAL, ""),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Parts of one step in ns; they add up to it."""

    name: str
    rest: int
    compute: int
    overlapped: int
    exposed: int
    idle: int


def breakdown(name: str, report: Report) -> Breakdown:
    """The parts of a reported step: unions of intervals, so two channels at work count once."""
    overlapped = alone = reached = 0
    cut = report.backward_end_ns
    for bucket in sorted(report.buckets, key=lambda bucket: (bucket.start_ns, bucket.end_ns)):
        start = max(bucket.start_ns, reached)
        if bucket.end_ns > start:
            overlapped += max(0, min(bucket.end_ns, cut) - start)
            alone += max(0, bucket.end_ns - max(start, cut))
            reached = bucket.end_ns
    return Breakdown(
        name=name,
        rest=report.step_ns - report.sync_end_ns,
        compute=cut - overlapped,
        overlapped=overlapped,
        exposed=alone,
        idle=report.sync_end_ns - cut - alone,
    )


def breakdown_data(reports: Mapping[str, Report]) -> tuple[Breakdown, ...]:
    """One row an assignment, in the order given."""
    return tuple(breakdown(name, report) for name, report in reports.items())


def draw_breakdown(rows: tuple[Breakdown, ...]) -> go.Figure:
    """Stacked bars, the first row on top."""
    names = [safe(row.name) for row in rows]
    return built(
        [
            {
                "type": "bar",
                "name": words,
                "orientation": "h",
                "y": names,
                "x": [ms(getattr(row, part)) for row in rows],
                "marker": {"color": colour, "pattern": hatch(pattern)},
                "hovertemplate": f"%{{y}}<br>{words}: %{{x:.2f}} ms<extra></extra>",
            }
            for part, (words, colour, pattern) in PARTS.items()
        ],
        110 + 44 * len(rows),
        xaxis={"title": {"text": "one step, ms"}},
        yaxis={"autorange": "reversed", "showgrid": False},
        barmode="stack",
        bargap=0.3,
        showlegend=True,
        legend={**frame(0)["legend"], "traceorder": "normal"},
    )
