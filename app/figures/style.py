"""Colours, units and the frame that all figures share."""

import html
from typing import Any

import plotly.graph_objects as go

from sim.units import NS_PER_MS

# Okabe and Ito's colours for all kinds of sight, without black and yellow: one vanishes on a dark
# page, the other on a light one.
BUCKETS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
NEUTRAL = "#8A8F98"  # reads on white and on near-black
LINE = "#7A7F87"
ACCENT = "#0072B2"
GOOD = "#009E73"
ALARM = "#D55E00"


def bucket_colour(bucket: int | None) -> str:
    """The colour of a bucket; what belongs to none is grey."""
    return NEUTRAL if bucket is None else BUCKETS[bucket % len(BUCKETS)]


def ms(ns: float) -> float:
    """Nanoseconds as milliseconds, for axes."""
    return ns / NS_PER_MS


def ms_text(ns: float) -> str:
    """Milliseconds for hovers, to the microsecond."""
    return f"{ns / NS_PER_MS:,.3f} ms"


def safe(text: str, limit: int = 60) -> str:
    """A name from a file, cut short, with nothing in it that plotly would read as markup."""
    return html.escape(text if len(text) <= limit else text[: limit - 1] + "…")


def framed(figure: go.Figure, height: int, **layout: Any) -> go.Figure:
    """The common frame: margins, transparent ground, a legend above."""
    settings: dict[str, Any] = {
        "height": height,
        "margin": {"l": 8, "r": 8, "t": 32, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "hoverlabel": {"align": "left"},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0},
        "showlegend": False,
    }
    figure.update_layout(**{**settings, **layout})
    figure.update_xaxes(automargin=True, gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    figure.update_yaxes(automargin=True, gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    return figure


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
