"""The jitter band of the sweep: where 95 of 100 single steps lie under each cap, behind the curve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.figures.style import ACCENT, ALARM, ms
from sim.nouns.band import BandPoint

DEFAULT, ZERO = "default", "0"  # the column left of the axis: what a logarithm cannot hold
_NAME = "95 of 100 steps"
_SHADE = "rgba(0,114,178,0.18)"


@dataclass(frozen=True, slots=True, kw_only=True)
class BandRow:
    """The range of single steps under one cap (MiB; None is DDP's default), in ms."""

    cap_mb: float | None
    low_ms: float
    high_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """``curve`` ascends in caps above 0; ``beside`` is what stands in the column left of the axis."""

    curve: tuple[BandRow, ...]
    beside: tuple[BandRow, ...]


def band_data(points: Sequence[BandPoint]) -> Band | None:
    """The band of ``sim.step_band``; None where nothing varies."""
    if not points:
        return None
    rows = [_row(point) for point in points]
    return Band(
        curve=tuple(sorted((row for row in rows if row.cap_mb), key=lambda row: row.cap_mb or 0.0)),
        beside=tuple(row for row in rows if not row.cap_mb),
    )


def _row(point: BandPoint) -> BandRow:
    return BandRow(cap_mb=point.cap_mb, low_ms=ms(point.low_ns), high_ms=ms(point.high_ns))


def place(cap_mb: float | None) -> str:
    """Where in the left column a cap stands that the axis cannot hold."""
    return DEFAULT if cap_mb is None else ZERO


def band_traces(band: Band) -> list[dict[str, Any]]:
    """The band as traces of the sweep, below its curve; clicks pass through to the points."""
    behind: dict[str, Any] = {"type": "scatter", "yaxis": "y", "hoverinfo": "skip", "zorder": -1}
    rows = band.curve
    traces = [
        {
            **behind,
            "name": _NAME,
            "xaxis": "x2",
            "mode": "lines",
            "x": [row.cap_mb for row in (*rows, *rows[::-1])],
            "y": [*(row.high_ms for row in rows), *(row.low_ms for row in rows[::-1])],
            "fill": "toself",
            "fillcolor": _SHADE,
            "line": {"width": 0, "color": ACCENT},
        }
    ]
    for row in band.beside:
        at = place(row.cap_mb)
        traces.append(
            {
                **behind,
                "name": _NAME,
                "xaxis": "x",
                "mode": "lines",
                "x": [at, at],
                "y": [row.low_ms, row.high_ms],
                "line": {"width": 10, "color": ALARM},
                "opacity": 0.3,
                "showlegend": False,
            }
        )
    return traces
