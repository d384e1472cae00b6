"""What a limit on the largest bucket costs: the best step over the memory that buckets may take at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.style import ACCENT, GOOD, MIB_TICKS, NEUTRAL, framed, mib_text, ms
from sim.nouns.memory import MemoryPoint
from sim.units import MIB, format_ms, format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitPoint:
    """The best step, in ms, whose largest bucket has ``largest_mb`` MiB; ``text`` for hovering."""

    largest_mb: float
    step_ms: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryData:
    """All that the figure draws.

    ``front`` ascends: buckets grow and steps shrink. ``out_of_reach_mb`` is the largest limit that was asked
    for and cannot be kept, as a single gradient is larger; None: there was none.
    """

    front: tuple[LimitPoint, ...]
    fastest: LimitPoint | None
    out_of_reach_mb: float | None


def memory_data(points: Sequence[MemoryPoint]) -> MemoryData:
    """The front of a trade-off (``sim.nouns.memory``)."""
    front = tuple(_point(point) for point in points if point.on_front)
    missed = [point.limit_bytes for point in points if not point.is_reachable]
    return MemoryData(
        front=front,
        fastest=front[-1] if front else None,
        out_of_reach_mb=max(size for size in missed if size is not None) / MIB if missed else None,
    )


def _point(point: MemoryPoint) -> LimitPoint:
    assert point.largest_bucket_bytes is not None
    assert point.step_ns is not None
    text = "<br>".join(
        [
            f"<b>largest bucket {format_size(point.largest_bucket_bytes)}</b>",
            f"step {format_ms(point.step_ns)}",
            f"{point.num_buckets} buckets",
        ]
    )
    return LimitPoint(largest_mb=point.largest_bucket_bytes / MIB, step_ms=ms(point.step_ns), text=text)


def draw_memory(data: MemoryData) -> go.Figure:
    """Steps down to the fastest: at each size, the best that buckets of no more than that reach."""
    figure = go.Figure()
    if data.front:
        _add(figure, data.front, "best within a limit", mode="lines+markers", size=8, colour=ACCENT)
    if data.fastest is not None:
        _add(figure, (data.fastest,), "fastest", mode="markers", size=16, colour=GOOD, symbol="star")
    if data.out_of_reach_mb is not None:
        figure.add_vline(
            x=data.out_of_reach_mb,
            line={"color": NEUTRAL, "width": 2, "dash": "dot"},
            name="a single gradient is larger",
            showlegend=True,
        )
    figure.update_xaxes(
        type="log",
        title="largest bucket, MiB (log)",
        tickvals=MIB_TICKS,
        ticktext=[mib_text(tick) for tick in MIB_TICKS],
    )
    figure.update_yaxes(title="step time, ms")
    return framed(figure, 300, showlegend=True)


def _add(
    figure: go.Figure,
    points: Sequence[LimitPoint],
    name: str,
    *,
    mode: str,
    size: int,
    colour: str,
    symbol: str = "circle",
) -> None:
    figure.add_scatter(
        name=name,
        mode=mode,
        x=[point.largest_mb for point in points],
        y=[point.step_ms for point in points],
        line={"color": colour, "width": 2, "shape": "hv"},
        marker={"symbol": symbol, "size": size, "color": colour},
        customdata=[point.text for point in points],
        hovertemplate="%{customdata}<extra></extra>",
    )
