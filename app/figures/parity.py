"""Predicted over measured: on the line where the prediction is exact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import ACCENT, ALARM, BUCKETS, LINE, NEUTRAL, bucket_colour, framed, ms, safe
from sim.nouns.comparison import Agreement
from sim.units import format_percent

_BAND = "rgba(0,158,115,0.15)"
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPoint:
    """One step, or the end of one bucket, in ns; ``error`` is (predicted - measured) / measured.

    ``low_ns`` and ``high_ns`` are the 95 % interval of what was measured, the measured time itself where too
    few iterations tell one. ``bucket`` is None for a step. ``record`` and ``kind`` are those of the library.
    """

    name: str
    measured_ns: int
    low_ns: int
    high_ns: int
    predicted_ns: int
    error: float
    bucket: int | None = None
    record: str = ""
    kind: str = ""


def step_points(agreement: Agreement, *, record: str = "", kind: str = "") -> tuple[ParityPoint, ...]:
    """The step of every candidate."""
    return tuple(
        ParityPoint(
            name=row.name,
            measured_ns=row.measured_step_ns,
            low_ns=row.step_low_ns if row.has_interval else row.measured_step_ns,
            high_ns=row.step_high_ns if row.has_interval else row.measured_step_ns,
            predicted_ns=row.predicted_step_ns,
            error=row.step_error,
            record=record,
            kind=kind,
        )
        for row in agreement.rows
    )


def end_points(agreement: Agreement) -> tuple[ParityPoint, ...]:
    """The end of every bucket that can be told, from the start of backward; none where it is 0."""
    return tuple(
        ParityPoint(
            name=row.name,
            measured_ns=end.measured_ns,
            low_ns=end.low_ns if end.has_interval else end.measured_ns,
            high_ns=end.high_ns if end.has_interval else end.measured_ns,
            predicted_ns=end.predicted_ns,
            error=end.error,
            bucket=end.index,
        )
        for row in agreement.rows
        for end in row.bucket_ends
        if end.error is not None
    )


def draw_parity(points: Sequence[ParityPoint], band: float | None, what: str) -> go.Figure:
    """One record: ``what`` measured against predicted, the line of no error, and the band of ``band``."""
    figure = go.Figure()
    low, high = _range(points)
    _ideal(figure, low, high, band)
    figure.add_scatter(
        name=what,
        x=[ms(point.measured_ns) for point in points],
        y=[ms(point.predicted_ns) for point in points],
        mode="markers",
        marker={
            "size": 10 if points and points[0].bucket is None else 7,
            "color": [ACCENT if point.bucket is None else bucket_colour(point.bucket) for point in points],
            "line": {"width": 1, "color": "#FFFFFF"},
        },
        error_x=intervals(points),
        customdata=[_hover(point) for point in points],
        hovertemplate="%{customdata}<extra></extra>",
        showlegend=False,
    )
    # The data give the range: a scale anchor would make a narrow page a strip.
    figure.update_xaxes(title=f"{what}, measured, ms", range=[low, high])
    figure.update_yaxes(title=f"{what}, predicted, ms", range=[low, high])
    return framed(figure, 460, showlegend=True)


def draw_all(points: Sequence[ParityPoint], words: Mapping[str, str]) -> go.Figure:
    """All records: predicted over measured on logarithmic axes, and below it each error in percent.

    Points carry the name of their record as ``customdata[1]``. ``words`` names the kinds.
    """
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.62, 0.38], vertical_spacing=0.06)
    low, high = _range(points, wide=True)
    figure.add_scatter(
        name="no error",
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": LINE, "width": 1.5},
        hoverinfo="skip",
        row=1,
        col=1,
    )
    for place, kind in enumerate(dict.fromkeys(point.kind for point in points)):
        own = [point for point in points if point.kind == kind]
        look = {
            "size": 9,
            "color": BUCKETS[place % len(BUCKETS)],
            "symbol": _SYMBOLS[place % len(_SYMBOLS)],
            "line": {"width": 1, "color": "#FFFFFF"},
            "opacity": 0.85,
        }
        for row, heights in (
            (1, [ms(one.predicted_ns) for one in own]),
            (2, [one.error * 100 for one in own]),
        ):
            figure.add_scatter(
                name=safe(words.get(kind, kind)),
                legendgroup=kind,
                showlegend=row == 1,
                x=[ms(point.measured_ns) for point in own],
                y=heights,
                mode="markers",
                marker=look,
                customdata=[(_hover(point), point.record) for point in own],
                hovertemplate="%{customdata[0]}<extra></extra>",
                row=row,
                col=1,
            )
    figure.add_hline(y=0, line={"color": LINE, "width": 1.5}, row=2, col=1)
    figure = framed(figure, 560, showlegend=True)
    ticks = {"type": "log", "tickmode": "array", **_ticks(low, high)}
    figure.update_xaxes(**ticks)
    figure.update_xaxes(title="step measured, ms", row=2, col=1)
    figure.update_yaxes(**ticks, title="step predicted, ms", row=1, col=1)
    figure.update_yaxes(title="error, %", row=2, col=1)
    return figure


def _ideal(figure: go.Figure, low: float, high: float, band: float | None) -> None:
    if band is not None:
        figure.add_scatter(
            name=f"within {band:.0%}, as the rule asks of each",
            x=[low, high, high, low],
            y=[low * (1 + band), high * (1 + band), high * (1 - band), low * (1 - band)],
            mode="lines",
            fill="toself",
            fillcolor=_BAND,
            line={"width": 0, "color": _BAND},
            hoverinfo="skip",
        )
    figure.add_scatter(
        name="no error",
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": NEUTRAL, "width": 2},
        hoverinfo="skip",
    )


def intervals(points: Sequence[ParityPoint]) -> dict[str, object]:
    """The measured interval of each point, to both sides of it."""
    return {
        "type": "data",
        "symmetric": False,
        "array": [ms(max(0, point.high_ns - point.measured_ns)) for point in points],
        "arrayminus": [ms(max(0, point.measured_ns - point.low_ns)) for point in points],
        "color": ALARM,
        "thickness": 1.5,
    }


def _range(points: Sequence[ParityPoint], *, wide: bool = False) -> tuple[float, float]:
    """From a little below the least to a little above the largest, in ms; both axes have it."""
    times = [ms(time) for point in points for time in (point.measured_ns, point.predicted_ns)] or [1.0, 10.0]
    low, high = min(times), max(times)
    if wide:
        return low / 1.2, high * 1.2
    edge = 0.06 * (high - low) or 0.05 * high
    return max(0.0, low - edge), high + edge


def _ticks(low: float, high: float) -> dict[str, list[float] | list[str]]:
    """1, 2 and 5 of each power of ten in range, written out."""
    marks = [lead * 10.0**power for power in range(-4, 8) for lead in (1, 2, 5)]
    inside = [mark for mark in marks if low <= mark <= high]
    return {"tickvals": inside, "ticktext": [f"{mark:,.0f}" if mark >= 1 else f"{mark:g}" for mark in inside]}


def _hover(point: ParityPoint) -> str:
    title = safe(point.name) if point.bucket is None else f"{safe(point.name)}, bucket {point.bucket}"
    lines = [f"<b>{title}</b>"]
    if point.record:
        lines.append(safe(point.record))
    interval = ""
    if point.low_ns < point.high_ns:
        interval = f" ({ms(point.low_ns):,.2f} to {ms(point.high_ns):,.2f})"
    lines += [
        f"measured {ms(point.measured_ns):,.2f} ms{interval}",
        f"predicted {ms(point.predicted_ns):,.2f} ms",
        f"error {format_percent(point.error, 2, sign=True)}",
    ]
    return "<br>".join(lines)
