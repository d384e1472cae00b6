"""Is it true? Measured beside predicted: all candidates, and backward and the buckets of one."""

from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.parity import ParityPoint, intervals, step_points
from app.figures.style import (
    ACCENT,
    ALARM,
    BUCKETS,
    NEUTRAL,
    TIME_AXIS,
    bucket_colour,
    framed,
    hatch,
    mark_instant,
    ms,
    ms_text,
    safe,
)
from sim.nouns.comparison import Agreement, Attribution, CandidateAgreement
from sim.nouns.measurement import MeasuredBucket
from sim.nouns.report import BucketRow
from sim.units import MIB, format_number, format_percent

# Mechanisms of an attribution: in words, their colour.
MECHANISMS = {
    "compute_ns": ("compute lane", BUCKETS[0]),
    "copy_ns": ("copies", BUCKETS[1]),
    "launch_ns": ("launches", BUCKETS[2]),
    "communication_ns": ("communication", BUCKETS[3]),
    "wait_ns": ("waiting and the rest", NEUTRAL),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketPair:
    """One bucket, ns from the start of backward, as (beginning, end).

    ``since`` names the beginning, the same for both: the start of the collective where the backend can
    tell it, else its launch, else the instant the bucket was ready. ``measured`` is None where not even
    its end is known. ``error_ns`` is predicted end minus measured end.
    """

    index: int
    num_bytes: int
    since: str
    predicted: tuple[int, int]
    measured: tuple[int, int] | None
    error_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayData:
    """The buckets of one candidate, and where backward ends in each."""

    pairs: tuple[BucketPair, ...]
    predicted_backward_end_ns: int
    measured_backward_end_ns: int


def steps_data(agreement: Agreement) -> tuple[ParityPoint, ...]:
    """All candidates, the fastest measured first."""
    return tuple(sorted(step_points(agreement), key=lambda point: point.measured_ns))


def draw_steps(pairs: tuple[ParityPoint, ...]) -> go.Figure:
    """A dumbbell a candidate: measured with its interval, predicted, and the gap between."""
    names = [safe(pair.name) for pair in pairs]
    figure = go.Figure()
    gaps_x: list[float | None] = []
    gaps_y: list[str | None] = []
    for name, pair in zip(names, pairs, strict=True):
        gaps_x += [ms(pair.measured_ns), ms(pair.predicted_ns), None]
        gaps_y += [name, name, None]
    figure.add_scatter(
        x=gaps_x,
        y=gaps_y,
        mode="lines",
        line={"color": ALARM, "width": 3},
        hoverinfo="skip",
        showlegend=False,
    )
    figure.add_scatter(
        name="measured, 95 % interval",
        x=[ms(pair.measured_ns) for pair in pairs],
        y=names,
        mode="markers",
        marker={"size": 11, "color": ALARM},
        error_x=intervals(pairs),
        hovertemplate="%{y}<br>measured %{x:.2f} ms<extra></extra>",
    )
    figure.add_scatter(
        name="predicted",
        x=[ms(pair.predicted_ns) for pair in pairs],
        y=names,
        mode="markers",
        marker={"size": 12, "color": ACCENT, "symbol": "diamond-open", "line": {"width": 3, "color": ACCENT}},
        customdata=[format_percent(pair.error, 2, sign=True) for pair in pairs],
        hovertemplate="%{y}<br>predicted %{x:.2f} ms, error %{customdata}<extra></extra>",
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1])
    figure.update_xaxes(title="step time, ms")
    return framed(figure, 110 + 30 * len(pairs), showlegend=True)


def attribution_data(agreement: Agreement) -> tuple[tuple[str, Attribution], ...]:
    """Candidates whose error could be attributed, by name, the fastest measured first."""
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    return tuple((row.name, row.attribution) for row in rows if row.attribution is not None)


def draw_attribution(rows: tuple[tuple[str, Attribution], ...]) -> go.Figure:
    """A bar a candidate: what each mechanism adds to its error, too short to the left, and their sum."""
    names = [safe(name) for name, _ in rows]
    figure = go.Figure()
    for part, (words, colour) in MECHANISMS.items():
        figure.add_bar(
            name=words,
            orientation="h",
            y=names,
            x=[ms(getattr(parts, part)) for _, parts in rows],
            marker={"color": colour},
            hovertemplate=f"%{{y}}<br>{words} %{{x:+.2f}} ms<extra></extra>",
        )
    figure.add_scatter(
        name="error",
        x=[ms(parts.total_ns) for _, parts in rows],
        y=names,
        mode="markers",
        marker={"size": 11, "color": ALARM, "symbol": "diamond", "line": {"width": 1, "color": "#FFFFFF"}},
        hovertemplate="%{y}<br>error %{x:+.2f} ms<extra></extra>",
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=False)
    figure.update_xaxes(title="end of synchronisation, predicted minus measured, ms", zeroline=True)
    return framed(figure, 110 + 30 * len(rows), barmode="relative", showlegend=True)


