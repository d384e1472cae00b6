"""A machine: its all-reduce curve, how a workload scales on it, and what it costs that ranks differ."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

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
    Trace,
    area,
    bars,
    dots,
    figure,
    line,
    mib_ticks,
    ms,
    panel,
    safe,
)
from sim.clusters.distribution import AssignmentComparison, RankPart, StepDistribution
from sim.clusters.scaling import ScalingRow
from sim.nouns.hardware import CurvePoint, Hardware
from sim.units import (
    NS_PER_S,
    format_mib_range,
    format_ms,
    format_number,
    format_percent,
    format_size,
)

_SIZE_TICKS = tuple(1 << power for power in range(10, 34, 5))
_TIME_TICKS = tuple(10**power for power in range(9))  # in us
_TIME_TEXTS = [f"{n} {unit}" for unit in ("us", "ms", "s") for n in (1, 10, 100)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveRow:
    """One size: its time, the range about it where one is stated, its bus bandwidth, and by which method.

    Bus bandwidth is nccl-tests': ``2 (n - 1) / n`` times bytes over time; None where that has no meaning.
    """

    num_bytes: int
    duration_ns: int
    low_ns: int
    high_ns: int
    factor: float  # 2 (n - 1) / n
    method: str

    def bytes_per_s(self, duration_ns: int) -> float | None:
        """The bus bandwidth where it takes ``duration_ns``."""
        return self.factor * self.num_bytes * NS_PER_S / duration_ns if duration_ns and self.factor else None

    def heights(self, duration_ns: int) -> tuple[float | None, float | None]:
        """Where it stands in both panels: time in us, bus bandwidth in GB/s."""
        rate = self.bytes_per_s(duration_ns)
        return _us(duration_ns) or None, None if rate is None else rate / 1e9

    @property
    def text(self) -> str:
        """What a hover says."""
        lines = [f"<b>{format_size(self.num_bytes)}</b>{f', {safe(self.method)}' if self.method else ''}"]
        between = f", stated range {_us(self.low_ns):,.1f} to {_us(self.high_ns):,.1f} us"
        lines.append(f"{_us(self.duration_ns):,.1f} us{between if self.low_ns < self.high_ns else ''}")
        rate = self.bytes_per_s(self.duration_ns)
        return "<br>".join(
            lines + ([] if rate is None else [f"bus bandwidth {format_number(rate / 1e9, 4)} GB/s"])
        )


def _us(ns: float) -> float:
    return ns / 1000


def curve_rows(hardware: Hardware) -> list[CurveRow]:
    """The points of the all-reduce curve that carry something."""
    methods = hardware.provenance.get("methods")
    rows = []
    for point in hardware.all_reduce:
        if point.num_bytes:
            low, high = _stated(hardware, point)
            rows.append(
                CurveRow(
                    num_bytes=point.num_bytes,
                    duration_ns=point.duration_ns,
                    low_ns=low,
                    high_ns=high,
                    factor=2 * (hardware.world_size - 1) / hardware.world_size,
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
    traces = []
    methods = list(dict.fromkeys(row.method for row in rows))
    for place in (0, 1):
        of_panel = panel(place + 1)
        if any(row.low_ns < row.high_ns for row in rows):
            ends = [
                (row.num_bytes, row.heights(row.low_ns)[place], row.heights(row.high_ns)[place])
                for row in rows
            ]
            sizes, lows, highs = zip(*[each for each in ends if each[1] and each[2]], strict=True)
            shown = {"legendgroup": "range", "showlegend": place == 0, **of_panel}
            traces.append(area("stated range", sizes, lows, highs, ACCENT, **shown))
        heights = [row.heights(row.duration_ns)[place] for row in rows]
        traces.append(
            line(None, [row.num_bytes for row in rows], heights, LINE, width=1, showlegend=False, **of_panel)
        )
        for number, method in enumerate(methods):
            members = [row for row in rows if row.method == method]
            traces.append(
                dots(
                    safe(method) or "measured",
                    [row.num_bytes for row in members],
                    [row.heights(row.duration_ns)[place] for row in members],
                    BUCKETS[number % len(BUCKETS)] if method else ACCENT,
                    size=8,
                    hover=[row.text for row in members],
                    legendgroup=method,
                    showlegend=place == 0,
                    **of_panel,
                )
            )
    across = {"type": "log", "title": "size (log)", "tickvals": _SIZE_TICKS}
    across["ticktext"] = [format_size(tick) for tick in _SIZE_TICKS]
    up = {"type": "log", "title": "time (log)", "tickvals": _TIME_TICKS, "ticktext": _TIME_TEXTS}
    return figure(
        traces,
        380,
        grid=make_subplots(cols=2, horizontal_spacing=0.13, subplot_titles=("Time", "Bus bandwidth, GB/s")),
        xaxis=across,
        xaxis2=across,
        yaxis=up,
        yaxis2={"rangemode": "tozero"},
        legend=LEGEND_BELOW,
    )


# The three assignments that each row holds: how its fields begin, the name, colour, dash and symbol.
CURVES = {
    "default": ("DDP's default", ALARM, "dash", "diamond"),
    "cap": ("best cap", ACCENT, "solid", "circle"),
    "optimum": ("best buckets", GOOD, "dot", "star"),
}
_MOST_TICKS = 16


def percent(ns: int, step_ns: int) -> float:
    """A time in percent of a step; all of it where the step takes no time."""
    return 100 * ns / step_ns if step_ns else 100.0


def _figures_of(curve: str, row: ScalingRow) -> tuple[int, int, float]:
    """Step and exposed communication, ns, and the efficiency in percent: what one GPU alone takes of it."""
    step: int = getattr(row, f"{curve}_step_ns")
    return step, step - row.single_step_ns, percent(row.single_step_ns, step)


def _text_of(curve: str, row: ScalingRow) -> str:
    """The hover of one assignment at one world size."""
    step, exposed, efficiency = _figures_of(curve, row)
    lines = [
        f"<b>{CURVES[curve][0]}, {row.world_size:,} ranks</b>",
        f"efficiency {format_percent(efficiency / 100)}, step {format_ms(step)}",
        f"exposed {format_ms(exposed)}, {format_percent(exposed / step if step else 0.0)} of the step",
    ]
    if curve == "default":
        lines.append(f"{row.default_num_buckets} buckets, {_behind_words(row)}")
    elif curve == "cap":
        lines.append(f"bucket_cap_mb={format_number(row.bucket_cap_mb, 4)}: {row.cap_num_buckets} buckets")
        low, high = row.cap_step_low_ns, row.cap_step_high_ns
        lines += [f"{row.source}: {format_ms(low)} to {format_ms(high)}"] if low != high else []
        if row.p95_step_ns is not None and row.mean_step_ns is not None:
            mean, p95 = format_ms(row.mean_step_ns), format_ms(row.p95_step_ns)
            lines.append(f"{safe(row.jitter)}: mean {mean}, p95 {p95}")
    else:
        lines.append(
            f"{row.optimum_num_buckets} buckets, {'' if row.proved_optimal else 'not '}proved optimal"
        )
    how = f", {safe(row.all_reduce_method)}" if row.all_reduce_method else ""
    return "<br>".join([*lines, f"one all-reduce of all gradients: {format_ms(row.all_reduce_ns)}{how}"])


def _cap_text(row: ScalingRow) -> str:
    """The hover of a best cap: the caps as good, whether the curve's range would choose another, and why."""
    more = row.cap_num_stretches - 1
    elsewhere = f"; {more} stretch{'es' if more > 1 else ''} elsewhere too" if more else ""
    lines = [
        f"<b>bucket_cap_mb={format_number(row.bucket_cap_mb, 4)}, {row.world_size:,} ranks</b>",
        f"as good around it, in MiB: {format_mib_range(row.cap_low_mb, row.cap_high_mb)}{elsewhere}",
        f"DDP's default is {'as good' if row.default_is_alike else _behind_words(row)}",
    ]
    if not row.cap_is_sure:
        low, high = format_number(row.best_cap_low_mb, 4), format_number(row.best_cap_high_mb, 4)
        lines.append(f"not sure: the ends of the curve's range choose {low} and {high} MiB")
    wrapped = wrap(row.reason, 71, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(lines + [safe(line, 140) for line in wrapped])


def _behind_words(row: ScalingRow) -> str:
    behind = row.default_step_ns - row.cap_step_ns
    return f"{format_ms(abs(behind))} {'behind' if behind >= 0 else 'before'} the best cap"


def _series_of(rows: Sequence[ScalingRow]) -> dict[str, list[ScalingRow]]:
    """Rows by the series that they belong to, each by world size; a single series has no name."""
    found: dict[tuple[str, ...], list[ScalingRow]] = {}
    for row in rows:
        found.setdefault((row.machine, row.settings), []).append(row)
    differs = [len(set(words)) > 1 for words in zip(*found, strict=True)]
    return {
        ", ".join(word or "as it is" for word, one in zip(key, differs, strict=True) if one): sorted(
            members, key=lambda row: row.world_size
        )
        for key, members in found.items()
    }


def scaling_figure(rows: Sequence[ScalingRow]) -> go.Figure:
    """Three panels over world size, on logarithmic axes: efficiency, exposed communication, the best cap.

    The band about the best cap's efficiency is the range of the all-reduce curve, that about the cap holds
    the caps around it within 0.1 % of the best; where the best cap changes, a hover says why.
    """
    series = _series_of(rows)
    # From half the smallest cap to twice the largest: what stands for 0 and for no end on the axis.
    caps = [cap for row in rows for cap in (row.bucket_cap_mb, row.cap_low_mb, row.cap_high_mb) if cap]
    low, high = min(caps, default=1.0) / 2, max(caps, default=1.0) * 2
    traces: list[Trace] = []
    for number, (name, members) in enumerate(series.items()):
        several = BUCKETS[number % len(BUCKETS)] if len(series) > 1 else None
        for curve, (_, own, _, _) in CURVES.items():
            traces += _curve(curve, name, members, several or own)
        traces += _range_and_mean(name, members, several or ACCENT)
        traces += _caps(name, members, several or ACCENT, low, high, is_told=number == 0)
    sizes = sorted({row.world_size for row in rows})
    across: dict[str, Any] = {"type": "log"}
    if len(sizes) <= _MOST_TICKS:
        across |= {"tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}
    return figure(
        traces,
        780,
        grid=make_subplots(
            rows=3,
            shared_xaxes=True,
            vertical_spacing=0.06,
            subplot_titles=("Efficiency", "Exposed communication", "Best bucket_cap_mb"),
        ),
        xaxis=across,
        xaxis2=across,
        xaxis3=across | {"title": "world size, ranks (log)"},
        yaxis={"title": "of one GPU alone, %"},
        yaxis2={"title": "ms a step", "rangemode": "tozero"},
        yaxis3=mib_ticks(MIB_TICKS if high / low < 100 else MIB_TICKS[::2]) | {"title": "MiB (log)"},
        legend=LEGEND_BELOW,
    )


def _curve(curve: str, name: str, rows: Sequence[ScalingRow], colour: str) -> list[Trace]:
    title, _, dash, symbol = CURVES[curve]
    words = f"{title}, {safe(name)}" if name else title
    figures = [_figures_of(curve, row) for row in rows]
    heights = ([efficiency for _, _, efficiency in figures], [ms(exposed) for _, exposed, _ in figures])
    return [
        dots(
            words,
            [row.world_size for row in rows],
            ys,
            colour,
            symbol=symbol,
            hover=[_text_of(curve, row) for row in rows],
            mode="lines+markers",
            line={"width": 2, "dash": dash},
            legendgroup=words,
            showlegend=number == 1,
            **panel(number),
        )
        for number, ys in enumerate(heights, start=1)
    ]


def _range_and_mean(name: str, rows: Sequence[ScalingRow], colour: str) -> list[Trace]:
    """What the curve's range makes of the best cap's efficiency, and the mean of ranks that jitter."""
    traces = []
    if any(row.cap_step_low_ns != row.cap_step_high_ns for row in rows):
        least, most = (
            [percent(row.single_step_ns, getattr(row, end)) for row in rows]
            for end in ("cap_step_high_ns", "cap_step_low_ns")
        )
        told = "best cap over the range of the curve"
        traces.append(_band(told, [row.world_size for row in rows], least, most, colour, panel(1)))
    shown = [(row, row.mean_step_ns) for row in rows if row.mean_step_ns is not None]
    if shown:
        traces.append(
            dots(
                safe(f"best cap, mean with jitter{f', {name}' if name else ''}"),
                [row.world_size for row, _ in shown],
                [percent(row.single_step_ns, mean) for row, mean in shown],
                colour,
                symbol="x",
                hover=[_text_of("cap", row) for row, _ in shown],
                mode="lines+markers",
                line={"width": 1, "dash": "dashdot"},
                **panel(1),
            )
        )
    return traces


def _band(
    name: str,
    xs: Sequence[float],
    lows: Sequence[float],
    highs: Sequence[float],
    colour: str,
    more: dict[str, Any],
) -> Trace:
    """A band; of a single world size a bar, since a band of no width could not be seen."""
    if len(xs) == 1:
        xs, lows, highs = [xs[0] / 1.02, xs[0] * 1.02], [lows[0]] * 2, [highs[0]] * 2
    return area(name, xs, lows, highs, colour, legendgroup=name, **more)


def _caps(
    name: str, rows: Sequence[ScalingRow], colour: str, low: float, high: float, *, is_told: bool
) -> list[Trace]:
    """The best cap, the caps around it that are as good, and a ring where it changes."""
    xs = [row.world_size for row in rows]
    lows = [max(row.cap_low_mb, low) for row in rows]
    highs = [high if row.cap_high_mb is None else row.cap_high_mb for row in rows]
    words = f"best cap, {safe(name)}" if name else "best cap"
    around, of_panel = "caps around the best within 0.1 % of it", panel(3)
    look: dict[str, Any] = {
        "mode": "lines+markers",
        "line": {"width": 2},
        "legendgroup": words,
        "showlegend": False,
    }
    heights = [max(row.bucket_cap_mb, low) for row in rows]
    traces = [
        _band(around, xs, lows, highs, colour if name else GOOD, {"showlegend": is_told, **of_panel}),
        dots(words, xs, heights, colour, hover=[_cap_text(row) for row in rows], **look, **of_panel),
    ]
    changes = [row for row in rows if row.reason]
    if changes:
        ring: dict[str, Any] = {"symbol": "circle-open", "size": 17, "marker": {"line": {"width": 2}}}
        traces.append(
            dots(
                "best cap changes: hover for why",
                [row.world_size for row in changes],
                [max(row.bucket_cap_mb, low) for row in changes],
                LINE,
                hover=[_cap_text(row) for row in changes],
                legendgroup="changes",
                showlegend=is_told,
                **ring,
                **of_panel,
            )
        )
    return traces


def distribution_figure(distribution: StepDistribution | AssignmentComparison) -> go.Figure:
    """How many steps are not longer than a time, with the mean and the step of equal ranks marked.

    Of one assignment also, below, which ranks came last; of several a curve each.
    """
    shown = [(distribution.policy, distribution)] if isinstance(distribution, StepDistribution) else []
    if isinstance(distribution, AssignmentComparison):
        shown = [(row.name, row.distribution) for row in distribution.rows]
    first = shown[0][1]
    is_alone = len(shown) == 1
    parts = first.parts if is_alone and len(first.parts) > 1 else ()
    traces: list[Trace] = []
    for number, (name, one) in enumerate(shown):
        traces += _distribution(name, one, BUCKETS[number % len(BUCKETS)], is_alone=is_alone)
    if not is_alone:
        for words, dash in (("mean", "solid"), ("all ranks alike", "dash")):
            traces.append(line(words, [None], [None], LINE, dash=dash))
    times = [ms(step) for _, one in shown for step in (*one.quantiles_ns, one.nominal_step_ns)]
    room = 0.02 * (max(times) - min(times)) or 1.0
    share = 0.62 if len(parts) < 8 else 0.45
    grid = make_subplots(
        rows=2,
        row_heights=[share, 1 - share],
        vertical_spacing=0.2,
        subplot_titles=("Steps", "Which ranks come last"),
    )
    below = {"xaxis2": {"title": "collectives in which the last is one of these, %", "rangemode": "tozero"}}
    ranks = f"{first.world_size:,} ranks ({safe(first.ranks)}), {first.samples:,} steps, seed {first.seed}"
    title = f"<b>{safe(first.workload)} on {safe(first.hardware)}</b><br><sup>{ranks}</sup>"
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 20, "l": 8}}
    return figure(
        [*traces, *([_last_ranks(parts)] if parts else [])],
        440 + (120 + 24 * len(parts) if parts else 0),
        grid=grid if parts else None,
        xaxis={"title": "step time, ms", "range": [min(times) - room, max(times) + room]},
        yaxis={"title": "steps not longer, %", "range": [0, 101]},
        **(below | {"yaxis2": {"autorange": "reversed"}} if parts else {}),
        margin={"l": 8, "r": 8, "t": 104, "b": 8},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.05, "x": 0},
        title={"text": title, "font": {"size": 15}, **place},
    )


