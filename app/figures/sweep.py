"""The sweep curve: step time over ``bucket_cap_mb``, with DDP's default as a point of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from app.figures.style import ACCENT, ALARM, GOOD, GRID, LINE, MIB_TICKS, built, mib_text, ms
from sim.nouns.recommendation import Plateau
from sim.tuner.gain import BandPoint
from sim.tuner.sweep import SweepRow
from sim.units import format_ms, format_number, format_percent, format_size

DEFAULT, ZERO = "default", "0"  # the column left of the axis: what a logarithm cannot hold
_ZONE = "rgba(0,158,115,0.16)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One candidate; ``cap_mb`` is None for DDP's default. Times in ms."""

    cap_mb: float | None
    step_ms: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepData:
    """All that the figure draws; ``zones_mb`` are stretches of caps that are as good as the best."""

    curve: tuple[SweepPoint, ...]
    beside: tuple[SweepPoint, ...]
    recommended: SweepPoint | None
    zones_mb: tuple[tuple[float, float], ...]
    chosen: SweepPoint | None
    optimum_ms: float | None


def sweep_data(
    rows: Sequence[SweepRow],
    plateau: Plateau | None = None,
    *,
    chosen_cap_mb: float | None = None,
    chosen_step_ns: int | None = None,
    optimum_step_ns: int | None = None,
    recommended_cap_mb: float | None = None,
) -> SweepData:
    """Points of a sweep.

    Args:
        rows: the sweep; the row without a cap is DDP's default.
        plateau: the caps within its tolerance of the best.
        chosen_cap_mb: the explicit cap that the page shows, if it shows one.
        chosen_step_ns: that cap's step.
        optimum_step_ns: the step of the best buckets found, which no single cap may reach.
        recommended_cap_mb: the cap to set, if one is.
    """
    points = [_point(row) for row in rows]
    curve = tuple(sorted((p for p in points if p.cap_mb), key=lambda p: p.cap_mb or 0.0))
    chosen = None
    if chosen_cap_mb is not None and chosen_step_ns is not None:
        text = f"<b>shown: {format_number(chosen_cap_mb, 6)} MiB</b><br>step {format_ms(chosen_step_ns)}"
        chosen = SweepPoint(cap_mb=chosen_cap_mb, step_ms=ms(chosen_step_ns), text=text)
    return SweepData(
        curve=curve,
        beside=tuple(point for point in points if not point.cap_mb),
        recommended=next((point for point in curve if point.cap_mb == recommended_cap_mb), None),
        zones_mb=() if plateau is None else _zones(curve, plateau),
        chosen=chosen,
        optimum_ms=None if optimum_step_ns is None else ms(optimum_step_ns),
    )


def _zones(curve: Sequence[SweepPoint], plateau: Plateau) -> tuple[tuple[float, float], ...]:
    """The plateau's stretches as far as the curve goes."""
    if not curve:
        return ()
    first, last = curve[0].cap_mb or 0.0, curve[-1].cap_mb or 0.0
    clipped = [(max(low, first), min(high, last)) for low, high in plateau.stretches_mb]
    return tuple((low, high) for low, high in clipped if low <= high)


def _point(row: SweepRow) -> SweepPoint:
    name = "DDP's default" if row.bucket_cap_mb is None else f"cap {format_number(row.bucket_cap_mb, 6)} MiB"
    text = "<br>".join(
        [
            f"<b>{name}</b>",
            f"step {format_ms(row.step_ns)}",
            f"exposed {format_ms(row.exposed_comm_ns)}, overlap {format_percent(row.overlap_ratio, 0)}",
            f"{row.num_buckets} buckets, the largest {format_size(row.largest_bucket_bytes)}",
        ]
    )
    return SweepPoint(cap_mb=row.bucket_cap_mb, step_ms=ms(row.step_ns), text=text)