def overlay_data(row: CandidateAgreement) -> OverlayData:
    """A candidate's buckets, each predicted beside measured."""
    return OverlayData(
        pairs=tuple(
            _pair(bucket, row.buckets[place] if place < len(row.buckets) else None)
            for place, bucket in enumerate(row.predicted.buckets)
        ),
        predicted_backward_end_ns=row.predicted.backward_end_ns,
        measured_backward_end_ns=row.measured_backward_end_ns,
    )


def _pair(bucket: BucketRow, seen: MeasuredBucket | None) -> BucketPair:
    since, measured = "start", None
    if seen is not None and seen.end_ns is not None:
        known = [("start", seen.start_ns), ("launch", seen.launch_ns), ("ready", seen.ready_ns)]
        since, began = next(((name, time) for name, time in known if time is not None), ("start", None))
        measured = (seen.end_ns if began is None else began, seen.end_ns)
    begins = {"start": bucket.start_ns, "launch": bucket.launch_ns, "ready": bucket.ready_ns}
    return BucketPair(
        index=bucket.index,
        num_bytes=bucket.num_bytes,
        since=since,
        predicted=(begins[since], bucket.end_ns),
        measured=measured,
        error_ns=None if measured is None else bucket.end_ns - measured[1],
    )


def _pair_text(pair: BucketPair) -> str:
    rows = [f"<b>bucket {pair.index}</b>: {format_number(pair.num_bytes / MIB)} MiB"]
    for name, interval in (("predicted", pair.predicted), ("measured", pair.measured)):
        if interval is not None:
            rows.append(f"{name}: {pair.since} {ms_text(interval[0])}, end {ms_text(interval[1])}")
    if pair.measured is not None and pair.error_ns is not None:
        share = (
            f" ({format_percent(pair.error_ns / pair.measured[1], 2, sign=True)})" if pair.measured[1] else ""
        )
        rows.append(f"error of its end {ms(pair.error_ns):+.3f} ms{share}")
    return "<br>".join(rows)


def draw_overlay(data: OverlayData) -> go.Figure:
    """A row a bucket: predicted above, measured (outlined, hatched) below, on one axis of time."""
    figure = go.Figure()
    halves = (
        ("predicted", -0.4, "", [(pair, pair.predicted) for pair in data.pairs]),
        ("measured", 0.0, "/", [(pair, pair.measured) for pair in data.pairs if pair.measured is not None]),
    )
    for name, offset, pattern, rows in halves:
        figure.add_bar(
            name=name,
            orientation="h",
            y=[pair.index for pair, _ in rows],
            base=[ms(interval[0]) for _, interval in rows if interval],
            x=[ms(interval[1] - interval[0]) for _, interval in rows if interval],
            offset=offset,
            width=0.4,
            marker={
                "color": [bucket_colour(pair.index) for pair, _ in rows],
                "pattern": hatch(pattern),
            },
            customdata=[_pair_text(pair) for pair, _ in rows],
            hovertemplate="%{customdata}<extra></extra>",
        )
    for name, end_ns, top, dash in (
        ("predicted", data.predicted_backward_end_ns, -1.4, "dot"),
        ("measured", data.measured_backward_end_ns, -1.0, "solid"),
    ):
        _backward(figure, f"backward ends, {name}", end_ns, top, dash)
    shown = range(0, len(data.pairs), max(1, len(data.pairs) // 20))
    figure.update_yaxes(
        title="bucket",
        range=[len(data.pairs) - 0.5, -1.5],
        tickvals=[-1, *(data.pairs[place].index for place in shown)],
        ticktext=["backward", *(str(data.pairs[place].index) for place in shown)],
        showgrid=False,
    )
    figure.update_xaxes(title=TIME_AXIS, rangemode="tozero")
    height = min(900, 174 + 34 * len(data.pairs))
    return framed(figure, height, barmode="overlay", showlegend=True)


def _backward(figure: go.Figure, name: str, end_ns: int, top: float, dash: str) -> None:
    """Half of backward's row, with its length written in it, and a line down where it ends."""
    figure.add_shape(
        name=name,
        type="rect",
        x0=0,
        x1=ms(end_ns),
        y0=top,
        y1=top + 0.4,
        fillcolor=NEUTRAL,
        line={"width": 1, "color": "#FFFFFF"},
        label={
            "text": ms_text(end_ns),
            "font": {"color": "#FFFFFF", "size": 11},
            "textposition": "middle right",
        },
    )
    mark_instant(figure, ms(end_ns), name, dash=dash)
