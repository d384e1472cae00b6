"""Scaling: efficiency, exposed communication and the best ``bucket_cap_mb`` against world size."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.scaling_words import CURVES, Curve, cap_text, percent, text_of
from app.figures.style import (
    ACCENT,
    BUCKETS,
    GOOD,
    LEGEND_BELOW,
    LINE,
    MIB_TICKS,
    framed,
    mib_text,
    ms,
    safe,
)
from sim.nouns.scaling_row import ScalingRow

_HEIGHT = 780
_MOST_TICKS = 16


def series_of(rows: Sequence[ScalingRow]) -> dict[str, list[ScalingRow]]:
    """Rows by the series that they belong to, each by world size; a single series has no name."""
    found: dict[tuple[str, ...], list[ScalingRow]] = {}
    for row in rows:
        beside = f"beside {row.beside_ranks:,} GPUs" if row.beside_ranks else ""
        found.setdefault((row.machine, row.settings, beside), []).append(row)
    return {
        _series_name(key, list(found)): sorted(members, key=lambda row: row.world_size)
        for key, members in found.items()
    }


def _series_name(key: tuple[str, ...], keys: Sequence[tuple[str, ...]]) -> str:
    """What tells a series from the others."""
    differs = [len({other[place] for other in keys}) > 1 for place in range(len(key))]
    return ", ".join(word or "as it is" for word, differ in zip(key, differs, strict=True) if differ)


def scaling_figure(rows: Sequence[ScalingRow]) -> go.Figure:
    """Three panels over world size, on logarithmic axes: efficiency, exposed communication, the best cap.

    The band about the best cap's efficiency is the range of the all-reduce curve, that about the cap holds
    the caps around it within 0.1 % of the best; where the best cap changes, a hover says why.
    """
    figure = make_subplots(
        rows=3,
        shared_xaxes=True,
        vertical_spacing=0.06,
        subplot_titles=("Efficiency", "Exposed communication", "Best bucket_cap_mb"),
    )
    series = series_of(rows)
    low, high = _cap_range(rows)
    for number, (name, members) in enumerate(series.items()):
        for curve in CURVES:
            colour = curve.colour if len(series) == 1 else BUCKETS[number % len(BUCKETS)]
            _curve(figure, curve, name, members, colour)
        colour = ACCENT if len(series) == 1 else BUCKETS[number % len(BUCKETS)]
        _range(figure, members, colour)
        _mean(figure, name, members, colour)
        _caps(figure, name, members, colour, (low, high), is_told=number == 0)
    sizes = sorted({row.world_size for row in rows})
    caps = MIB_TICKS if high / low < 100 else MIB_TICKS[::2]
    ticks = sizes if len(sizes) <= _MOST_TICKS else None
    figure.update_xaxes(
        type="log", tickvals=ticks, ticktext=None if ticks is None else [f"{size:,}" for size in ticks]
    )
    figure.update_xaxes(title="world size, ranks (log)", row=3, col=1)
    figure.update_yaxes(title="of one GPU alone, %", row=1, col=1)
    figure.update_yaxes(title="ms a step", rangemode="tozero", row=2, col=1)
    figure.update_yaxes(
        type="log",
        title="MiB (log)",
        tickvals=caps,
        ticktext=[mib_text(cap) for cap in caps],
        row=3,
        col=1,
    )
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    return framed(figure, _HEIGHT, showlegend=True, legend=LEGEND_BELOW)


def _curve(figure: go.Figure, curve: Curve, name: str, rows: Sequence[ScalingRow], colour: str) -> None:
    words = f"{curve.name}, {safe(name)}" if name else curve.name
    texts = [text_of(curve, row) for row in rows]
    panels = [
        [100 * curve.efficiency(row) for row in rows],
        [ms(curve.exposed_ns(row)) for row in rows],
    ]
    for panel, ys in enumerate(panels, start=1):
        figure.add_scatter(
            row=panel,
            col=1,
            name=words,
            legendgroup=words,
            showlegend=panel == 1,
            x=[row.world_size for row in rows],
            y=ys,
            mode="lines+markers",
            line={"color": colour, "width": 2, "dash": curve.dash},
            marker={"symbol": curve.symbol, "size": 7, "color": colour},
            customdata=texts,
            hovertemplate="%{customdata}<extra></extra>",
        )


def _range(figure: go.Figure, rows: Sequence[ScalingRow], colour: str) -> None:
    """What the range of the curve makes of the best cap's efficiency."""
    if all(row.cap_step_low_ns == row.cap_step_high_ns for row in rows):
        return
    xs = [row.world_size for row in rows]
    most = [percent(row.single_step_ns, row.cap_step_low_ns) for row in rows]
    least = [percent(row.single_step_ns, row.cap_step_high_ns) for row in rows]
    _band(figure, 1, xs, least, most, colour, "best cap over the range of the curve")


