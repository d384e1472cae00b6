"""Is it true? Predicted over measured: all records, all candidates of one, its buckets, iterations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    area,
    bucket_colour,
    framed,
    hatch,
    mark_instant,
    ms,
    ms_text,
    safe,
)
from sim.nouns.measurement import MeasuredBucket, Record
from sim.nouns.report import BucketRow
from sim.truth.attribution import Attribution
from sim.truth.scoring import Agreement, CandidateAgreement
from sim.units import MIB, format_number, format_percent

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
    ends = [low, high]
    if band is not None:
        lows, highs = [end * (1 - band) for end in ends], [end * (1 + band) for end in ends]
        figure.add_scatter(**area(f"within {band:.0%}, as the rule asks of each", ends, lows, highs, GOOD))
    line = {"color": NEUTRAL, "width": 2}
    figure.add_scatter(name="no error", x=ends, y=ends, mode="lines", line=line, hoverinfo="skip")
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
        customdata=[_point_text(point) for point in points],
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
                customdata=[(_point_text(point), point.record) for point in own],
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


def _point_text(point: ParityPoint) -> str:
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


def draw_overlay(row: CandidateAgreement) -> go.Figure:
    """A row a bucket: predicted above, measured (outlined, hatched) below, on one axis of time."""
    figure, pairs = go.Figure(), overlay_data(row)
    halves = (
        ("predicted", -0.4, "", [(pair, pair.predicted) for pair in pairs]),
        ("measured", 0.0, "/", [(pair, pair.measured) for pair in pairs if pair.measured is not None]),
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
            marker={"color": [bucket_colour(pair.index) for pair, _ in rows], "pattern": hatch(pattern)},
            customdata=[_pair_text(pair) for pair, _ in rows],
            hovertemplate="%{customdata}<extra></extra>",
        )
    for name, end_ns, top, dash in (
        ("predicted", row.predicted.backward_end_ns, -1.4, "dot"),
        ("measured", row.measured_backward_end_ns, -1.0, "solid"),
    ):
        _backward(figure, f"backward ends, {name}", end_ns, top, dash)
    shown = range(0, len(pairs), max(1, len(pairs) // 20))
    figure.update_yaxes(
        title="bucket",
        range=[len(pairs) - 0.5, -1.5],
        tickvals=[-1, *(pairs[place].index for place in shown)],
        ticktext=["backward", *(str(pairs[place].index) for place in shown)],
        showgrid=False,
    )
    figure.update_xaxes(title=TIME_AXIS, rangemode="tozero")
    height = min(900, 174 + 34 * len(pairs))
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
    _uprights(figure, "median", ALARM, strips, [strip.median_ns for strip in strips], 2)
    _uprights(figure, "predicted", ACCENT, strips, [strip.predicted_ns for strip in strips], 4)
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


def _uprights(
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