def draw_sweep(data: SweepData, band: Sequence[BandPoint] = (), star: str = "recommended cap") -> go.Figure:
    """The curve on a logarithmic axis; left of it, in a column of its own, DDP's default.

    ``customdata`` of each point is [hover text, cap in MiB or None], so that a click tells its cap. ``band``
    lies behind the curve; ``star`` names the cap that is marked.
    """
    traces = []
    if data.beside:
        traces.append(_points("x", data.beside, "DDP's default", symbol="diamond", size=13, colour=ALARM))
    if data.curve:
        traces.append(_points("x2", data.curve, "bucket_cap_mb", mode="lines+markers", size=7, colour=ACCENT))
    if data.recommended is not None:
        traces.append(_points("x2", (data.recommended,), star, symbol="star", size=16, colour=GOOD))
    if data.chosen is not None:
        axis = "x2" if data.chosen.cap_mb else "x"
        traces.append(_points(axis, (data.chosen,), "shown", symbol="circle-open", size=18, colour=LINE))
    if band:
        traces += band_traces(band)
    # A little wider than its caps, so that a stretch of one cap can be seen.
    shapes = [_zone(low / 1.03, high * 1.03) for low, high in data.zones_mb]
    default = next((point for point in data.beside if point.cap_mb is None), None)
    if default is not None:
        shapes += _across(default.step_ms, ALARM, "dash")
    if data.optimum_ms is not None:
        shapes += _across(data.optimum_ms, GOOD, "dot")
    return built(
        traces,
        300,
        xaxis={"type": "category", "domain": [0, 0.1]},
        yaxis={"title": {"text": "step time, ms"}},
        shapes=shapes,
        xaxis2={
            "type": "log",
            "domain": [0.11, 1],
            "anchor": "y",
            "title": {"text": "bucket_cap_mb, MiB (log)"},
            "tickvals": MIB_TICKS,
            "ticktext": [mib_text(tick) for tick in MIB_TICKS],
            "automargin": True,
            "gridcolor": GRID,
            "zeroline": False,
        },
        showlegend=True,
        clickmode="event+select",
    )


def _zone(low_mb: float, high_mb: float) -> dict[str, Any]:
    place = {"type": "rect", "xref": "x2", "x0": low_mb, "x1": high_mb, "yref": "y domain", "y0": 0, "y1": 1}
    return {**place, "fillcolor": _ZONE, "line": {"width": 0}, "layer": "below"}


def _across(step_ms: float, colour: str, dash: str) -> list[dict[str, Any]]:
    """A level line over both columns."""
    line = {"color": colour, "dash": dash, "width": 1.5}
    place = {"type": "line", "x0": 0, "x1": 1, "yref": "y", "y0": step_ms, "y1": step_ms, "line": line}
    return [{**place, "xref": f"{axis} domain"} for axis in ("x", "x2")]


def _points(
    axis: str,
    points: Sequence[SweepPoint],
    name: str,
    *,
    mode: str = "markers",
    symbol: str = "circle",
    size: int,
    colour: str,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "xaxis": axis,
        "yaxis": "y",
        "name": name,
        "mode": mode,
        "x": [place(point.cap_mb) if axis == "x" else point.cap_mb for point in points],
        "y": [point.step_ms for point in points],
        "marker": {"symbol": symbol, "size": size, "color": colour, "line": {"width": 2, "color": colour}},
        "line": {"color": colour, "width": 2},
        "customdata": [[point.text, point.cap_mb] for point in points],
        "hovertemplate": "%{customdata[0]}<extra></extra>",
        "unselected": {"marker": {"opacity": 1}},
    }


def place(cap_mb: float | None) -> str:
    """Where in the left column a cap stands that the axis cannot hold."""
    return DEFAULT if cap_mb is None else ZERO


def band_traces(points: Sequence[BandPoint]) -> list[dict[str, Any]]:
    """The band as traces of the sweep, below its curve; clicks pass through to the points."""
    behind: dict[str, Any] = {"type": "scatter", "yaxis": "y", "hoverinfo": "skip", "zorder": -1}
    behind |= {"name": "95 of 100 steps", "mode": "lines"}
    rows = sorted((row.cap_mb, ms(row.low_ns), ms(row.high_ns)) for row in points if row.cap_mb)
    traces = [
        {
            **behind,
            "xaxis": "x2",
            "x": [cap for cap, _, _ in (*rows, *rows[::-1])],
            "y": [*(high for _, _, high in rows), *(low for _, low, _ in rows[::-1])],
            "fill": "toself",
            "fillcolor": "rgba(0,114,178,0.18)",
            "line": {"width": 0, "color": ACCENT},
        }
    ]
    for point in points:
        if not point.cap_mb:
            at, line = place(point.cap_mb), {"width": 10, "color": ALARM}
            ends = [ms(point.low_ns), ms(point.high_ns)]
            more = {"line": line, "opacity": 0.3, "showlegend": False}
            traces.append({**behind, "xaxis": "x", "x": [at, at], "y": ends, **more})
    return traces