def _band(
    figure: go.Figure,
    panel: int,
    xs: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
    colour: str,
    name: str,
    *,
    is_told: bool = True,
) -> None:
    """A band; of a single world size a bar, since a band of no width could not be seen."""
    if len(xs) == 1:
        xs, lows, highs = [xs[0] / 1.02, xs[0] * 1.02], [lows[0]] * 2, [highs[0]] * 2
    figure.add_scatter(
        row=panel,
        col=1,
        name=name,
        legendgroup=name,
        showlegend=is_told,
        x=[*xs, *reversed(xs)],
        y=[*lows, *reversed(highs)],
        mode="lines",
        fill="toself",
        fillcolor=_pale(colour),
        line={"width": 0, "color": colour},
        hoverinfo="skip",
    )


def _pale(colour: str) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"


def _mean(figure: go.Figure, name: str, rows: Sequence[ScalingRow], colour: str) -> None:
    """The mean of steps whose ranks jitter, where that was asked for."""
    shown = [(row, row.mean_step_ns) for row in rows if row.mean_step_ns is not None]
    if not shown:
        return
    words = "best cap, mean with jitter"
    figure.add_scatter(
        row=1,
        col=1,
        name=safe(f"{words}, {name}" if name else words),
        x=[row.world_size for row, _ in shown],
        y=[percent(row.single_step_ns, mean) for row, mean in shown],
        mode="lines+markers",
        line={"color": colour, "width": 1, "dash": "dashdot"},
        marker={"symbol": "x", "size": 7, "color": colour},
        customdata=[text_of(CURVES[1], row) for row, _ in shown],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _cap_range(rows: Sequence[ScalingRow]) -> tuple[float, float]:
    """From half the smallest cap to twice the largest: what stands for 0 and for no end on the axis."""
    caps = [cap for row in rows for cap in (row.bucket_cap_mb, row.cap_low_mb, row.cap_high_mb) if cap]
    return min(caps, default=1.0) / 2, max(caps, default=1.0) * 2


def _caps(
    figure: go.Figure,
    name: str,
    rows: Sequence[ScalingRow],
    colour: str,
    limits: tuple[float, float],
    *,
    is_told: bool,
) -> None:
    low, high = limits
    xs = [row.world_size for row in rows]
    lows = [max(row.cap_low_mb, low) for row in rows]
    highs = [high if row.cap_high_mb is None else row.cap_high_mb for row in rows]
    _band(
        figure,
        3,
        xs,
        lows,
        highs,
        GOOD if not name else colour,
        "caps around the best within 0.1 % of it",
        is_told=is_told,
    )
    figure.add_scatter(
        row=3,
        col=1,
        name=safe(f"best cap, {name}") if name else "best cap",
        legendgroup=f"best cap, {name}" if name else "best cap",
        showlegend=False,
        x=xs,
        y=[max(row.bucket_cap_mb, low) for row in rows],
        mode="lines+markers",
        line={"color": colour, "width": 2},
        marker={"size": 7, "color": colour},
        customdata=[cap_text(row) for row in rows],
        hovertemplate="%{customdata}<extra></extra>",
    )
    changes = [row for row in rows if row.reason]
    if changes:
        figure.add_scatter(
            row=3,
            col=1,
            name="best cap changes: hover for why",
            legendgroup="changes",
            showlegend=is_told,
            x=[row.world_size for row in changes],
            y=[max(row.bucket_cap_mb, low) for row in changes],
            mode="markers",
            marker={"symbol": "circle-open", "size": 17, "color": LINE, "line": {"width": 2}},
            customdata=[cap_text(row) for row in changes],
            hovertemplate="%{customdata}<extra></extra>",
        )
