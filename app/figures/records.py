"""Is it true? Predicted over measured: all records, all candidates of one, its buckets, iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import (
    ACCENT,
    ALARM,
    BUCKETS,
    GOOD,
    LINE,
    NEUTRAL,
    TIME_AXIS,
    Trace,
    area,
    bars,
    bucket_colour,
    dots,
    figure,
    instant,
    level,
    line,
    ms,
    ms_text,
    panel,
    rows_axis,
    safe,
)
from sim.nouns.measurement import MeasuredBucket, Record
from sim.nouns.timeline import BucketRow
from sim.truth.ladder import Attribution
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.units import MIB, format_number, format_percent

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_EDGE = {"line": {"width": 1, "color": "#FFFFFF"}}


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

    @property
    def text(self) -> str:
        """What a hover says."""
        lines = [f"<b>{safe(self.name)}{'' if self.bucket is None else f', bucket {self.bucket}'}</b>"]
        lines += [safe(self.record)] if self.record else []
        between = (
            f" ({ms(self.low_ns):,.2f} to {ms(self.high_ns):,.2f})" if self.low_ns < self.high_ns else ""
        )
        lines.append(f"measured {ms(self.measured_ns):,.2f} ms{between}")
        lines.append(f"predicted {ms(self.predicted_ns):,.2f} ms")
        return "<br>".join([*lines, f"error {format_percent(self.error, 2, sign=True)}"])


def step_points(agreement: Agreement, *, record: str = "", kind: str = "") -> tuple[ParityPoint, ...]:
    """The step of every candidate."""
    points = []
    for row in agreement.rows:
        measured, ends = row.measured_step_ns, (row.step_low_ns, row.step_high_ns)
        times = _interval(measured, ends if row.has_interval else None, row.predicted_step_ns)
        points.append(ParityPoint(name=row.name, error=row.step_error, record=record, kind=kind, **times))
    return tuple(points)


def end_points(agreement: Agreement) -> tuple[ParityPoint, ...]:
    """The end of every bucket that can be told, from the start of backward; none where it is 0."""
    points = []
    for row in agreement.rows:
        for end in row.bucket_ends:
            if end.error is not None:
                ends = (end.low_ns, end.high_ns) if end.has_interval else None
                times = _interval(end.measured_ns, ends, end.predicted_ns)
                points.append(ParityPoint(name=row.name, error=end.error, bucket=end.index, **times))
    return tuple(points)


def _interval(measured_ns: int, ends_ns: tuple[int, int] | None, predicted_ns: int) -> dict[str, Any]:
    low, high = ends_ns or (measured_ns, measured_ns)
    return {"measured_ns": measured_ns, "low_ns": low, "high_ns": high, "predicted_ns": predicted_ns}


def draw_parity(points: Sequence[ParityPoint], band: float | None, what: str) -> go.Figure:
    """One record: ``what`` measured against predicted, the line of no error, and the band of ``band``."""
    low, high = ends = _range(points)
    traces = []
    if band is not None:
        lows, highs = [end * (1 - band) for end in ends], [end * (1 + band) for end in ends]
        traces.append(area(f"within {band:.0%}, as the rule asks of each", ends, lows, highs, GOOD))
    traces.append(line("no error", ends, ends, NEUTRAL))
    drawn = dots(
        what,
        [ms(point.measured_ns) for point in points],
        [ms(point.predicted_ns) for point in points],
        [ACCENT if point.bucket is None else bucket_colour(point.bucket) for point in points],
        size=10 if points and points[0].bucket is None else 7,
        hover=[point.text for point in points],
        marker=_EDGE,
        error_x=_intervals(points),
        showlegend=False,
    )
    # The data give the range: a scale anchor would make a narrow page a strip.
    across = {"xaxis": {"title": f"{what}, measured, ms", "range": [low, high]}}
    up = {"yaxis": {"title": f"{what}, predicted, ms", "range": [low, high]}}
    return figure([*traces, drawn], 460, **across, **up)


def draw_all(points: Sequence[ParityPoint], words: Mapping[str, str]) -> go.Figure:
    """All records: predicted over measured on logarithmic axes, and below it each error in percent.

    Points carry the name of their record as ``customdata[1]``. ``words`` names the kinds.
    """
    low, high = ends = _range(points, wide=True)
    traces = [line("no error", ends, ends, LINE, width=1.5)]
    for place, kind in enumerate(dict.fromkeys(point.kind for point in points)):
        own = [point for point in points if point.kind == kind]
        symbol = _SYMBOLS[place % len(_SYMBOLS)]
        for number, heights in (
            (1, [ms(one.predicted_ns) for one in own]),
            (2, [one.error * 100 for one in own]),
        ):
            drawn = dots(
                safe(words.get(kind, kind)),
                [ms(point.measured_ns) for point in own],
                heights,
                BUCKETS[place % len(BUCKETS)],
                size=9,
                symbol=symbol,
                marker={**_EDGE, "opacity": 0.85},
                hover={"%{customdata[0]}": [(point.text, point.record) for point in own]},
                legendgroup=kind,
                showlegend=number == 1,
                **panel(number),
            )
            traces.append(drawn)
    marks = [lead * 10.0**power for power in range(-4, 8) for lead in (1, 2, 5)]
    inside = [mark for mark in marks if low <= mark <= high]
    texts = [f"{mark:,.0f}" if mark >= 1 else f"{mark:g}" for mark in inside]
    ticks = {"type": "log", "tickmode": "array", "tickvals": inside, "ticktext": texts}
    return figure(
        traces,
        560,
        grid=make_subplots(rows=2, shared_xaxes=True, row_heights=[0.62, 0.38], vertical_spacing=0.06),
        xaxis=ticks,
        xaxis2=ticks | {"title": "step measured, ms"},
        yaxis=ticks | {"title": "step predicted, ms"},
        yaxis2={"title": "error, %"},
        shapes=[level(0, axis="2")],
    )


def _intervals(points: Sequence[ParityPoint]) -> dict[str, Any]:
    """The measured interval of each point, to both sides of it."""
    above = [ms(max(0, point.high_ns - point.measured_ns)) for point in points]
    below = [ms(max(0, point.measured_ns - point.low_ns)) for point in points]
    look = {"type": "data", "symmetric": False, "color": ALARM, "thickness": 1.5}
    return {**look, "array": above, "arrayminus": below}


def _range(points: Sequence[ParityPoint], *, wide: bool = False) -> tuple[float, float]:
    """From a little below the least to a little above the largest, in ms; both axes have it."""
    times = [ms(time) for point in points for time in (point.measured_ns, point.predicted_ns)] or [1.0, 10.0]
    low, high = min(times), max(times)
    if wide:
        return low / 1.2, high * 1.2
    edge = 0.06 * (high - low) or 0.05 * high
    return max(0.0, low - edge), high + edge


def fastest_first(agreement: Agreement) -> list[CandidateAgreement]:
    """The candidates, the fastest measured first."""
    return sorted(agreement.rows, key=lambda row: row.measured_step_ns)


def draw_steps(agreement: Agreement) -> go.Figure:
    """A dumbbell a candidate: measured with its interval, predicted, and the gap between."""
    points = sorted(step_points(agreement), key=lambda point: point.measured_ns)
    names = [safe(point.name) for point in points]
    measured, predicted = (
        [ms(t) for t in times]
        for times in zip(*[(point.measured_ns, point.predicted_ns) for point in points], strict=True)
    )
    gaps = [at for pair in zip(measured, predicted, [None] * len(names), strict=True) for at in pair]
    rows = [row for name in names for row in (name, name, None)]
    errors = [format_percent(point.error, 2, sign=True) for point in points]
    of_error = {"%{y}<br>predicted %{x:.2f} ms, error %{customdata}": errors}
    diamond: dict[str, Any] = {
        "symbol": "diamond-open",
        "size": 12,
        "marker": {"line": {"width": 3, "color": ACCENT}},
    }
    return figure(
        [
            line(None, gaps, rows, ALARM, width=3, showlegend=False),
            dots(
                "measured, 95 % interval",
                measured,
                names,
                ALARM,
                size=11,
                hover="%{y}<br>measured %{x:.2f} ms",
                error_x=_intervals(points),
            ),
            dots("predicted", predicted, names, ACCENT, hover=of_error, **diamond),
        ],
        110 + 30 * len(points),
        xaxis={"title": "step time, ms"},
        yaxis=rows_axis(names) | {"showgrid": True},
    )


# Mechanisms of an attribution: in words, their colour.
MECHANISMS = {
    "compute_ns": ("compute lane", BUCKETS[0]),
    "copy_ns": ("copies", BUCKETS[1]),
    "launch_ns": ("launches", BUCKETS[2]),
    "communication_ns": ("communication", BUCKETS[3]),
    "wait_ns": ("waiting and the rest", NEUTRAL),
}


def attribution_data(agreement: Agreement) -> tuple[tuple[str, Attribution], ...]:
    """Candidates whose error could be attributed, by name, the fastest measured first."""
    rows = fastest_first(agreement)
    return tuple((row.name, row.attribution) for row in rows if row.attribution is not None)


def draw_attribution(rows: tuple[tuple[str, Attribution], ...]) -> go.Figure:
    """A bar a candidate: what each mechanism adds to its error, too short to the left, and their sum."""
    names = [safe(name) for name, _ in rows]
    traces = [
        bars(
            words,
            names,
            [ms(getattr(parts, part)) for _, parts in rows],
            colour,
            hover=f"%{{y}}<br>{words} %{{x:+.2f}} ms",
        )
        for part, (words, colour) in MECHANISMS.items()
    ]
    totals = [ms(parts.total_ns) for _, parts in rows]
    mark: dict[str, Any] = {
        "size": 11,
        "symbol": "diamond",
        "marker": _EDGE,
        "hover": "%{y}<br>error %{x:+.2f} ms",
    }
    title = "end of synchronisation, predicted minus measured, ms"
    return figure(
        [*traces, dots("error", totals, names, ALARM, **mark)],
        110 + 30 * len(rows),
        xaxis={"title": title, "zeroline": True},
        yaxis=rows_axis(names),
        barmode="relative",
    )


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

    @property
    def text(self) -> str:
        """What a hover says."""
        rows = [f"<b>bucket {self.index}</b>: {format_number(self.num_bytes / MIB)} MiB"]
        for name, interval in (("predicted", self.predicted), ("measured", self.measured)):
            if interval is not None:
                rows.append(f"{name}: {self.since} {ms_text(interval[0])}, end {ms_text(interval[1])}")
        if self.measured is not None and self.error_ns is not None:
            end = self.measured[1]
            share = f" ({format_percent(self.error_ns / end, 2, sign=True)})" if end else ""
            rows.append(f"error of its end {ms(self.error_ns):+.3f} ms{share}")
        return "<br>".join(rows)


def overlay_data(row: CandidateAgreement) -> list[BucketPair]:
    """A candidate's buckets, each predicted beside measured."""
    return [
        _pair(bucket, row.buckets[place] if place < len(row.buckets) else None)
        for place, bucket in enumerate(row.predicted.buckets)
    ]


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


