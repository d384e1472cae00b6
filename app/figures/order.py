"""Which candidate is the faster? Ranks by measurement and by prediction, and the pairs that are wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import plotly.graph_objects as go

from app.figures.style import ACCENT, ALARM, NEUTRAL, framed, ms, safe
from sim.nouns.comparison import Agreement, CandidateAgreement


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One candidate; ranks count from 1, the fastest. Times in ns."""

    name: str
    measured_rank: int
    predicted_rank: int
    measured_ns: int
    predicted_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderData:
    """All candidates by measured rank, and their pairs, the measured faster first.

    ``right`` and ``wrong`` are pairs whose measured intervals are apart; ``within_noise`` the others, which
    no order can be told of.
    """

    rows: tuple[Ranked, ...]
    right: tuple[tuple[str, str], ...]
    wrong: tuple[tuple[str, str], ...]
    within_noise: tuple[tuple[str, str], ...]


def order_data(agreement: Agreement) -> OrderData:
    """Ranks, and every pair by the rule of the verdict."""
    measured = sorted(agreement.rows, key=lambda row: row.measured_step_ns)
    predicted = sorted(measured, key=lambda row: row.predicted_step_ns)
    places = {row.name: place for place, row in enumerate(predicted, start=1)}
    pairs: dict[str, list[tuple[str, str]]] = {"right": [], "wrong": [], "within_noise": []}
    for fast, slow in combinations(measured, 2):
        pairs[_kind(fast, slow)].append((fast.name, slow.name))
    return OrderData(
        rows=tuple(
            Ranked(
                name=row.name,
                measured_rank=place,
                predicted_rank=places[row.name],
                measured_ns=row.measured_step_ns,
                predicted_ns=row.predicted_step_ns,
            )
            for place, row in enumerate(measured, start=1)
        ),
        right=tuple(pairs["right"]),
        wrong=tuple(pairs["wrong"]),
        within_noise=tuple(pairs["within_noise"]),
    )


def _kind(fast: CandidateAgreement, slow: CandidateAgreement) -> str:
    if fast.step_high_ns >= slow.step_low_ns:
        return "within_noise"
    return "right" if fast.predicted_step_ns < slow.predicted_step_ns else "wrong"


def draw_order(data: OrderData) -> go.Figure:
    """Left by measured step, right by predicted: a line a candidate; lines of a wrong pair in red."""
    wrong = {name for pair in data.wrong for name in pair}
    figure = go.Figure()
    kinds: tuple[tuple[str, str, str, list[Ranked]], ...] = (
        (
            "same rank",
            ACCENT,
            "solid",
            [row for row in data.rows if not _moved(row) and row.name not in wrong],
        ),
        (
            "moved, within noise",
            NEUTRAL,
            "dash",
            [row for row in data.rows if _moved(row) and row.name not in wrong],
        ),
        ("in a pair that is wrong", ALARM, "solid", [row for row in data.rows if row.name in wrong]),
    )
    for name, colour, dash, rows in kinds:
        if rows:
            _lines(figure, name, colour, dash, rows, data)
    for row in data.rows:
        moved = f" (from {row.measured_rank})" if _moved(row) else ""
        for side, rank, text, anchor in (
            (0, row.measured_rank, f"{ms(row.measured_ns):,.1f}", "right"),
            (1, row.predicted_rank, f"{ms(row.predicted_ns):,.1f}{moved}", "left"),
        ):
            figure.add_annotation(
                x=side,
                y=rank,
                text=text,
                showarrow=False,
                xanchor=anchor,
                xshift=-10 if side == 0 else 10,
                font={"color": ALARM if row.name in wrong else None},
            )
    count = len(data.rows)
    figure.update_xaxes(
        range=[-0.6, 1.9],
        tickvals=[0, 1],
        ticktext=["measured, ms", "predicted, ms"],
        side="top",
        showgrid=False,
        fixedrange=True,
    )
    figure.update_yaxes(
        range=[count + 0.6, 0.4],
        tickvals=list(range(1, count + 1)),
        ticktext=[f"{row.measured_rank}. {safe(row.name, 28)}" for row in data.rows],
        showgrid=False,
        fixedrange=True,
    )
    return framed(
        figure,
        130 + 26 * count,
        showlegend=True,
        legend={"orientation": "h", "yanchor": "top", "y": 0.0, "x": 0},
    )


def _moved(row: Ranked) -> bool:
    return row.measured_rank != row.predicted_rank


def _lines(
    figure: go.Figure, name: str, colour: str, dash: str, rows: Sequence[Ranked], data: OrderData
) -> None:
    for number, row in enumerate(rows):
        figure.add_scatter(
            name=name,
            legendgroup=name,
            showlegend=number == 0,
            x=[0, 1],
            y=[row.measured_rank, row.predicted_rank],
            mode="lines+markers",
            line={"color": colour, "width": 2.5, "dash": dash},
            marker={"size": 9, "color": colour},
            customdata=[_hover(row, data)] * 2,
            hovertemplate="%{customdata}<extra></extra>",
        )


def _hover(row: Ranked, data: OrderData) -> str:
    lines = [
        f"<b>{safe(row.name)}</b>",
        f"measured {ms(row.measured_ns):,.2f} ms, rank {row.measured_rank}",
        f"predicted {ms(row.predicted_ns):,.2f} ms, rank {row.predicted_rank}",
    ]
    for words, pairs in (("wrong against", data.wrong), ("within noise of", data.within_noise)):
        others = [two if one == row.name else one for one, two in pairs if row.name in (one, two)]
        if others:
            shown = ", ".join(safe(name, 30) for name in others[:4])
            lines.append(f"{words} {shown}{f' and {len(others) - 4} more' if len(others) > 4 else ''}")
    return "<br>".join(lines)
