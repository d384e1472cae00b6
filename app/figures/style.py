"""Colours, units, traces and the frame that all figures share."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from sim.units import NS_PER_MS, format_number

Trace = dict[str, Any]  # as plotly takes one
Values = Iterable[Any]
Hover = Values | Mapping[str, Values] | str | None

# Okabe and Ito's colours for all kinds of sight, without black and yellow: one vanishes on a dark
# page, the other on a light one.
BUCKETS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
NEUTRAL = "#8A8F98"  # reads on white and on near-black
LINE = "#7A7F87"
ACCENT, GOOD, ALARM = "#0072B2", "#009E73", "#D55E00"
PATH = "#D81B60"  # of no bucket, and reads on white and on near-black
EXPOSED = "rgba(213,94,0,0.10)"  # the ground behind what backward does not hide
TIME_AXIS = "time from the start of backward, ms"
# In the container, plotly keeps room for all rows of a legend: above, the plot begins beneath it. Where
# titles stand over the plot it goes below.
LEGEND_ABOVE = {"orientation": "h", "yref": "container", "yanchor": "top", "y": 1.0, "x": 0}
LEGEND_BELOW = LEGEND_ABOVE | {"yanchor": "bottom", "y": 0.0}
MIB_TICKS = tuple(2.0**power for power in range(-10, 17))  # of a logarithmic axis
_AXIS = {"automargin": True, "gridcolor": "rgba(128,128,128,0.25)", "zeroline": False}
_FRAME = {
    "margin": {"l": 8, "r": 8, "t": 32, "b": 8},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "hoverlabel": {"align": "left"},
    "legend": LEGEND_ABOVE,
    "showlegend": True,
    "uniformtext": {"minsize": 8, "mode": "hide"},  # words on bars too small for them are left out
}


def bucket_colour(bucket: int | None) -> str:
    """The colour of a bucket; what belongs to none is grey."""
    return NEUTRAL if bucket is None else BUCKETS[bucket % len(BUCKETS)]


def ms(ns: float) -> float:
    """Nanoseconds as milliseconds, for axes."""
    return ns / NS_PER_MS


def ms_text(ns: float) -> str:
    """Milliseconds for hovers, to the microsecond."""
    return f"{ns / NS_PER_MS:,.3f} ms"


def mib_ticks(ticks: Sequence[float] = MIB_TICKS) -> dict[str, Any]:
    """The settings of a logarithmic axis of MiB."""
    texts = [format_number(mib) if mib < 1 else f"{mib:.0f}" for mib in ticks]
    return {"type": "log", "tickvals": list(ticks), "ticktext": texts}


def safe(text: str, limit: int = 60) -> str:
    """A name from a file, cut short, with nothing in it that plotly would read as markup."""
    return html.escape(text if len(text) <= limit else text[: limit - 1] + "…")


def figure(traces: Iterable[Trace], height: int, *, grid: go.Figure = None, **layout: Any) -> go.Figure:
    """The traces in the common frame: margins, transparent ground, a legend above.

    ``grid`` is an empty figure of several panels (``make_subplots``), whose traces say theirs (``panel``).
    ``layout`` goes before all else; axes are named as plotly does (``xaxis2``). All is made in one go: adding
    part by part takes plotly three times as long.
    """
    base = {} if grid is None else grid.layout.to_plotly_json()
    axes = {name for name in ("xaxis", "yaxis", *base, *layout) if name[1:5] == "axis"}
    settings = {**_FRAME, "height": height, **base, **layout}
    settings |= {name: {**_AXIS, **base.get(name, {}), **layout.get(name, {})} for name in axes}
    if grid is not None:  # titles of panels, on their left where one stands above the other
        place = {"x": 0, "xanchor": "left"} if "xaxis2" in base and base["xaxis2"]["domain"][0] == 0 else {}
        titles = base.get("annotations", ())
        settings["annotations"] = [{**one, "font": {"size": 13}, **place} for one in titles]
    return go.Figure(data=list(traces), layout=settings)


def panel(number: int) -> dict[str, Any]:
    """The axes of a panel of the grid, from 1, row by row."""
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"} if number > 1 else {"xaxis": "x", "yaxis": "y"}


def _told(hover: Hover) -> dict[str, Any]:
    """What a hover says: a text a point, a template of plotly's with data or without, or nothing."""
    if hover is None:
        return {"hoverinfo": "skip"}
    if isinstance(hover, str):
        return {"hovertemplate": f"{hover}<extra></extra>"}
    (template, data), *_ = hover.items() if isinstance(hover, Mapping) else [("%{customdata}", hover)]
    return {"customdata": list(data), "hovertemplate": f"{template}<extra></extra>"}


