"""Is it true? Predicted over measured: records, candidates of one, its buckets and errors, a running job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures import style
from sim.live.held import RECENT_STEPS, LiveReport
from sim.truth.ladder import Attribution
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.units import MIB, format_number, format_percent

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_EDGE = {"line": {"width": 1, "color": "#FFFFFF"}}
Rows = Sequence[CandidateAgreement]


def _text(row: CandidateAgreement, record: str = "") -> str:
    """What a hover says of a candidate's step."""
    low, high = row.step_low_ns, row.step_high_ns
    between = f" ({style.ms(low):,.2f} to {style.ms(high):,.2f})" if row.has_interval and low < high else ""
    lines = (
        f"<b>{style.safe(row.name)}</b>",
        *([style.safe(record)] if record else []),
        f"measured {style.ms(row.measured_step_ns):,.2f} ms{between}",
        f"predicted {style.ms(row.predicted_step_ns):,.2f} ms",
        f"error {format_percent(row.step_error, 2, sign=True)}",
    )
    return "<br>".join(lines)


def _measured(rows: Rows) -> list[float]:
    return [style.ms(row.measured_step_ns) for row in rows]


def _predicted(rows: Rows) -> list[float]:
    return [style.ms(row.predicted_step_ns) for row in rows]


def _intervals(rows: Rows) -> dict[str, Any]:
    """The 95 % interval of what was measured, to both sides of it; none of too few iterations."""
    above = [style.ms(max(0, row.step_high_ns - row.measured_step_ns)) * row.has_interval for row in rows]
    below = [style.ms(max(0, row.measured_step_ns - row.step_low_ns)) * row.has_interval for row in rows]
    look = {"type": "data", "symmetric": False, "color": style.ALARM, "thickness": 1.5}
    return {**look, "array": above, "arrayminus": below}


def draw_all(points: Sequence[tuple[str, str, CandidateAgreement]], words: Mapping[str, str]) -> go.Figure:
    """All records: predicted over measured on logarithmic axes, and below it each error in percent.

    Points are (record, kind, candidate), and carry the name of their record as ``customdata[1]``. ``words``
    names the kinds.
    """
    all_rows = [row for _, _, row in points]
    times = [*_measured(all_rows), *_predicted(all_rows)] or [1.0, 10.0]
    low, high = ends = min(times) / 1.2, max(times) * 1.2
    traces = [style.line("no error", ends, ends, style.LINE, width=1.5)]
    for place, kind in enumerate(dict.fromkeys(kind for _, kind, _ in points)):
        own = [(record, row) for record, of, row in points if of == kind]
        rows = [row for _, row in own]
        texts = {"%{customdata[0]}": [(_text(row, record), record) for record, row in own]}
        look = {"size": 9, "symbol": _SYMBOLS[place % len(_SYMBOLS)], "marker": {**_EDGE, "opacity": 0.85}}
        name, colour = style.safe(words.get(kind, kind)), style.BUCKETS[place % len(style.BUCKETS)]
        for number, ys in enumerate((_predicted(rows), [row.step_error * 100 for row in rows]), start=1):
            where = {"legendgroup": kind, "showlegend": number == 1, **style.panel(number)}
            traces.append(style.dots(name, _measured(rows), ys, colour, texts, **look, **where))
    marks = [lead * 10.0**power for power in range(-4, 8) for lead in (1, 2, 5)]
    inside = [mark for mark in marks if low <= mark <= high]
    labels = [f"{mark:,.0f}" if mark >= 1 else f"{mark:g}" for mark in inside]
    ticks = {"type": "log", "tickmode": "array", "tickvals": inside, "ticktext": labels}
    return style.figure(
        traces,
        560,
        grid=make_subplots(rows=2, shared_xaxes=True, row_heights=[0.62, 0.38], vertical_spacing=0.06),
        xaxis=ticks,
        xaxis2=ticks | {"title": "step measured, ms"},
        yaxis=ticks | {"title": "step predicted, ms"},
        yaxis2={"title": "error, %"},
        shapes=[style.level(0, axis="2")],
    )


