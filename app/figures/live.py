"""A running job: its steps against their prediction, the error, the parts of a step, who comes last."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import (
    ACCENT,
    ALARM,
    BUCKETS,
    LINE,
    NEUTRAL,
    bars,
    dots,
    figure,
    instant,
    level,
    line,
    ms,
    panel,
    stretch,
)
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
    parts_ns: tuple[float, ...]
    last_rank: int

    def error(self, of_ns: float) -> float | None:
        """How much longer than predicted, in percent."""
        return None if self.predicted_ns is None else 100 * (of_ns / self.predicted_ns - 1)

    @property
    def text(self) -> str:
        """What a hover says."""
        rows = [f"<b>step {self.step:,}</b>, {self.at:%H:%M:%S} UTC", f"measured {format_ms(self.step_ns)}"]
        if self.predicted_ns is not None:
            off = format_percent(self.step_ns / self.predicted_ns - 1, sign=True)
            rows.append(f"predicted {format_ms(self.predicted_ns)}, {off}")
        return "<br>".join([*rows, f"last to end backward: rank {self.last_rank}"])


def points(report: LiveReport) -> list[Point]:
    """The steps that are drawn: all of them, or every so many-th of a long run, with rolling medians."""
    series = report.series
    stride = max(1, -(-len(series) // MOST_POINTS))
    made = []
    for place in range((len(series) - 1) % stride, len(series), stride):
        window = slice(max(0, place - ROLLING + 1), place + 1)
        made.append(
            Point(
                step=int(series.step[place]),
                at=datetime.fromtimestamp(series.started_at[place] / 1e9, UTC),
                step_ns=int(series.step_ns[place]),
                rolling_ns=median(series.step_ns[window].tolist()),
                predicted_ns=int(series.predicted[place]) if series.predicted[place] > 0 else None,
                parts_ns=tuple(max(0.0, median(series[name][window].tolist())) for name in PARTS),
                last_rank=int(series.last_rank[place]),
            )
        )
    return made


def steps_figure(report: LiveReport, *, by_clock: bool = False) -> go.Figure:
    """Measured steps over their prediction, and the error below; the calibration window and drift marked."""
    shown = points(report)
    across = [_x(point, by_clock) for point in shown]
    later = [point for point in shown if point.step > report.calibrated[1]]
    after = [_x(point, by_clock) for point in later]
    errors = [point.error(point.step_ns) for point in later]
    look: dict[str, Any] = {"size": 4, "marker": {"opacity": 0.6}}
    below: dict[str, Any] = {"showlegend": False, **panel(2)}
    known = [None if point.predicted_ns is None else ms(point.predicted_ns) for point in shown]
    steps = [ms(point.step_ns) for point in shown]
    rolling = [ms(point.rolling_ns) for point in shown]
    held: dict[str, Any] = {"dash": "dash", "line": {"shape": "hv"}}
    traces = [
        dots("measured", across, steps, NEUTRAL, hover=[point.text for point in shown], **look),
        line(f"rolling median of {ROLLING}", across, rolling, ACCENT),
        line("predicted", across, known, ALARM, **held),
        dots(None, after, errors, NEUTRAL, **look, **below),
        line(None, after, [point.error(point.rolling_ns) for point in later], ACCENT, **below),
    ]
    return figure(
        traces,
        460,
        grid=make_subplots(rows=2, shared_xaxes=True, row_heights=[0.65, 0.35], vertical_spacing=0.06),
        xaxis2={"title": "time (UTC)" if by_clock else "step"},
        yaxis={"title": "step, ms", "range": _step_range(report, shown)},
        yaxis2={"title": "over prediction, %", "range": _error_range(errors)},
        shapes=[level(0, colour=ALARM, dash="dash", axis="2"), *_marks(report, shown, across)],
        margin={"l": 8, "r": 8, "t": 48, "b": 8},
    )


def _x(point: Point, by_clock: bool) -> int | datetime:
    return point.at if by_clock else point.step


def _marks(report: LiveReport, shown: Sequence[Point], across: Sequence[Any]) -> list[dict[str, Any]]:
    """The calibration window, shaded, and where drift began; in both panels, named once in the legend."""
    if not shown:
        return []
    numbers = [point.step for point in shown]

    def at(step: int) -> Any:
        return across[min(len(shown) - 1, bisect_left(numbers, step))]

    marks = []
    for axis in ("", "2"):
        place = {"xref": f"x{axis}", "yref": f"y{axis} domain", "showlegend": not axis}
        first, last = report.calibrated
        if last >= numbers[0]:
            window = stretch(at(first), at(last), LINE, opacity=0.18, name="calibration window", **place)
            marks.append(window)
        if report.drift is not None:
            since = report.drift.since_step
            name = f"drift since step {since:,}"
            marks.append(instant(at(since), name, dash="dot", colour=ALARM, **place))
    return marks


def _step_range(report: LiveReport, shown: Sequence[Point]) -> list[float] | None:
    """From the shortest to nearly the longest step, the prediction included."""
    if not shown:
        return None
    ordered = sorted(point.step_ns for point in shown)
    most = ordered[min(len(ordered) - 1, int((1 - _PLAIN_SHARE) * len(ordered)))]
    known = [step for step in report.series.predicted[-1:] if step > 0]
    low, high = min([ordered[0], *known]), max([most, *known])
    room = 0.05 * (high - low) or 0.05 * high or 1
    return [ms(low - room), ms(high + room)]


def _error_range(errors: Sequence[float | None]) -> list[float] | None:
    values = sorted(error for error in errors if error is not None)
    if not values:
        return None
    low, high = values[int(_PLAIN_SHARE * len(values))], values[int((1 - _PLAIN_SHARE) * (len(values) - 1))]
    room = 0.1 * (high - low) + 0.5
    return [min(low, 0.0) - room, max(high, 0.0) + room]


def parts_figure(report: LiveReport, *, by_clock: bool = False) -> go.Figure:
    """The parts of a step on top of each other, rolling medians."""
    shown = points(report)
    traces = [
        line(
            PART_WORDS[name],
            [_x(point, by_clock) for point in shown],
            [ms(point.parts_ns[place]) for point in shown],
            BUCKETS[place],
            width=0.5,
            hover=f"%{{y:.2f}} ms {PART_WORDS[name]}",
            stackgroup="parts",
        )
        for place, name in enumerate(PARTS)
    ]
    axes = {"xaxis": {"title": "time (UTC)" if by_clock else "step"}}
    axes["yaxis"] = {"title": "part of a step, ms", "rangemode": "tozero"}
    return figure(traces, 320, **axes, margin={"l": 8, "r": 8, "t": 64, "b": 8})


def lateness_figure(rows: Sequence[Lateness], most: int = 16) -> go.Figure:
    """How often each rank comes last, the most frequent ones."""
    shown = rows[:most]
    texts = [
        f"<b>rank {row.rank}</b> is last in {format_percent(row.share, 0)} of steps,<br>"
        f"by {format_ms(row.behind_ns)} in the median of these"
        for row in shown
    ]
    names, shares = [f"rank {row.rank}" for row in shown], [100 * row.share for row in shown]
    axes = {"xaxis": {"title": "steps in which this rank is last, %", "range": [0, 100]}}
    axes["yaxis"] = {"autorange": "reversed"}
    drawn = bars(None, names, shares, ACCENT, hover=texts, showlegend=False)
    return figure([drawn], 110 + 26 * len(shown), **axes)


def trial_figure(told: AutotuneProgress) -> go.Figure:
    """Each look's gain in percent of the step, with its interval, over the steps of the trial."""
    looks = told.looks
    above, below = (
        [100 * (one.high - one.gain) for one in looks],
        [100 * (one.gain - one.low) for one in looks],
    )
    drawn = dots(
        None,
        [one.steps for one in looks],
        [100 * one.gain for one in looks],
        ACCENT,
        size=8,
        mode="lines+markers",
        hover="after %{x} steps: %{y:+.1f} %",
        line={"width": 1},
        error_y={"type": "data", "symmetric": False, "array": above, "arrayminus": below},
        showlegend=False,
    )
    shapes = [level(0, width=1)]
    if told.in_use_ns and told.best_ns is not None:
        gain = 100 * (told.in_use_ns - told.best_ns) / told.in_use_ns
        label = {"text": "predicted", "textposition": "end"}
        shapes.append(level(gain, dash="dash") | {"label": label})
    across = {"xaxis": {"title": "steps of the trial", "range": [0, 1.05 * (told.most_steps or 1)]}}
    return figure([drawn], 260, **across, yaxis={"title": "gain, % of the step"}, shapes=shapes)
