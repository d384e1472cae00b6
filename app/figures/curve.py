"""The all-reduce curve of a machine: time and bus bandwidth by size, the stated range, the method."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import ACCENT, BUCKETS, LEGEND_BELOW, LINE, framed, safe
from sim.nouns.hardware import CurvePoint, Hardware
from sim.units import NS_PER_S, format_number, format_size

_SIZE_TICKS = tuple(1 << power for power in range(10, 34, 5))
_TIME_TICKS = {  # in us
    1: "1 us",
    10: "10 us",
    100: "100 us",
    1_000: "1 ms",
    10_000: "10 ms",
    100_000: "100 ms",
    1_000_000: "1 s",
    10_000_000: "10 s",
    100_000_000: "100 s",
}
_BAND = "rgba(0,114,178,0.15)"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """One size: its time, the range about it where one is stated, its bus bandwidth, and by which method.

    Bus bandwidth is nccl-tests': ``2 (n - 1) / n`` times bytes over time; None where that has no meaning.
    """

    num_bytes: int
    duration_ns: int
    low_ns: int
    high_ns: int
    bytes_per_s: float | None
    low_bytes_per_s: float | None
    high_bytes_per_s: float | None
    method: str


def curve_rows(hardware: Hardware) -> list[CurveRow]:
    """The points of the all-reduce curve that carry something."""
    methods = hardware.provenance.get("methods")
    factor = 2 * (hardware.world_size - 1) / hardware.world_size
    rows = []
    for point in hardware.all_reduce:
        if not point.num_bytes:
            continue
        low, high = _stated(hardware, point)

        def bus(duration_ns: int, num_bytes: int = point.num_bytes) -> float | None:
            return factor * num_bytes * NS_PER_S / duration_ns if duration_ns and factor else None

        rows.append(
            CurveRow(
                num_bytes=point.num_bytes,
                duration_ns=point.duration_ns,
                low_ns=low,
                high_ns=high,
                bytes_per_s=bus(point.duration_ns),
                low_bytes_per_s=bus(high),
                high_bytes_per_s=bus(low),
                method=str(methods.get(str(point.num_bytes), "")) if isinstance(methods, dict) else "",
            )
        )
    return rows


def _stated(hardware: Hardware, point: CurvePoint) -> tuple[int, int]:
    """The range that a file states for a point; itself where it states none."""
    found = hardware.spread.get("all_reduce", {}).get(str(point.num_bytes), {})
    low, high = found.get("min_ns"), found.get("max_ns")
    if low is not None and high is not None and low <= point.duration_ns <= high:
        return low, high
    return point.duration_ns, point.duration_ns


def draw_curve(rows: Sequence[CurveRow]) -> go.Figure:
    """Time and bus bandwidth over size; a colour for each algorithm and protocol, the range as a band."""
    figure = make_subplots(cols=2, horizontal_spacing=0.13, subplot_titles=("Time", "Bus bandwidth, GB/s"))
    if any(row.low_ns < row.high_ns for row in rows):
        times = [row for row in rows if row.low_ns and row.high_ns]
        rates = [row for row in rows if row.low_bytes_per_s and row.high_bytes_per_s]
        _band(figure, 1, times, [us(row.low_ns) for row in times], [us(row.high_ns) for row in times])
        lows = [(row.low_bytes_per_s or 0) / 1e9 for row in rates]
        _band(figure, 2, rates, lows, [(row.high_bytes_per_s or 0) / 1e9 for row in rates])
    for column in (1, 2):
        figure.add_scatter(
            row=1,
            col=column,
            x=[row.num_bytes for row in rows],
            y=[_height(row, column) for row in rows],
            mode="lines",
            line={"color": LINE, "width": 1},
            hoverinfo="skip",
            showlegend=False,
        )
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        members = [row for row in rows if row.method == method]
        colour = ACCENT if not method else BUCKETS[number % len(BUCKETS)]
        for column in (1, 2):
            figure.add_scatter(
                row=1,
                col=column,
                name=safe(method) or "measured",
                legendgroup=method,
                showlegend=column == 1,
                x=[row.num_bytes for row in members],
                y=[_height(row, column) for row in members],
                mode="markers",
                marker={"size": 8, "color": colour},
                customdata=[row_text(row) for row in members],
                hovertemplate="%{customdata}<extra></extra>",
            )
    figure.update_xaxes(
        type="log",
        title="size (log)",
        tickvals=_SIZE_TICKS,
        ticktext=[format_size(tick) for tick in _SIZE_TICKS],
    )
    figure.update_yaxes(
        type="log",
        title="time (log)",
        tickvals=list(_TIME_TICKS),
        ticktext=list(_TIME_TICKS.values()),
        row=1,
        col=1,
    )
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.update_annotations(font_size=13)
    return framed(
        figure,
        380,
        showlegend=True,
        legend=LEGEND_BELOW,
    )


def us(ns: float) -> float:
    """Nanoseconds as microseconds, for axes."""
    return ns / 1000


def _height(row: CurveRow, column: int) -> float | None:
    if column == 1:
        return us(row.duration_ns) if row.duration_ns else None
    return None if row.bytes_per_s is None else row.bytes_per_s / 1e9


def row_text(row: CurveRow) -> str:
    """The hover of one size."""
    lines = [
        f"<b>{format_size(row.num_bytes)}</b>{f', {safe(row.method)}' if row.method else ''}",
        f"{us(row.duration_ns):,.1f} us",
    ]
    if row.low_ns < row.high_ns:
        lines[1] += f", stated range {us(row.low_ns):,.1f} to {us(row.high_ns):,.1f} us"
    if row.bytes_per_s is not None:
        lines.append(f"bus bandwidth {format_number(row.bytes_per_s / 1e9, 4)} GB/s")
    return "<br>".join(lines)


def _band(
    figure: go.Figure, column: int, rows: Sequence[CurveRow], lows: Sequence[float], highs: Sequence[float]
) -> None:
    sizes = [row.num_bytes for row in rows]
    figure.add_scatter(
        row=1,
        col=column,
        name="stated range",
        legendgroup="range",
        showlegend=column == 1,
        x=[*sizes, *reversed(sizes)],
        y=[*lows, *reversed(highs)],
        mode="lines",
        fill="toself",
        fillcolor=_BAND,
        line={"width": 0, "color": ACCENT},
        hoverinfo="skip",
    )
