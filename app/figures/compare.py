"""Several candidates on one axis: their timelines, where each cuts, and how their steps differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import plotly.graph_objects as go

from app.figures.style import (
    ALARM,
    GOOD,
    LINE,
    NEUTRAL,
    TIME_AXIS,
    bucket_colour,
    explain,
    framed,
    ms,
    ms_text,
    safe,
)
from app.figures.timeline import (
    KIND_WORDS,
    MAX_SPANS,
    PATTERNS,
    Span,
    TimelineData,
    are_few,
    bars,
    timeline_data,
)
from sim.nouns.assignment import Assignment
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.units import MIB, format_number

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
            _upright(figure, ms(at), low - 0.5, top + 0.5, name, dash, in_legend=number == 0)
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


def _upright(
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Neighbours in ready order that share a bucket; None: of several, too thin to draw apart."""

    row: str
    bucket: int | None
    start_bytes: int
    num_bytes: int
    text: str


def map_data(
    candidates: Sequence[tuple[str, Workload, Assignment]], max_blocks: int = MAX_SPANS
) -> tuple[Block, ...]:
    """Blocks of ``(name, workload, assignment)``, row by row; gradients never ready come last."""
    share = max(1, max_blocks // max(1, len(candidates)))
    blocks: list[Block] = []
    for name, workload, assignment in candidates:
        row = _blocks(name, workload, assignment)
        blocks += row if len(row) <= share else _thinned(row, -(-2 * workload.total_bytes // share))
    return tuple(blocks)


def _blocks(name: str, workload: Workload, assignment: Assignment) -> list[Block]:
    home = {index: number for number, bucket in enumerate(assignment.bucket_indices) for index in bucket}
    ready = workload.order()
    order = [*ready, *sorted(set(range(len(workload.gradients))) - set(ready))]
    blocks, reached = [], 0
    for bucket, members in groupby(order, key=home.__getitem__):
        gradients = [workload.gradients[index] for index in members]
        size = sum(gradient.num_bytes for gradient in gradients)
        names = ", ".join(safe(gradient.name, 40) for gradient in gradients[:3])
        more = f" and {len(gradients) - 3} more" if len(gradients) > 3 else ""
        text = (
            f"<b>{safe(name)}</b><br>bucket {bucket}: {format_number(size / MIB)} MiB here<br>"
            f"{len(gradients)} gradient{'s' if len(gradients) > 1 else ''}: {names}{more}"
        )
        blocks.append(Block(row=name, bucket=bucket, start_bytes=reached, num_bytes=size, text=text))
        reached += size
    return blocks


def _thinned(blocks: Sequence[Block], least_bytes: int) -> list[Block]:
    """Neighbours together that lie in one slot of ``least_bytes``."""
    thinned = []
    for _, group in groupby(blocks, key=lambda block: block.start_bytes // max(1, least_bytes)):
        members = list(group)
        if len(members) == 1:
            thinned.append(members[0])
            continue
        size = sum(block.num_bytes for block in members)
        thinned.append(
            Block(
                row=members[0].row,
                bucket=None,
                start_bytes=members[0].start_bytes,
                num_bytes=size,
                text=f"<b>{safe(members[0].row)}</b><br>{len(members)} blocks, "
                f"{format_number(size / MIB)} MiB",
            )
        )
    return thinned


def draw_map(blocks: Sequence[Block]) -> go.Figure:
    """One row a candidate, the first on top."""
    figure = go.Figure()
    rows = list(dict.fromkeys(block.row for block in blocks))
    figure.add_bar(
        orientation="h",
        y=[safe(block.row) for block in blocks],
        base=[block.start_bytes / MIB for block in blocks],
        x=[block.num_bytes / MIB for block in blocks],
        marker={
            "color": [bucket_colour(block.bucket) for block in blocks],
            "line": {"width": 0.5 if len(blocks) <= 600 else 0, "color": "rgba(255,255,255,0.7)"},
        },
        customdata=[block.text for block in blocks],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.update_yaxes(
        categoryorder="array", categoryarray=[safe(row) for row in rows[::-1]], showgrid=False
    )
    figure.update_xaxes(title="gradients in ready order, MiB")
    return framed(figure, 80 + 36 * len(rows), barmode="overlay", bargap=0.3)


_ROOM = 0.2  # of the axis, on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar from one difference to another, ns; ``is_total`` sums up those before it."""

    name: str
    from_ns: int
    to_ns: int
    is_total: bool = False

    @property
    def change_ns(self) -> int:
        """What the bar adds; negative: takes away."""
        return self.to_ns - self.from_ns


def delta_data(steps_ns: Mapping[str, int]) -> tuple[Bar, ...]:
    """Each step against the first, which is left out."""
    names = list(steps_ns)
    base = steps_ns[names[0]]
    return tuple(Bar(name=name, from_ns=0, to_ns=steps_ns[name] - base) for name in names[1:])


def parts_data(changes: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> tuple[Bar, ...]:
    """``(cause, [(part, change)])`` as bars that begin where the one before ended, and their total.

    Parts that change nothing are left out; the cause is named where there are several.
    """
    bars, reached = [], 0
    for cause, parts in changes:
        for part, change in parts:
            if change:
                name = f"{part} ({cause})" if len(changes) > 1 else part
                bars.append(Bar(name=name, from_ns=reached, to_ns=reached + change))
                reached += change
    return (*bars, Bar(name="together", from_ns=0, to_ns=reached, is_total=True))


def draw_bars(bars: Sequence[Bar], title: str) -> go.Figure:
    """Horizontal bars around zero: orange is longer, green is shorter, grey the sum."""
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=[safe(bar.name) for bar in bars],
        base=[ms(bar.from_ns) for bar in bars],
        x=[ms(bar.change_ns) for bar in bars],
        marker={"color": [_colour(bar) for bar in bars]},
        text=[f"{ms(bar.change_ns):+,.2f}" for bar in bars],
        textposition="auto",
        cliponaxis=False,
        hovertemplate="%{y}<br>%{text} ms<extra></extra>",
    )
    figure.add_vline(x=0, line={"color": LINE, "width": 1})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title=title, range=_range(bars))
    return framed(figure, 80 + 34 * len(bars), bargap=0.25)


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    """From the least to the most, with room for the figures beside short bars, in ms."""
    ends = [0, *(bar.from_ns for bar in bars), *(bar.to_ns for bar in bars)]
    low, high = ms(min(ends)), ms(max(ends))
    room = _ROOM * (high - low) or 1.0
    return low - room, high + room


def _colour(bar: Bar) -> str:
    if bar.is_total:
        return NEUTRAL
    return ALARM if bar.change_ns > 0 else GOOD
