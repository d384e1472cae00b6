"""A machine: its all-reduce curve, how a workload scales on it, and what it costs that ranks differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures.style import (
    ACCENT,
    ALARM,
    BUCKETS,
    GOOD,
    LEGEND_BELOW,
    LINE,
    MIB_TICKS,
    area,
    framed,
    mib_text,
    ms,
    safe,
)
from sim.clusters.ranks.distribution import AssignmentComparison
from sim.clusters.ranks.summary import RankPart, StepDistribution
from sim.clusters.scaling.one_machine import ScalingRow
from sim.nouns.hardware import CurvePoint, Hardware
from sim.units import NS_PER_S, format_mib_range, format_ms, format_number, format_percent, format_size

_SIZE_TICKS = tuple(1 << power for power in range(10, 34, 5))
_TIME_TICKS = {  # in us
    1: "1 us",
    10: "10 us",
    100: "100 us",
    1_000: "1 ms",
    10_000: "10 ms",
    100_000: "100 ms",
    1_000_000: "1 s",
    10_000_000: "10 s",
    100_000_000: "100 s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """One size: its time, the range about it where one is stated, its bus bandwidth, and by which method.

    Bus bandwidth is nccl-tests': ``2 (n - 1) / n`` times bytes over time; None where that has no meaning.
    """

    num_bytes: int
    duration_ns: int
    low_ns: int
    high_ns: int
    bytes_per_s: float | None
    low_bytes_per_s: float | None
    high_bytes_per_s: float | None
    method: str


def curve_rows(hardware: Hardware) -> list[CurveRow]:
    """The points of the all-reduce curve that carry something."""
    methods = hardware.provenance.get("methods")
    factor = 2 * (hardware.world_size - 1) / hardware.world_size
    rows = []
    for point in hardware.all_reduce:
        if not point.num_bytes:
            continue
        low, high = _stated(hardware, point)

        def bus(duration_ns: int, num_bytes: int = point.num_bytes) -> float | None:
            return factor * num_bytes * NS_PER_S / duration_ns if duration_ns and factor else None

        rows.append(
            CurveRow(
                num_bytes=point.num_bytes,
                duration_ns=point.duration_ns,
                low_ns=low,
                high_ns=high,
                bytes_per_s=bus(point.duration_ns),
                low_bytes_per_s=bus(high),
                high_bytes_per_s=bus(low),
                method=str(methods.get(str(point.num_bytes), "")) if isinstance(methods, dict) else "",
            )
        )
    return rows


def _stated(hardware: Hardware, point: CurvePoint) -> tuple[int, int]:
    """The range that a file states for a point; itself where it states none."""
    found = hardware.spread.get("all_reduce", {}).get(str(point.num_bytes), {})
    low, high = found.get("min_ns"), found.get("max_ns")
    if low is not None and high is not None and low <= point.duration_ns <= high:
        return low, high
    return point.duration_ns, point.duration_ns


def draw_curve(rows: Sequence[CurveRow]) -> go.Figure:
    """Time and bus bandwidth over size; a colour for each algorithm and protocol, the range as a band."""
    figure = make_subplots(cols=2, horizontal_spacing=0.13, subplot_titles=("Time", "Bus bandwidth, GB/s"))
    if any(row.low_ns < row.high_ns for row in rows):
        for column, ends in (
            (1, [(row.num_bytes, us(row.low_ns), us(row.high_ns)) for row in rows]),
            (2, [(row.num_bytes, _giga(row.low_bytes_per_s), _giga(row.high_bytes_per_s)) for row in rows]),
        ):
            shown = {"row": 1, "col": column, "legendgroup": "range", "showlegend": column == 1}
            sizes, lows, highs = zip(*[each for each in ends if each[1] and each[2]], strict=True)
            figure.add_scatter(**area("stated range", sizes, lows, highs, ACCENT, **shown))
    for column in (1, 2):
        figure.add_scatter(
            row=1,
            col=column,
            x=[row.num_bytes for row in rows],
            y=[_height(row, column) for row in rows],
            mode="lines",
            line={"color": LINE, "width": 1},
            hoverinfo="skip",
            showlegend=False,
        )
    for number, method in enumerate(dict.fromkeys(row.method for row in rows)):
        members = [row for row in rows if row.method == method]
        colour = ACCENT if not method else BUCKETS[number % len(BUCKETS)]
        for column in (1, 2):
            figure.add_scatter(
                row=1,
                col=column,
                name=safe(method) or "measured",
                legendgroup=method,
                showlegend=column == 1,
                x=[row.num_bytes for row in members],
                y=[_height(row, column) for row in members],
                mode="markers",
                marker={"size": 8, "color": colour},
                customdata=[row_text(row) for row in members],
                hovertemplate="%{customdata}<extra></extra>",
            )
    figure.update_xaxes(
        type="log",
        title="size (log)",
        tickvals=_SIZE_TICKS,
        ticktext=[format_size(tick) for tick in _SIZE_TICKS],
    )
    figure.update_yaxes(
        type="log",
        title="time (log)",
        tickvals=list(_TIME_TICKS),
        ticktext=list(_TIME_TICKS.values()),
        row=1,
        col=1,
    )
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.update_annotations(font_size=13)
    return framed(figure, 380, showlegend=True, legend=LEGEND_BELOW)


def us(ns: float) -> float:
    """Nanoseconds as microseconds, for axes."""
    return ns / 1000


def _giga(number: float | None) -> float | None:
    return None if number is None else number / 1e9


def _height(row: CurveRow, column: int) -> float | None:
    return (us(row.duration_ns) or None) if column == 1 else _giga(row.bytes_per_s)


def row_text(row: CurveRow) -> str:
    """The hover of one size."""
    lines = [
        f"<b>{format_size(row.num_bytes)}</b>{f', {safe(row.method)}' if row.method else ''}",
        f"{us(row.duration_ns):,.1f} us",
    ]
    if row.low_ns < row.high_ns:
        lines[1] += f", stated range {us(row.low_ns):,.1f} to {us(row.high_ns):,.1f} us"
    if row.bytes_per_s is not None:
        lines.append(f"bus bandwidth {format_number(row.bytes_per_s / 1e9, 4)} GB/s")
    return "<br>".join(lines)


# The three assignments that each row holds: how its fields begin, the name, colour, dash and symbol.
CURVES = {
    "default": ("DDP's default", ALARM, "dash", "diamond"),
    "cap": ("best cap", ACCENT, "solid", "circle"),
    "optimum": ("best buckets", GOOD, "dot", "star"),
}


def percent(ns: int, step_ns: int) -> float:
    """A time in percent of a step; all of it where the step takes no time."""
    return 100 * ns / step_ns if step_ns else 100.0


def text_of(curve: str, row: ScalingRow) -> str:
    """The hover of one assignment at one world size."""
    step, exposed = getattr(row, f"{curve}_step_ns"), getattr(row, f"{curve}_exposed_comm_ns")
    efficiency = getattr(row, f"{curve}_efficiency")
    lines = [
        f"<b>{CURVES[curve][0]}, {row.world_size:,} ranks</b>",
        f"efficiency {format_percent(efficiency)}, step {format_ms(step)}",
        f"exposed {format_ms(exposed)}, {format_percent(exposed / step if step else 0.0)} of the step",
    ]
    if curve == "default":
        lines.append(f"{row.default_num_buckets} buckets, {_behind_words(row)}")
    elif curve == "cap":
        lines.append(f"bucket_cap_mb={format_number(row.bucket_cap_mb, 4)}: {row.cap_num_buckets} buckets")
        if row.cap_step_low_ns != row.cap_step_high_ns:
            lines.append(
                f"{row.source}: {format_ms(row.cap_step_low_ns)} to {format_ms(row.cap_step_high_ns)}"
            )
        if row.p95_step_ns is not None and row.mean_step_ns is not None:
            lines.append(
                f"{safe(row.jitter)}: mean {format_ms(row.mean_step_ns)}, p95 {format_ms(row.p95_step_ns)}"
            )
    else:
        lines.append(
            f"{row.optimum_num_buckets} buckets, {'' if row.proved_optimal else 'not '}proved optimal"
        )
    how = f", {safe(row.all_reduce_method)}" if row.all_reduce_method else ""
    lines.append(f"one all-reduce of all gradients: {format_ms(row.all_reduce_ns)}{how}")
    return "<br>".join(lines)


def cap_text(row: ScalingRow) -> str:
    """The hover of a best cap: the caps as good, whether the curve's range would choose another, and why."""
    more = row.cap_num_stretches - 1
    elsewhere = f"; {more} stretch{'es' if more > 1 else ''} elsewhere too" if more else ""
    lines = [
        f"<b>bucket_cap_mb={format_number(row.bucket_cap_mb, 4)}, {row.world_size:,} ranks</b>",
        f"as good around it, in MiB: {format_mib_range(row.cap_low_mb, row.cap_high_mb)}{elsewhere}",
        f"DDP's default is {'as good' if row.default_is_alike else _behind_words(row)}",
    ]
    if not row.cap_is_sure:
        lines.append(
            f"not sure: the ends of the curve's range choose {format_number(row.best_cap_low_mb, 4)} and "
            f"{format_number(row.best_cap_high_mb, 4)} MiB"
        )
    if row.reason:
        wrapped = wrap(row.reason, 71, break_long_words=False, break_on_hyphens=False)
        lines += [safe(line, 140) for line in wrapped]
    return "<br>".join(lines)


