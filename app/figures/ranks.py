"""Ranks that differ: how the steps of a job scatter, and who comes last."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import ACCENT, ALARM, BUCKETS, LINE, framed, ms, safe
from sim.nouns.step_distribution import AssignmentComparison, RankPart, StepDistribution
from sim.units import format_ms, format_number, format_percent

Named = tuple[str, StepDistribution]


def distribution_figure(distribution: StepDistribution | AssignmentComparison) -> go.Figure:
    """How many steps are not longer than a time, with the mean and the step of equal ranks marked.

    Of one assignment also, below, which ranks came last; of several a curve each.
    """
    shown = named(distribution)
    parts = shown[0][1].parts if len(shown) == 1 else ()
    with_parts = len(parts) > 1
    rows = 2 if with_parts else 1
    share = 0.62 if len(parts) < 8 else 0.45
    figure = make_subplots(
        rows=rows,
        row_heights=[share, 1 - share] if with_parts else [1.0],
        vertical_spacing=0.2,
        subplot_titles=("Steps", "Which ranks come last") if with_parts else None,
    )
    for number, (name, one) in enumerate(shown):
        colour = ACCENT if len(shown) == 1 else BUCKETS[number % len(BUCKETS)]
        _steps(figure, name, one, colour)
        _marks(figure, name, one, colour, is_alone=len(shown) == 1)
    if len(shown) > 1:
        for words, dash in (("mean", "solid"), ("all ranks alike", "dash")):
            figure.add_scatter(
                x=[None], y=[None], mode="lines", name=words, line={"color": LINE, "dash": dash}
            )
    figure.update_xaxes(title="step time, ms", range=_range([one for _, one in shown]), row=1, col=1)
    figure.update_yaxes(title="steps not longer, %", range=[0, 101], row=1, col=1)
    if with_parts:
        _parts(figure, parts)
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    return framed(
        figure,
        440 + (120 + 24 * len(parts) if with_parts else 0),
        showlegend=True,
        margin={"l": 8, "r": 8, "t": 104, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.05, "x": 0},
        title={
            "text": title_words(shown[0][1]),
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 20, "l": 8},
            "font": {"size": 15},
        },
    )


def _range(shown: Sequence[StepDistribution]) -> list[float]:
    """From the shortest of all times to the longest, with a little room."""
    times = [ms(step) for one in shown for step in (*one.quantiles_ns, one.nominal_step_ns)]
    room = 0.02 * (max(times) - min(times)) or 1.0
    return [min(times) - room, max(times) + room]


def named(distribution: StepDistribution | AssignmentComparison) -> list[Named]:
    """The distributions by the name of their assignment."""
    if isinstance(distribution, AssignmentComparison):
        return [(row.name, row.distribution) for row in distribution.rows]
    return [(distribution.policy, distribution)]


def title_words(one: StepDistribution) -> str:
    """What was played: the job, its ranks, how many steps."""
    return (
        f"<b>{safe(one.workload)} on {safe(one.hardware)}</b><br>"
        f"<sup>{one.world_size:,} ranks ({safe(one.ranks)}), {one.samples:,} steps, seed {one.seed}</sup>"
    )


def _label(name: str, one: StepDistribution) -> str:
    return f"{safe(name)}, {one.bucket_count} bucket{'s' if one.bucket_count > 1 else ''}"


def _steps(figure: go.Figure, name: str, one: StepDistribution, colour: str) -> None:
    percents = [100 * place / (len(one.quantiles_ns) - 1) for place in range(len(one.quantiles_ns))]
    label = _label(name, one)
    figure.add_scatter(
        row=1,
        col=1,
        name=label,
        x=[ms(step) for step in one.quantiles_ns],
        y=percents,
        mode="lines",
        line={"color": colour, "width": 2},
        customdata=[
            f"<b>{label}</b><br>{percent:.0f} % of steps take at most {format_ms(step)}"
            for percent, step in zip(percents, one.quantiles_ns, strict=True)
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )


def _marks(figure: go.Figure, name: str, one: StepDistribution, colour: str, *, is_alone: bool) -> None:
    """Upright lines at the mean, and at the step of ranks that are all alike."""
    marks = (
        ("mean", one.mean_step_ns, "solid", _mean_text(one), colour),
        ("all ranks alike", one.nominal_step_ns, "dash", _nominal_text(one), ALARM if is_alone else colour),
    )
    for words, step, dash, text, line in marks:
        figure.add_scatter(
            row=1,
            col=1,
            name=f"{words}: {format_ms(step)}",
            showlegend=is_alone,
            x=[ms(step)] * 3,
            y=[0, 50, 100],
            mode="lines",
            line={"color": line, "width": 1.5, "dash": dash},
            customdata=[f"<b>{_label(name, one)}</b><br>{text}"] * 3,
            hovertemplate="%{customdata}<extra></extra>",
        )


def _mean_text(one: StepDistribution) -> str:
    between = ""
    if one.mean_low_ns is not None and one.mean_high_ns is not None:
        between = f", 95 % interval {format_ms(one.mean_low_ns)} to {format_ms(one.mean_high_ns)}"
    return (
        f"mean {format_ms(one.mean_step_ns)}{between}<br>"
        f"median {format_ms(one.median_step_ns)}, p95 {format_ms(one.p95_step_ns)}, "
        f"p99 {format_ms(one.p99_step_ns)}"
    )


def _nominal_text(one: StepDistribution) -> str:
    return (
        f"all ranks alike: {format_ms(one.nominal_step_ns)}<br>"
        f"that ranks differ costs {format_ms(one.slowest_cost_ns)} in the mean; of that "
        f"{format_ms(one.imbalance_cost_ns)} would go if the same work were spread evenly"
    )


def _part_label(part: RankPart) -> str:
    """With the first rank, which tells apart what is called the same."""
    return f"{safe(part.name, 30)} ({part.count:,} from rank {part.first:,})"


def _parts(figure: go.Figure, parts: Sequence[RankPart]) -> None:
    """For each part of the ranks, in how many collectives the last to come was one of it."""
    figure.add_bar(
        row=2,
        col=1,
        orientation="h",
        showlegend=False,
        name="last to come",
        y=[_part_label(part) for part in parts],
        x=[100 * part.last_share for part in parts],
        marker={"color": LINE},
        customdata=[
            f"<b>{safe(part.name)}</b>: {part.count:,} of the ranks, the first is {part.first:,}<br>"
            f"last in {format_percent(part.last_share)} of collectives<br>"
            f"collectives of one wait {format_ms(part.waited_ns)} a step; pace {format_number(part.pace, 4)}"
            for part in parts
        ],
        hovertemplate="%{customdata}<extra></extra>",
    )
    figure.update_xaxes(
        title="collectives in which the last is one of these, %", rangemode="tozero", row=2, col=1
    )
    figure.update_yaxes(autorange="reversed", row=2, col=1)