def draw_overlay(row: CandidateAgreement) -> go.Figure:
    """A row a bucket: predicted above, measured (outlined, hatched) below, on one axis of time."""
    pairs = overlay_data(row)
    traces, shapes = [], []
    for name, offset, pattern in (("predicted", -0.4, ""), ("measured", 0.0, "/")):
        seen = [(pair, interval) for pair in pairs if (interval := getattr(pair, name)) is not None]
        traces.append(
            bars(
                name,
                [pair.index for pair, _ in seen],
                [ms(end - begin) for _, (begin, end) in seen],
                [bucket_colour(pair.index) for pair, _ in seen],
                pattern=pattern,
                hover=[pair.text for pair, _ in seen],
                base=[ms(begin) for _, (begin, _) in seen],
                offset=offset,
                width=0.4,
            )
        )
    for name, end_ns, top, dash in (
        ("predicted", row.predicted.backward_end_ns, -1.4, "dot"),
        ("measured", row.measured_backward_end_ns, -1.0, "solid"),
    ):  # half of backward's row, with its length written in it, and a line down where it ends
        half = {"type": "rect", "x0": 0, "x1": ms(end_ns), "y0": top, "y1": top + 0.4, "fillcolor": NEUTRAL}
        font = {"color": "#FFFFFF", "size": 11}
        label = {"text": ms_text(end_ns), "font": font, "textposition": "middle right"}
        shapes.append({**half, **_EDGE, "label": label})
        shapes.append(instant(ms(end_ns), f"backward ends, {name}", dash=dash))
    shown = [pairs[place].index for place in range(0, len(pairs), max(1, len(pairs) // 20))]
    rows = {"tickvals": [-1, *shown], "ticktext": ["backward", *map(str, shown)]}
    return figure(
        traces,
        min(900, 174 + 34 * len(pairs)),
        xaxis={"title": TIME_AXIS, "rangemode": "tozero"},
        yaxis={"title": "bucket", "range": [len(pairs) - 0.5, -1.5], "showgrid": False, **rows},
        shapes=shapes,
        barmode="overlay",
    )


_SPREAD = 0.6  # the share of a row that its iterations are spread over, in order


def draw_strips(record: Record, agreement: Agreement) -> go.Figure:
    """A row a candidate, the fastest measured first: its iterations from top to bottom, their median, and the
    prediction as a line.

    Iterations with the recording hook are marked apart: it adds its own cost.
    """
    measured = {one.name: one for one in record.candidates}
    rows = fastest_first(agreement)
    traces = []
    for name, colour, symbol, kind in (
        ("measured, one iteration", ALARM, "circle", "iterations"),
        ("measured with the recording hook", NEUTRAL, "circle-open", "traced"),
    ):
        points = []
        for place, row in enumerate(rows):
            steps = [one.step_ns for one in getattr(measured[row.name], kind)]
            for number, time in enumerate(steps):
                off = format_percent(time / row.measured_step_ns - 1, 2, sign=True)
                text = f"iteration {number + 1} of {len(steps)}: {ms(time):,.2f} ms, {off} from the median"
                height = _SPREAD * (number / (len(steps) - 1) - 0.5) if len(steps) > 1 else 0.0
                points.append((ms(time), place + height, f"{safe(row.name)}<br>{text}"))
        if points:
            xs, ys, texts = zip(*points, strict=True)
            traces.append(dots(name, xs, ys, colour, symbol=symbol, hover=texts, marker={"opacity": 0.8}))
    traces.append(_uprights("median", ALARM, [(row.name, row.measured_step_ns) for row in rows], 2))
    traces.append(_uprights("predicted", ACCENT, [(row.name, row.predicted_step_ns) for row in rows], 4))
    names = [safe(row.name, 30) for row in rows]
    axis = {"tickvals": [*range(len(rows))], "ticktext": names, "range": [len(rows) - 0.4, -0.6]}
    axes = {"xaxis": {"title": "step time, ms"}, "yaxis": axis | {"showgrid": False}}
    return figure(traces, 120 + 36 * len(rows), **axes)


def _uprights(name: str, colour: str, times: Sequence[tuple[str, int]], width: int) -> Trace:
    """A short upright line in each row."""
    xs = [at for _, time in times for at in (ms(time), ms(time), None)]
    ys = [at for row in range(len(times)) for at in (row - 0.42, row + 0.42, None)]
    words = [text for row, _ in times for text in (safe(row), safe(row), "")]
    hover = {f"%{{customdata}}<br>{name} %{{x:,.2f}} ms": words}
    return line(name, xs, ys, colour, width=width, hover=hover)