def fastest_first(agreement: Agreement) -> list[CandidateAgreement]:
    """The candidates, the fastest measured first."""
    return sorted(agreement.rows, key=lambda row: row.measured_step_ns)


def draw_steps(agreement: Agreement) -> go.Figure:
    """A dumbbell a candidate: measured with its interval, predicted, and the gap between."""
    shown = fastest_first(agreement)
    names, measured, predicted = [style.safe(row.name) for row in shown], _measured(shown), _predicted(shown)
    gaps = [at for pair in zip(measured, predicted, [None] * len(names), strict=True) for at in pair]
    rows = [row for name in names for row in (name, name, None)]
    errors = [format_percent(row.step_error, 2, sign=True) for row in shown]
    of_error = {"%{y}<br>predicted %{x:.2f} ms, error %{customdata}": errors}
    seen: dict[str, Any] = {"size": 11, "error_x": _intervals(shown)}
    diamond: dict[str, Any] = {"symbol": "diamond-open", "size": 12}
    diamond["marker"] = {"line": {"width": 3, "color": style.ACCENT}}
    traces = (
        style.line(None, gaps, rows, style.ALARM, width=3, showlegend=False),
        style.dots(
            "measured, 95 % interval", measured, names, style.ALARM, "%{y}<br>measured %{x:.2f} ms", **seen
        ),
        style.dots("predicted", predicted, names, style.ACCENT, of_error, **diamond),
    )
    axes = {"xaxis": {"title": "step time, ms"}, "yaxis": style.rows_axis(names) | {"showgrid": True}}
    return style.figure(traces, 110 + 30 * len(names), **axes)


# Mechanisms of an attribution: in words, their colour.
MECHANISMS = {
    "compute_ns": ("compute lane", style.BUCKETS[0]),
    "copy_ns": ("copies", style.BUCKETS[1]),
    "launch_ns": ("launches", style.BUCKETS[2]),
    "communication_ns": ("communication", style.BUCKETS[3]),
    "wait_ns": ("waiting and the rest", style.NEUTRAL),
}


def draw_attribution(agreement: Agreement, parts: Mapping[str, Attribution]) -> go.Figure:
    """A bar a candidate that has ``parts``, the fastest measured first: what each mechanism adds to its
    error, too short to the left, and their sum."""
    rows = [(row.name, parts[row.name]) for row in fastest_first(agreement) if row.name in parts]
    names = [style.safe(name) for name, _ in rows]
    traces = [
        style.bars(
            words,
            names,
            [style.ms(getattr(parts, part)) for _, parts in rows],
            colour,
            f"{words} %{{x:+.2f}} ms",
        )
        for part, (words, colour) in MECHANISMS.items()
    ]
    totals = [style.ms(parts.total_ns) for _, parts in rows]
    mark: dict[str, Any] = {"size": 11, "symbol": "diamond", "marker": _EDGE}
    traces.append(style.dots("error", totals, names, style.ALARM, "%{y}<br>error %{x:+.2f} ms", **mark))
    title = "end of synchronisation, predicted minus measured, ms"
    axes = {"xaxis": {"title": title, "zeroline": True}, "yaxis": style.rows_axis(names)}
    return style.figure(traces, 110 + 30 * len(rows), **axes, barmode="relative")