def _behind_words(row: ScalingRow) -> str:
    behind = row.default_step_ns - row.cap_step_ns
    return f"{format_ms(abs(behind))} {'behind' if behind >= 0 else 'before'} the best cap"


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
        for curve, (_, own, _, _) in CURVES.items():
            colour = own if len(series) == 1 else BUCKETS[number % len(BUCKETS)]
            _curve(figure, curve, name, members, colour)
        colour = ACCENT if len(series) == 1 else BUCKETS[number % len(BUCKETS)]
        _curve_range(figure, members, colour)
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
        type="log", title="MiB (log)", tickvals=caps, ticktext=[mib_text(cap) for cap in caps], row=3, col=1
    )
    figure.update_annotations(font_size=13, x=0, xanchor="left")
    return framed(figure, _HEIGHT, showlegend=True, legend=LEGEND_BELOW)


def _curve(figure: go.Figure, curve: str, name: str, rows: Sequence[ScalingRow], colour: str) -> None:
    title, _, dash, symbol = CURVES[curve]
    words = f"{title}, {safe(name)}" if name else title
    texts = [text_of(curve, row) for row in rows]
    panels = [
        [100 * getattr(row, f"{curve}_efficiency") for row in rows],
        [ms(getattr(row, f"{curve}_exposed_comm_ns")) for row in rows],
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
            line={"color": colour, "width": 2, "dash": dash},
            marker={"symbol": symbol, "size": 7, "color": colour},
            customdata=texts,
            hovertemplate="%{customdata}<extra></extra>",
        )


