"""Every iteration that was measured, one point each, in the order in which they ran."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.style import ACCENT, ALARM, NEUTRAL, framed, ms, safe
from sim.nouns.comparison import Agreement
from sim.nouns.records import Record
from sim.units import format_percent

_SPREAD = 0.6  # the share of a row that its iterations are spread over, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """One candidate's steps in ns, in the order in which they ran; ``predicted_ns`` is the prediction.

    ``steps_ns`` are of stock DDP, ``traced_ns`` with a hook that records buckets: it adds its own cost.
    """

    name: str
    steps_ns: tuple[int, ...]
    traced_ns: tuple[int, ...]
    median_ns: int
    predicted_ns: int


def strips_data(record: Record, agreement: Agreement) -> tuple[Strip, ...]:
    """All candidates that were compared, the fastest measured first."""
    measured = {one.name: one for one in record.candidates}
    rows = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    return tuple(
        Strip(
            name=row.name,
            steps_ns=tuple(one.step_ns for one in measured[row.name].iterations),
            traced_ns=tuple(one.step_ns for one in measured[row.name].traced),
            median_ns=row.measured_step_ns,
            predicted_ns=row.predicted_step_ns,
        )
        for row in rows
    )


def draw_strips(strips: Sequence[Strip]) -> go.Figure:
    """A row a candidate: its iterations from top to bottom, their median, and the prediction as a line."""
    figure = go.Figure()
    for name, colour, symbol, pick in (
        ("measured, one iteration", ALARM, "circle", "steps_ns"),
        ("measured with the recording hook", NEUTRAL, "circle-open", "traced_ns"),
    ):
        points = [
            (row, number, time, len(getattr(strip, pick)), strip)
            for row, strip in enumerate(strips)
            for number, time in enumerate(getattr(strip, pick))
        ]
        if not points:
            continue
        figure.add_scatter(
            name=name,
            x=[ms(time) for _, _, time, _, _ in points],
            y=[row + _place(number, count) for row, number, _, count, _ in points],
            mode="markers",
            marker={"size": 7, "color": colour, "symbol": symbol, "opacity": 0.8},
            customdata=[
                f"{safe(strip.name)}<br>iteration {number + 1} of {count}: {ms(time):,.2f} ms, "
                f"{format_percent(time / strip.median_ns - 1, 2, sign=True)} from the median"
                for _, number, time, count, strip in points
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    _ticks(figure, "median", ALARM, strips, [strip.median_ns for strip in strips], 2)
    _ticks(figure, "predicted", ACCENT, strips, [strip.predicted_ns for strip in strips], 4)
    figure.update_yaxes(
        tickvals=list(range(len(strips))),
        ticktext=[safe(strip.name, 30) for strip in strips],
        range=[len(strips) - 0.4, -0.6],
        showgrid=False,
    )
    figure.update_xaxes(title="step time, ms")
    return framed(figure, 120 + 36 * len(strips), showlegend=True)


def _place(number: int, count: int) -> float:
    return 0.0 if count == 1 else _SPREAD * (number / (count - 1) - 0.5)


def _ticks(
    figure: go.Figure, name: str, colour: str, strips: Sequence[Strip], times: Sequence[int], width: int
) -> None:
    x: list[float | None] = []
    y: list[float | None] = []
    for row, time in enumerate(times):
        x += [ms(time), ms(time), None]
        y += [row - 0.42, row + 0.42, None]
    words = [text for strip in strips for text in (safe(strip.name), safe(strip.name), "")]
    figure.add_scatter(
        name=name,
        x=x,
        y=y,
        mode="lines",
        line={"color": colour, "width": width},
        customdata=words,
        hovertemplate=f"%{{customdata}}<br>{name} %{{x:,.2f}} ms<extra></extra>",
    )
