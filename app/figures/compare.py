"""Timelines of several candidates on one axis of time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import plotly.graph_objects as go

from app.figures.style import LINE, TIME_AXIS, explain, framed, ms, ms_text, safe
from app.figures.timeline import (
    KIND_WORDS,
    PATTERNS,
    Span,
    TimelineData,
    are_few,
    bars,
    timeline_data,
)
from sim.nouns.timeline import Timeline

_MAX_SPANS = 5000
_GAP = 0.7  # between two candidates, in lanes
_LANE_PX, _GAP_PX = 34, 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(TimelineData):
    """One candidate's bars."""

    letter: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacked:
    """All that the figure draws; ``note`` says what was merged to keep it drawable."""

    rows: tuple[Row, ...]
    note: str = ""


def stacked_data(candidates: Sequence[tuple[str, str, Timeline]], max_spans: int = _MAX_SPANS) -> Stacked:
    """Bars of ``(letter, name, timeline)``, top to bottom; together no more than ``max_spans``.

    Each candidate may have its share of them: first neighbours of one bucket are merged, then what lies in
    one slot of the axis.
    """
    share = max_spans // max(1, len(candidates))
    horizon = max((timeline.sync_end_ns for _, _, timeline in candidates), default=0)
    rows, merged = [], []
    for letter, name, timeline in candidates:
        data = timeline_data(timeline, share)
        spans: Sequence[Span] = data.spans
        if len(spans) > share:
            spans = _by_slot(spans, horizon, slots=share // (2 * len(data.lanes)))
        if data.note:
            merged.append(letter)
        rows.append(
            Row(
                letter=letter,
                name=name,
                lanes=data.lanes,
                spans=tuple(spans),
                backward_end_ns=data.backward_end_ns,
                sync_end_ns=data.sync_end_ns,
            )
        )
    note = ""
    if merged:
        note = (
            f"Too many spans to draw: neighbours of {', '.join(merged)} are merged. Tune shows one at a time."
        )
    return Stacked(rows=tuple(rows), note=note)


def _by_slot(spans: Sequence[Span], horizon_ns: int, slots: int) -> list[Span]:
    """Neighbours on a lane that start in one slot of the axis become one bar, grey if of several buckets.

    A lane has hidden and exposed bars, so that at most two remain of each slot.
    """
    width = max(1, -(-horizon_ns // max(1, slots)))
    groups: dict[tuple[str, bool, int], list[Span]] = {}
    for span in spans:
        groups.setdefault((span.lane, span.exposed, span.start_ns // width), []).append(span)
    return [_together(members) for members in groups.values()]


def _together(members: Sequence[Span]) -> Span:
    if len(members) == 1:
        return members[0]
    start, end = min(span.start_ns for span in members), max(span.end_ns for span in members)
    busy = sum(span.end_ns - span.start_ns for span in members)
    buckets = {span.bucket for span in members}
    return replace(
        members[0],
        kind="merged",
        bucket=buckets.pop() if len(buckets) == 1 else None,
        start_ns=start,
        end_ns=end,
        text=f"<b>{len(members)} spans</b> from {ms_text(start)} to {ms_text(end)}, together {ms_text(busy)}",
    )


def draw_stacked(data: Stacked) -> go.Figure:
    """A group of lanes a candidate, the first on top; lines where its backward and synchronisation end."""
    figure = go.Figure()
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for number, row in enumerate(data.rows):
        places = {lane: top - index for index, lane in enumerate(row.lanes)}
        ticks += [
            (place, f"{row.letter} {lane.replace('communication', 'comm.')}")
            for lane, place in places.items()
        ]
        figure.add_bar(
            name=row.letter,
            y=[places[span.lane] for span in row.spans],
            width=0.8,
            customdata=[f"{row.letter}: {span.text}" for span in row.spans],
            **bars(row.spans, numbered=are_few(row)),
        )
        low = top - len(row.lanes) + 1
        for at, name, dash in (
            (row.backward_end_ns, "backward ends", "solid"),
            (row.sync_end_ns, "all gradients available", "dot"),
        ):
            _mark(figure, ms(at), low - 0.5, top + 0.5, name, dash, in_legend=number == 0)
        figure.add_annotation(
            x=0,
            xref="paper",
            xanchor="left",
            y=top + 0.5,
            yanchor="bottom",
            text=f"<b>{row.letter}</b> {safe(row.name)}",
            showarrow=False,
        )
        top = low - 1 - _GAP
    spans = [span for row in data.rows for span in row.spans]
    if any(span.exposed for span in spans):
        explain(figure, "exposed", "/")
    drawn = {span.kind for span in spans}
    for kind, drawn_as in PATTERNS.items():  # in one order, run after run
        if kind in drawn:
            explain(figure, KIND_WORDS[kind], drawn_as)
    figure.update_yaxes(
        tickvals=[place for place, _ in ticks],
        ticktext=[words for _, words in ticks],
        range=[top + _GAP + 0.4, 0.5 + _GAP],
        showgrid=False,
    )
    last = max((row.sync_end_ns for row in data.rows), default=0)
    figure.update_xaxes(title=TIME_AXIS, range=[0, ms(last) * 1.01])
    height = 100 + _LANE_PX * len(ticks) + _GAP_PX * len(data.rows)
    return framed(figure, height, barmode="overlay", showlegend=True)


def _mark(
    figure: go.Figure, at_ms: float, low: float, high: float, name: str, dash: str, *, in_legend: bool
) -> None:
    """A line through one candidate's lanes; named once in the legend."""
    figure.add_scatter(
        x=[at_ms, at_ms],
        y=[low, high],
        mode="lines",
        line={"color": LINE, "width": 2, "dash": dash},
        name=name,
        legendgroup=name,
        showlegend=in_legend,
        hovertemplate=f"{name}: %{{x:.3f}} ms<extra></extra>",
    )
