"""A running job: its steps against their prediction, and the error."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures import style
from sim.live.held import RECENT_STEPS, LiveReport
from sim.units import format_percent

MOST_POINTS = 1500
_PLAIN_PERCENT = 98  # of the steps: the longest may leave the picture rather than flatten it
_ROOM = {"l": 8, "r": 8, "t": 56, "b": 8}


def drawn_steps(report: LiveReport) -> list[int]:
    """Which of the series are drawn: all of them, or every so many-th of a long run."""
    count = len(report.series)
    stride = max(1, -(-count // MOST_POINTS))
    return list(range((count - 1) % stride, count, stride))


def _rolling(values: Any, shown: Sequence[int]) -> list[float]:
    """The median of the latest steps at each of those that are drawn, in ms."""
    return [style.ms(float(np.median(values[max(0, at - RECENT_STEPS + 1) : at + 1]))) for at in shown]


def steps_figure(report: LiveReport) -> go.Figure:
    """Measured steps over their prediction, and the error below; the calibration window marked."""
    series, shown = report.series, drawn_steps(report)
    across = [int(series.step[at]) for at in shown]
    measured = [style.ms(series.step_ns[at]) for at in shown]
    predicted = [style.ms(series.predicted[at]) if series.predicted[at] > 0 else None for at in shown]
    rolling = _rolling(series.step_ns, shown)
    later = [at > report.calibrated[1] for at in across]

    def errors(times: Sequence[float]) -> list[float | None]:
        """In percent of the prediction; None where there is none, or none of unseen steps."""
        of_each = zip(times, predicted, later, strict=True)
        return [100 * (time / of - 1) if of and is_later else None for time, of, is_later in of_each]

    texts = []
    for at, time, of in zip(shown, measured, predicted, strict=True):
        when = datetime.fromtimestamp(series.started_at[at] / 1e9, UTC)
        told = f", predicted {of:.2f} ms, {format_percent(time / of - 1, sign=True)}" if of else ""
        texts.append(f"<b>step {series.step[at]:,}</b>, {when:%H:%M:%S} UTC<br>measured {time:.2f} ms{told}")
    look: dict[str, Any] = {"size": 4, "marker": {"opacity": 0.6}}
    below: dict[str, Any] = {"showlegend": False, **style.panel(2)}
    traces = [
        style.dots("measured", across, measured, style.NEUTRAL, texts, **look),
        style.line(f"rolling median of {RECENT_STEPS}", across, rolling, style.ACCENT),
        style.line("predicted", across, predicted, style.ALARM, dash="dash", line={"shape": "hv"}),
        style.dots(None, across, errors(measured), style.NEUTRAL, **look, **below),
        style.line(None, across, errors(rolling), style.ACCENT, **below),
    ]
    marks = [style.level(0, style.ALARM, "dash", "2")]
    for axis in ("", "2"):  # in both panels, named once in the legend
        place = {"xref": f"x{axis}", "yref": f"y{axis} domain", "showlegend": not axis}
        marks.append(
            style.stretch(*report.calibrated, style.LINE, opacity=0.18, name="calibration window", **place)
        )
    return style.figure(
        traces,
        460,
        grid=make_subplots(rows=2, shared_xaxes=True, row_heights=[0.65, 0.35], vertical_spacing=0.06),
        xaxis2={"title": "step", "range": [across[0] - 1, across[-1] + 1] if across else None},
        yaxis={"title": "step, ms", "range": _range([*measured, *predicted[-1:]])},
        yaxis2={"title": "over prediction, %", "range": _range([0.0, *errors(measured)])},
        shapes=marks,
        margin=_ROOM,
    )


def _range(values: Sequence[float | None]) -> list[float] | None:
    """From the least to nearly the largest, with some room."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = min(known), float(np.percentile(known, _PLAIN_PERCENT))
    room = 0.1 * (high - low) or 0.5
    return [low - room, high + room]
