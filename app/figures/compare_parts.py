"""Differences in bars: each candidate's step against the first, and the parts of one difference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from app.figures.style import ALARM, GOOD, LINE, NEUTRAL, framed, ms, safe

_ROOM = 0.2  # of the axis, on either side


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar from one difference to another, ns; ``is_total`` sums up those before it."""

    name: str
    from_ns: int
    to_ns: int
    is_total: bool = False

    @property
    def change_ns(self) -> int:
        """What the bar adds; negative: takes away."""
        return self.to_ns - self.from_ns


def delta_data(steps_ns: Mapping[str, int]) -> tuple[Bar, ...]:
    """Each step against the first, which is left out."""
    names = list(steps_ns)
    base = steps_ns[names[0]]
    return tuple(Bar(name=name, from_ns=0, to_ns=steps_ns[name] - base) for name in names[1:])


def parts_data(changes: Sequence[tuple[str, Sequence[tuple[str, int]]]]) -> tuple[Bar, ...]:
    """``(cause, [(part, change)])`` as bars that begin where the one before ended, and their total.

    Parts that change nothing are left out; the cause is named where there are several.
    """
    bars, reached = [], 0
    for cause, parts in changes:
        for part, change in parts:
            if change:
                name = f"{part} ({cause})" if len(changes) > 1 else part
                bars.append(Bar(name=name, from_ns=reached, to_ns=reached + change))
                reached += change
    return (*bars, Bar(name="together", from_ns=0, to_ns=reached, is_total=True))


def draw_bars(bars: Sequence[Bar], title: str) -> go.Figure:
    """Horizontal bars around zero: orange is longer, green is shorter, grey the sum."""
    figure = go.Figure()
    figure.add_bar(
        orientation="h",
        y=[safe(bar.name) for bar in bars],
        base=[ms(bar.from_ns) for bar in bars],
        x=[ms(bar.change_ns) for bar in bars],
        marker={"color": [_colour(bar) for bar in bars]},
        text=[f"{ms(bar.change_ns):+,.2f}" for bar in bars],
        textposition="auto",
        cliponaxis=False,
        hovertemplate="%{y}<br>%{text} ms<extra></extra>",
    )
    figure.add_vline(x=0, line={"color": LINE, "width": 1})
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title=title, range=_range(bars))
    return framed(figure, 80 + 34 * len(bars), bargap=0.25)


def _range(bars: Sequence[Bar]) -> tuple[float, float]:
    """From the least to the most, with room for the figures beside short bars, in ms."""
    ends = [0, *(bar.from_ns for bar in bars), *(bar.to_ns for bar in bars)]
    low, high = ms(min(ends)), ms(max(ends))
    room = _ROOM * (high - low) or 1.0
    return low - room, high + room


def _colour(bar: Bar) -> str:
    if bar.is_total:
        return NEUTRAL
    return ALARM if bar.change_ns > 0 else GOOD
