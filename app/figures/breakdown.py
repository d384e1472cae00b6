"""Where a step's time goes, one stacked bar an assignment."""

from collections.abc import Mapping
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.style import ALARM, BUCKETS, NEUTRAL, built, frame, hatch, ms, safe
from sim.metrics.intervals import intersection_length, length, union
from sim.nouns.report import Report
from sim.nouns.timeline import Timeline

PARTS = {
    "rest": ("forward, optimizer and the like", "#B4B8BF", ""),
    "parameters": ("parameters, before forward and after the optimizer", BUCKETS[3], "."),
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
    parameters: int
    compute: int
    overlapped: int
    exposed: int
    idle: int


def breakdown(name: str, report: Report, timeline: Timeline | None = None) -> Breakdown:
    """The parts of a reported step: unions of intervals, so two channels at work count once.

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
    return Breakdown(
        name=name,
        rest=report.step_ns - report.sync_end_ns - report.outside_ns - earlier,
        parameters=report.outside_ns,
        compute=compute,
        overlapped=overlapped,
        exposed=busy - overlapped + earlier,
        idle=report.sync_end_ns - busy - compute,
    )


def breakdown_data(
    reports: Mapping[str, Report], timelines: Mapping[str, Timeline] | None = None
) -> tuple[Breakdown, ...]:
    """One row an assignment, in the order given; ``timelines`` by the same names."""
    return tuple(breakdown(name, report, (timelines or {}).get(name)) for name, report in reports.items())


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
