"""A running job: its steps against their prediction, the error, the parts of a step, who comes last."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import ACCENT, ALARM, BUCKETS, LINE, NEUTRAL, framed, ms
from sim.autotuner.progress import AutotuneProgress
from sim.live.held import Lateness, LiveReport
from sim.truth.recorded_job import PARTS
from sim.units import format_ms, format_percent

PART_WORDS: dict[str, str] = {
    "before": "before forward",
    "forward": "forward",
    "backward": "backward",
    "sync": "communication",
    "optimizer": "optimizer",
}
MOST_POINTS = 1500
ROLLING = 50
_PLAIN_SHARE = 0.02  # of the steps, the longest: they may leave the picture rather than flatten it


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A step as it is drawn; errors in percent, None where nothing was predicted."""

    step: int
    at: datetime
    step_ns: int
    rolling_ns: float
    predicted_ns: int | None
    error: float | None
    rolling_error: float | None
    parts_ns: tuple[float, ...]
    last_rank: int


def points(report: LiveReport) -> list[Point]:
    """The steps that are drawn: all of them, or every so many-th of a long run, with rolling medians."""
    series = report.series
    stride = max(1, -(-len(series) // MOST_POINTS))
    made = []
    for place in range((len(series) - 1) % stride, len(series), stride):
        since = max(0, place - ROLLING + 1)
        rolling = median(series.step_ns[since : place + 1])
        predicted = series.predicted[place] if series.predicted[place] > 0 else None
        made.append(
            Point(
                step=series.step[place],
                at=datetime.fromtimestamp(series.started_at[place] / 1e9, UTC),
                step_ns=series.step_ns[place],
                rolling_ns=rolling,
                predicted_ns=predicted,
                error=None if predicted is None else 100 * (series.step_ns[place] / predicted - 1),
                rolling_error=None if predicted is None else 100 * (rolling / predicted - 1),
                parts_ns=tuple(max(0.0, median(getattr(series, name)[since : place + 1])) for name in PARTS),
                last_rank=series.last_rank[place],
            )
        )
    return made


def steps_figure(report: LiveReport, *, by_clock: bool = False) -> go.Figure:
    """Measured steps over their prediction, and the error below."""
    shown = points(report)
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, row_heights=[0.65, 0.35], vertical_spacing=0.06)
    across = [_x(point, by_clock) for point in shown]
    hover = [
        f"<b>step {point.step:,}</b>, {point.at:%H:%M:%S} UTC<br>measured {format_ms(point.step_ns)}"
        + (
            ""
            if point.predicted_ns is None or point.error is None
            else f"<br>predicted {format_ms(point.predicted_ns)}, "
            f"{format_percent(point.error / 100, sign=True)}"
        )
        + f"<br>last to end backward: rank {point.last_rank}"
        for point in shown
    ]
    told = {"customdata": hover, "hovertemplate": "%{customdata}<extra></extra>"}
    dots = {"color": NEUTRAL, "size": 4, "opacity": 0.6}
    figure.add_scatter(
        row=1,
        col=1,
        name="measured",
        mode="markers",
        x=across,
        y=[ms(p.step_ns) for p in shown],
        marker=dots,
        **told,
    )
    figure.add_scatter(
        row=1,
        col=1,
        name=f"rolling median of {ROLLING}",
        mode="lines",
        x=across,
        y=[ms(point.rolling_ns) for point in shown],
        line={"color": ACCENT, "width": 2},
        hoverinfo="skip",
    )
    figure.add_scatter(
        row=1,
        col=1,
        name="predicted",
        mode="lines",
        x=across,
        y=[None if p.predicted_ns is None else ms(p.predicted_ns) for p in shown],
        line={"color": ALARM, "width": 2, "dash": "dash", "shape": "hv"},
        hoverinfo="skip",
    )
    errors = [(x, p) for x, p in zip(across, shown, strict=True) if p.step > report.calibrated[1]]
    figure.add_scatter(
        row=2,
        col=1,
        showlegend=False,
        mode="markers",
        x=[x for x, _ in errors],
        y=[p.error for _, p in errors],
        marker=dots,
        hoverinfo="skip",
    )
    figure.add_scatter(
        row=2,
        col=1,
        showlegend=False,
        mode="lines",
        x=[x for x, _ in errors],
        y=[p.rolling_error for _, p in errors],
        line={"color": ACCENT, "width": 2},
        hoverinfo="skip",
    )
    figure.add_hline(y=0, line={"color": ALARM, "width": 1.5, "dash": "dash"}, row=2, col=1)
    _mark(figure, report, shown, by_clock)
    figure.update_yaxes(title="step, ms", range=_range([p.step_ns for p in shown], report), row=1, col=1)
    figure.update_yaxes(title="over prediction, %", range=_error_range(errors), row=2, col=1)
    figure.update_xaxes(title="time (UTC)" if by_clock else "step", row=2, col=1)
    return framed(figure, 460, showlegend=True, margin={"l": 8, "r": 8, "t": 48, "b": 8})


def _x(point: Point, by_clock: bool) -> int | datetime:
    return point.at if by_clock else point.step


def _mark(figure: go.Figure, report: LiveReport, shown: Sequence[Point], by_clock: bool) -> None:
    """The calibration window, shaded, and where drift began."""
    if not shown:
        return
    numbers = [point.step for point in shown]

    def at(step: int) -> int | datetime:
        return _x(shown[min(len(shown) - 1, bisect_left(numbers, step))], by_clock)

    for row in (1, 2):  # named once in the legend
        if report.calibrated[1] >= numbers[0]:
            figure.add_vrect(
                x0=at(report.calibrated[0]),
                x1=at(report.calibrated[1]),
                fillcolor=LINE,
                opacity=0.18,
                line_width=0,
                name="calibration window",
                showlegend=row == 1,
                row=row,
                col=1,
            )
        if report.drift is not None:
            figure.add_vline(
                x=at(report.drift.since_step),
                line={"color": ALARM, "width": 2, "dash": "dot"},
                name=f"drift since step {report.drift.since_step:,}",
                showlegend=row == 1,
                row=row,
                col=1,
            )


def _range(steps_ns: Sequence[int], report: LiveReport) -> list[float] | None:
    """From the shortest to nearly the longest step, the prediction included."""
    if not steps_ns:
        return None
    ordered = sorted(steps_ns)
    high = ordered[min(len(ordered) - 1, int((1 - _PLAIN_SHARE) * len(ordered)))]
    known = [step for step in report.series.predicted[-1:] if step > 0]
    low, high = min([ordered[0], *known]), max([high, *known])
    room = 0.05 * (high - low) or 0.05 * high or 1
    return [ms(low - room), ms(high + room)]


def _error_range(errors: Sequence[tuple[int | datetime, Point]]) -> list[float] | None:
    values = sorted(point.error for _, point in errors if point.error is not None)
    if not values:
        return None
    low, high = values[int(_PLAIN_SHARE * len(values))], values[int((1 - _PLAIN_SHARE) * (len(values) - 1))]
    room = 0.1 * (high - low) + 0.5
    return [min(low, 0.0) - room, max(high, 0.0) + room]


def parts_figure(report: LiveReport, *, by_clock: bool = False) -> go.Figure:
    """The parts of a step on top of each other, rolling medians."""
    shown = points(report)
    across = [_x(point, by_clock) for point in shown]
    figure = go.Figure()
    for place, name in enumerate(PARTS):
        figure.add_scatter(
            name=PART_WORDS[name],
            x=across,
            y=[ms(point.parts_ns[place]) for point in shown],
            mode="lines",
            stackgroup="parts",
            line={"width": 0.5, "color": BUCKETS[place % len(BUCKETS)]},
            hovertemplate="%{y:.2f} ms " + PART_WORDS[name] + "<extra></extra>",
        )
    figure.update_xaxes(title="time (UTC)" if by_clock else "step")
    figure.update_yaxes(title="part of a step, ms", rangemode="tozero")
    return framed(figure, 320, showlegend=True, margin={"l": 8, "r": 8, "t": 64, "b": 8})


def lateness_figure(rows: Sequence[Lateness], most: int = 16) -> go.Figure:
    """How often each rank comes last, the most frequent ones."""
    shown = rows[:most]
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=[f"rank {row.rank}" for row in shown],
        x=[100 * row.share for row in shown],
        marker={"color": ACCENT},
        customdata=[
            f"<b>rank {row.rank}</b> is last in {format_percent(row.share, 0)} of steps,<br>"
            f"by {format_ms(row.behind_ns)} in the median of these"
            for row in shown
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.update_xaxes(title="steps in which this rank is last, %", range=[0, 100])
    figure.update_yaxes(autorange="reversed")
    return framed(figure, 110 + 26 * len(shown))


def trial_figure(told: AutotuneProgress) -> go.Figure:
    """Each look's gain in percent of the step, with its interval, over the steps of the trial."""
    gains = [100 * look.gain for look in told.looks]
    figure = go.Figure()
    figure.add_scatter(
        mode="lines+markers",
        x=[look.steps for look in told.looks],
        y=gains,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [100 * (look.high - look.gain) for look in told.looks],
            "arrayminus": [100 * (look.gain - look.low) for look in told.looks],
        },
        line={"color": ACCENT, "width": 1},
        marker={"color": ACCENT, "size": 8},
        hovertemplate="after %{x} steps: %{y:+.1f} %<extra></extra>",
    )
    if told.in_use_ns and told.best_ns is not None:
        figure.add_hline(
            y=100 * (told.in_use_ns - told.best_ns) / told.in_use_ns,
            line={"color": LINE, "dash": "dash"},
            annotation_text="predicted",
        )
    figure.add_hline(y=0, line={"color": LINE, "width": 1})
    figure.update_xaxes(title="steps of the trial", range=[0, 1.05 * (told.most_steps or 1)])
    figure.update_yaxes(title="gain, % of the step")
    return framed(figure, 260, showlegend=False)