def dots(name: str | None, xs: Values, ys: Values, colour: Any, hover: Hover = None, **more: Any) -> Trace:
    """Points, of ``size`` and ``symbol``; with another ``mode`` also the line that joins them."""
    size, symbol = more.pop("size", 7), more.pop("symbol", "circle")
    look = {"color": colour, "size": size, "symbol": symbol, **more.pop("marker", {})}
    points = {"type": "scatter", "name": name, "mode": "markers", "x": list(xs), "y": list(ys)}
    return {**points, "marker": look, **_told(hover), **more}


def line(name: str | None, xs: Values, ys: Values, colour: str, hover: Hover = None, **more: Any) -> Trace:
    """A line through points, of ``width`` and ``dash``; None breaks it."""
    width, dash = more.pop("width", 2), more.pop("dash", "solid")
    look = {"color": colour, "width": width, "dash": dash, **more.pop("line", {})}
    points = {"type": "scatter", "name": name, "mode": "lines", "x": list(xs), "y": list(ys)}
    return {**points, "line": look, **_told(hover), **more}


def bars(
    name: str | None, rows: Values, lengths: Values, colour: Any, hover: Hover = None, **more: Any
) -> Trace:
    """Bars that lie, in the rows of their labels; of a ``pattern``, or of one each."""
    # A pattern is drawn in white over a bar's own colour; an empty shape is none.
    hatch = {"fillmode": "overlay", "fgcolor": "#FFFFFF", "fgopacity": 0.8, "size": 7, "solidity": 0.25}
    hatch |= {"shape": more.pop("pattern", "")}
    look = {"color": colour, "pattern": hatch, **more.pop("marker", {})}
    drawn = {"type": "bar", "orientation": "h", "name": name, "y": list(rows), "x": list(lengths)}
    return {**drawn, "marker": look, **_told(hover), **more}


def area(
    name: str, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], colour: str, **more: Any
) -> Trace:
    """What lies between two curves, in a pale ``colour``."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    fill = {"fill": "toself", "fillcolor": f"rgba({red},{green},{blue},0.15)"}
    return line(name, [*xs, *reversed(xs)], [*lows, *reversed(highs)], colour, width=0, **fill, **more)


def pattern_entry(name: str, pattern: str) -> Trace:
    """A trace that says in the legend what a pattern means."""
    return bars(name, [None], [None], NEUTRAL, pattern=pattern)


def _upright(kind: str, first: Any, last: Any) -> dict[str, Any]:
    return {"type": kind, "xref": "x", "x0": first, "x1": last, "yref": "y domain", "y0": 0, "y1": 1}


def instant(at: Any, name: str, *, dash: str = "solid", colour: str = LINE, **more: Any) -> dict[str, Any]:
    """A vertical line, named in the legend: words beside two near lines would cover each other."""
    look = {"color": colour, "width": 2, "dash": dash}
    return {**_upright("line", at, at), "line": look, "name": name, "showlegend": True, **more}


def stretch(low: Any, high: Any, colour: str, **more: Any) -> dict[str, Any]:
    """The ground of a plot from ``low`` to ``high``, in a colour."""
    look = {"fillcolor": colour, "line": {"width": 0}, "layer": "below"}
    return {**_upright("rect", low, high), **look, **more}


def level(at: float, colour: str = LINE, dash: str = "solid", axis: str = "") -> dict[str, Any]:
    """A level line across the plot of the axes of that number."""
    across = {"type": "line", "xref": f"x{axis} domain", "x0": 0, "x1": 1}
    look = {"color": colour, "dash": dash, "width": 1.5}
    return {**across, "yref": f"y{axis}", "y0": at, "y1": at, "line": look}


def rows_axis(names: Sequence[str]) -> dict[str, Any]:
    """An axis of rows, the first on top."""
    return {"categoryorder": "array", "categoryarray": list(names[::-1]), "showgrid": False}