def _distribution(name: str, one: StepDistribution, colour: str, *, is_alone: bool) -> list[Trace]:
    """The curve of an assignment; upright lines at the mean, and at the step of ranks that are all alike."""
    label = f"{safe(name)}, {one.bucket_count} bucket{'s' if one.bucket_count > 1 else ''}"
    percents = [100 * place / (len(one.quantiles_ns) - 1) for place in range(len(one.quantiles_ns))]
    texts = [
        f"<b>{label}</b><br>{percent:.0f} % of steps take at most {format_ms(step)}"
        for percent, step in zip(percents, one.quantiles_ns, strict=True)
    ]
    between = ""
    if one.mean_low_ns is not None and one.mean_high_ns is not None:
        between = f", 95 % interval {format_ms(one.mean_low_ns)} to {format_ms(one.mean_high_ns)}"
    mean = (
        f"mean {format_ms(one.mean_step_ns)}{between}<br>median {format_ms(one.median_step_ns)}, "
        f"p95 {format_ms(one.p95_step_ns)}, p99 {format_ms(one.p99_step_ns)}"
    )
    alike = (
        f"all ranks alike: {format_ms(one.nominal_step_ns)}<br>"
        f"that ranks differ costs {format_ms(one.slowest_cost_ns)} in the mean; of that "
        f"{format_ms(one.imbalance_cost_ns)} would go if the same work were spread evenly"
    )
    traces = [line(label, [ms(step) for step in one.quantiles_ns], percents, colour, hover=texts)]
    for words, step, dash, text, own in (
        ("mean", one.mean_step_ns, "solid", mean, colour),
        ("all ranks alike", one.nominal_step_ns, "dash", alike, ALARM if is_alone else colour),
    ):
        hover = [f"<b>{label}</b><br>{text}"] * 3
        look: dict[str, Any] = {"width": 1.5, "dash": dash, "hover": hover, "showlegend": is_alone}
        traces.append(line(f"{words}: {format_ms(step)}", [ms(step)] * 3, [0, 50, 100], own, **look))
    return traces


def _last_ranks(parts: Sequence[RankPart]) -> Trace:
    """For each part of the ranks, in how many collectives the last to come was one of it."""
    return bars(
        "last to come",
        # With the first rank, which tells apart what is called the same.
        [f"{safe(part.name, 30)} ({part.count:,} from rank {part.first:,})" for part in parts],
        [100 * part.last_share for part in parts],
        LINE,
        hover=[
            f"<b>{safe(part.name)}</b>: {part.count:,} of the ranks, the first is {part.first:,}<br>"
            f"last in {format_percent(part.last_share)} of collectives<br>"
            f"collectives of one wait {format_ms(part.waited_ns)} a step; pace {format_number(part.pace, 4)}"
            for part in parts
        ],
        showlegend=False,
        **panel(2),
    )