def _curve_range(figure: go.Figure, rows: Sequence[ScalingRow], colour: str) -> None:
    """What the range of the curve makes of the best cap's efficiency."""
    if all(row.cap_step_low_ns == row.cap_step_high_ns for row in rows):
        return
    xs = [row.world_size for row in rows]
    most = [percent(row.single_step_ns, row.cap_step_low_ns) for row in rows]
    least = [percent(row.single_step_ns, row.cap_step_high_ns) for row in rows]
    _stretch(figure, 1, xs, least, most, colour, "best cap over the range of the curve")


def _stretch(
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
    shown = {"row": panel, "col": 1, "legendgroup": name, "showlegend": is_told}
    figure.add_scatter(**area(name, xs, lows, highs, colour, **shown))


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
        customdata=[text_of("cap", row) for row, _ in shown],
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
    _stretch(
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


Named = tuple[str, StepDistribution]


def distribution_figure(distribution: StepDistribution | AssignmentComparison) -> go.Figure:
    """How many steps are not longer than a time, with the mean and the step of equal ranks marked.

    Of one assignment also, below, which ranks came last; of several a curve each.
    """
    shown = named(distribution)
    first = shown[0][1]
    parts = first.parts if len(shown) == 1 else ()
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
    figure.update_xaxes(title="step time, ms", range=_step_range([one for _, one in shown]), row=1, col=1)
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
            "text": f"<b>{safe(first.workload)} on {safe(first.hardware)}</b><br>"
            f"<sup>{first.world_size:,} ranks ({safe(first.ranks)}), {first.samples:,} steps, "
            f"seed {first.seed}</sup>",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 20, "l": 8},
            "font": {"size": 15},
        },
    )


def _step_range(shown: Sequence[StepDistribution]) -> list[float]:
    """From the shortest of all times to the longest, with a little room."""
    times = [ms(step) for one in shown for step in (*one.quantiles_ns, one.nominal_step_ns)]
    room = 0.02 * (max(times) - min(times)) or 1.0
    return [min(times) - room, max(times) + room]


def named(distribution: StepDistribution | AssignmentComparison) -> list[Named]:
    """The distributions by the name of their assignment."""
    if isinstance(distribution, AssignmentComparison):
        return [(row.name, row.distribution) for row in distribution.rows]
    return [(distribution.policy, distribution)]


def _assignment(name: str, one: StepDistribution) -> str:
    return f"{safe(name)}, {one.bucket_count} bucket{'s' if one.bucket_count > 1 else ''}"


def _steps(figure: go.Figure, name: str, one: StepDistribution, colour: str) -> None:
    percents = [100 * place / (len(one.quantiles_ns) - 1) for place in range(len(one.quantiles_ns))]
    label = _assignment(name, one)
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
            customdata=[f"<b>{_assignment(name, one)}</b><br>{text}"] * 3,
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


def _parts(figure: go.Figure, parts: Sequence[RankPart]) -> None:
    """For each part of the ranks, in how many collectives the last to come was one of it."""
    figure.add_bar(
        row=2,
        col=1,
        orientation="h",
        showlegend=False,
        name="last to come",
        # With the first rank, which tells apart what is called the same.
        y=[f"{safe(part.name, 30)} ({part.count:,} from rank {part.first:,})" for part in parts],
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