@dataclass(frozen=True, slots=True)
class BucketPair:
    """One bucket, ns from the start of backward, as (beginning, end).

    ``since`` names the beginning, the same for both: the start of the collective where the backend can
    tell it, else its launch, else the instant the bucket was ready. ``measured`` is None where not even
    its end is known.
    """

    index: int
    num_bytes: int
    since: str
    predicted: tuple[int, int]
    measured: tuple[int, int] | None

    @property
    def error_ns(self) -> int | None:
        """Predicted end minus measured end."""
        return None if self.measured is None else self.predicted[1] - self.measured[1]

    @property
    def text(self) -> str:
        """What a hover says."""
        rows = [f"<b>bucket {self.index}</b>: {format_number(self.num_bytes / MIB)} MiB"]
        for name, ends in (("predicted", self.predicted), ("measured", self.measured)):
            if ends is not None:
                rows.append(f"{name}: {self.since} {style.ms_text(ends[0])}, end {style.ms_text(ends[1])}")
        if self.error_ns is not None:
            rows.append(f"error of its end {style.ms(self.error_ns):+.3f} ms")
        return "<br>".join(rows)


def overlay_data(row: CandidateAgreement) -> list[BucketPair]:
    """A candidate's buckets, each predicted beside measured."""
    pairs = []
    for bucket, seen in zip_longest(row.predicted.buckets, row.buckets[: len(row.predicted.buckets)]):
        since, measured = "start", None
        if seen is not None and seen.end_ns is not None:
            known = (name for name in ("start", "launch", "ready") if getattr(seen, f"{name}_ns") is not None)
            since = next(known, since)
            began: int | None = getattr(seen, f"{since}_ns")
            measured = (seen.end_ns if began is None else began, seen.end_ns)
        predicted = getattr(bucket, f"{since}_ns"), bucket.end_ns
        pairs.append(BucketPair(bucket.index, bucket.num_bytes, since, predicted, measured))
    return pairs


def draw_overlay(row: CandidateAgreement) -> go.Figure:
    """A row a bucket: predicted above, measured (outlined, hatched) below, on one axis of time."""
    pairs = overlay_data(row)
    traces, shapes = [], []
    for name, offset, pattern, end_ns, dash in (
        ("predicted", -0.4, "", row.predicted.backward_end_ns, "dot"),
        ("measured", 0.0, "/", row.measured_backward_end_ns, "solid"),
    ):
        seen = [(pair, times) for pair in pairs if (times := getattr(pair, name)) is not None]
        lengths = [style.ms(end - begin) for _, (begin, end) in seen]
        begins = [style.ms(begin) for _, (begin, _) in seen]
        colours = [style.bucket_colour(pair.index) for pair, _ in seen]
        texts = [pair.text for pair, _ in seen]
        look = {"pattern": pattern, "base": begins, "offset": offset, "width": 0.4}
        traces.append(style.bars(name, [pair.index for pair, _ in seen], lengths, colours, texts, **look))
        # Half of backward's row, with its length written in it, and a line down where it ends.
        half = {"type": "rect", "x0": 0, "x1": style.ms(end_ns), "y0": offset - 1, "y1": offset - 0.6}
        font = {"color": "#FFFFFF", "size": 11}
        label = {"text": style.ms_text(end_ns), "font": font, "textposition": "middle right"}
        shapes.append({**half, **_EDGE, "fillcolor": style.NEUTRAL, "label": label})
        shapes.append(style.instant(style.ms(end_ns), f"backward ends, {name}", dash=dash))
    shown = [pairs[place].index for place in range(0, len(pairs), max(1, len(pairs) // 20))]
    rows = {"tickvals": [-1, *shown], "ticktext": ["backward", *map(str, shown)]}
    return style.figure(
        traces,
        min(900, 174 + 34 * len(pairs)),
        xaxis={"title": style.TIME_AXIS, "rangemode": "tozero"},
        yaxis={"title": "bucket", "range": [len(pairs) - 0.5, -1.5], "showgrid": False, **rows},
        shapes=shapes,
        barmode="overlay",
    )


MOST_POINTS = 1500
_PLAIN_PERCENT = 98  # of the steps: the longest may leave the picture rather than flatten it


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
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
    )


def _range(values: Sequence[float | None]) -> list[float] | None:
    """From the least to nearly the largest, with some room."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, high = min(known), float(np.percentile(known, _PLAIN_PERCENT))
    room = 0.1 * (high - low) or 0.5
    return [low - room, high + room]
