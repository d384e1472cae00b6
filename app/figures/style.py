"""Colours, units and the frame that all figures share."""

import html
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from sim.units import NS_PER_MS, format_number

# Okabe and Ito's colours for all kinds of sight, without black and yellow: one vanishes on a dark
# page, the other on a light one.
BUCKETS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
NEUTRAL = "#8A8F98"  # reads on white and on near-black
LINE = "#7A7F87"
ACCENT = "#0072B2"
GOOD = "#009E73"
ALARM = "#D55E00"
PATH = "#D81B60"  # of no bucket, and reads on white and on near-black
EXPOSED = "rgba(213,94,0,0.10)"  # the ground behind what backward does not hide
GRID = "rgba(128,128,128,0.25)"
TIME_AXIS = "time from the start of backward, ms"
# In the container, plotly keeps room for all rows of a legend: above, the plot begins beneath it. Where
# titles stand over the plot it goes below.
LEGEND_ABOVE = {"orientation": "h", "yref": "container", "yanchor": "top", "y": 1.0, "x": 0}
LEGEND_BELOW = LEGEND_ABOVE | {"yanchor": "bottom", "y": 0.0}
MIB_TICKS = tuple(2.0**power for power in range(-10, 17))  # of a logarithmic axis


def bucket_colour(bucket: int | None) -> str:
    """The colour of a bucket; what belongs to none is grey."""
    return NEUTRAL if bucket is None else BUCKETS[bucket % len(BUCKETS)]


def ms(ns: float) -> float:
    """Nanoseconds as milliseconds, for axes."""
    return ns / NS_PER_MS


def ms_text(ns: float) -> str:
    """Milliseconds for hovers, to the microsecond."""
    return f"{ns / NS_PER_MS:,.3f} ms"


def mib_text(mib: float) -> str:
    """What stands at a tick of ``MIB_TICKS``."""
    return format_number(mib) if mib < 1 else f"{mib:.0f}"


def safe(text: str, limit: int = 60) -> str:
    """A name from a file, cut short, with nothing in it that plotly would read as markup."""
    return html.escape(text if len(text) <= limit else text[: limit - 1] + "…")


def framed(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """The common frame: margins, transparent ground, a legend above."""
    figure.update_layout(**{**frame(height), **layout})
    figure.update_xaxes(automargin=True, gridcolor=GRID, zeroline=False)
    figure.update_yaxes(automargin=True, gridcolor=GRID, zeroline=False)
    return figure


def frame(height: int) -> dict[str, Any]:
    """The layout that all figures share."""
    return {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 32, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
        "legend": LEGEND_ABOVE,
        "showlegend": False,
        "uniformtext": {"minsize": 8, "mode": "hide"},  # words on bars too small for them are left out
    }


def built(
    traces: list[dict[str, Any]],
    height: int,
    *,
    xaxis: dict[str, Any],
    yaxis: dict[str, Any],
    shapes: Sequence[dict[str, Any]] = (),
    **layout: Any,
) -> go.Figure:
    """A figure with the common frame, made in one go and unchecked.

    Adding part by part takes plotly 35 ms for 161 gradients, all at once 11, without its checks 2; the page
    waits for that at every move. So a test checks what is built here.
    """
    axis = {"automargin": True, "gridcolor": GRID, "zeroline": False}
    settings = {**frame(height), **layout, "xaxis": axis | xaxis, "yaxis": axis | yaxis}
    return go.Figure(data=traces, layout={**settings, "shapes": list(shapes)}, _validate=False)


def instant(at_ms: float, name: str, *, dash: str) -> dict[str, Any]:
    """A vertical line for ``built``, named in the legend, as ``mark_instant`` adds it."""
    line = {"color": LINE, "width": 2, "dash": dash}
    return {
        "type": "line",
        "xref": "x",
        "x0": at_ms,
        "x1": at_ms,
        "yref": "y domain",
        "y0": 0,
        "y1": 1,
        "line": line,
        "name": name,
        "showlegend": True,
    }


def legend_entry(name: str, shape: str) -> dict[str, Any]:
    """A trace for ``built`` that says in the legend what a pattern means."""
    return {
        "type": "bar",
        "name": name,
        "x": [None],
        "y": [None],
        "showlegend": True,
        "marker": {"color": NEUTRAL, "pattern": hatch(shape)},
    }


def mark_instant(figure: go.Figure, at_ms: float, name: str, *, dash: str) -> None:
    """A vertical line, named in the legend: words beside two near lines would cover each other."""
    figure.add_vline(x=at_ms, line={"color": LINE, "width": 2, "dash": dash}, name=name, showlegend=True)


def hatch(shape: str | list[str]) -> dict[str, Any]:
    """A pattern drawn in white over a bar's own colour; an empty shape is none."""
    return {
        "shape": shape,
        "fillmode": "overlay",
        "fgcolor": "#FFFFFF",
        "fgopacity": 0.8,
        "size": 7,
        "solidity": 0.25,
    }


def explain(figure: go.Figure, name: str, shape: str) -> None:
    """A legend entry that says what a pattern means."""
    figure.add_bar(name=name, x=[None], y=[None], marker={"color": NEUTRAL, "pattern": hatch(shape)})


def area(
    name: str, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], colour: str, **more: Any
) -> dict[str, Any]:
    """A scatter that fills what lies between two curves, in a pale ``colour``."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return {
        "name": name,
        "x": [*xs, *reversed(xs)],
        "y": [*lows, *reversed(highs)],
        "mode": "lines",
        "fill": "toself",
        "fillcolor": f"rgba({red},{green},{blue},0.15)",
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        **more,
    }
