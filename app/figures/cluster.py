"""A machine: its all-reduce curve, and how a workload scales on it."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from app.figures import style
from sim.clusters.scaling import ScalingRow
from sim.nouns.collective import bus_factor
from sim.nouns.hardware import Hardware
from sim.units import NS_PER_S, format_mib_range, format_ms, format_number, format_size

_SIZE_TICKS = tuple(1 << power for power in range(10, 34, 5))
_TIME_TICKS = tuple(10**power for power in range(9))  # in us
_TIME_TEXTS = [f"{n} {unit}" for unit in ("us", "ms", "s") for n in (1, 10, 100)]


@dataclass(frozen=True, slots=True)
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
        return duration_ns / 1000 or None, None if rate is None else rate / 1e9

    @property
    def text(self) -> str:
        """What a hover says."""
        head = f"<b>{format_size(self.num_bytes)}</b>{f', {style.safe(self.method)}' if self.method else ''}"
        between = f", stated range {self.low_ns / 1000:,.1f} to {self.high_ns / 1000:,.1f} us"
        time = f"{self.duration_ns / 1000:,.1f} us{between if self.low_ns < self.high_ns else ''}"
        rate = self.bytes_per_s(self.duration_ns)
        bus = [] if rate is None else [f"bus bandwidth {format_number(rate / 1e9, 4)} GB/s"]
        return "<br>".join([head, time, *bus])


def curve_rows(hardware: Hardware) -> list[CurveRow]:
    """The points of the all-reduce curve of a computed machine that carry something."""
    methods, stated = hardware.provenance.get("methods", {}), hardware.spread.get("all_reduce", {})
    factor, rows = bus_factor("all_reduce", hardware.world_size), []
    for point in hardware.all_reduce:
        size, time = point.num_bytes, point.duration_ns
        ends = stated.get(str(size), {})
        low, high = ends.get("min_ns", time), ends.get("max_ns", time)
        low, high = (low, high) if low <= time <= high else (time, time)
        if size:
            rows.append(CurveRow(size, time, low, high, factor, methods.get(str(size), "")))
    return rows


def draw_curve(rows: Sequence[CurveRow]) -> go.Figure:
    """Time and bus bandwidth over size; a colour for each algorithm and protocol, the range as a band."""
    traces = []
    methods = list(dict.fromkeys(row.method for row in rows))
    for place in (0, 1):
        of_panel: dict[str, Any] = {"showlegend": place == 0, **style.panel(place + 1)}
        ends = [
            (row.num_bytes, *(row.heights(end)[place] for end in (row.low_ns, row.high_ns))) for row in rows
        ]
        if any(row.low_ns < row.high_ns for row in rows):
            sizes, lows, highs = zip(*[one for one in ends if one[1] and one[2]], strict=True)
            look: dict[str, Any] = {"legendgroup": "range", **of_panel}
            traces.append(style.area("stated range", sizes, lows, highs, style.ACCENT, **look))
        at = {row.num_bytes: row.heights(row.duration_ns)[place] for row in rows}
        unnamed = of_panel | {"showlegend": False}
        traces.append(style.line(None, at, at.values(), style.LINE, width=1, **unnamed))
        for number, method in enumerate(methods):
            members = {row.num_bytes: row.text for row in rows if row.method == method}
            colour = style.BUCKETS[number % len(style.BUCKETS)] if method else style.ACCENT
            look = {"size": 8, "legendgroup": method, **of_panel}
            name, ys = style.safe(method) or "measured", [at[size] for size in members]
            traces.append(style.dots(name, members, ys, colour, members.values(), **look))
    across: dict[str, Any] = {"type": "log", "title": "size (log)", "tickvals": _SIZE_TICKS}
    across["ticktext"] = [format_size(tick) for tick in _SIZE_TICKS]
    return style.figure(
        traces,
        380,
        grid=make_subplots(cols=2, horizontal_spacing=0.13, subplot_titles=("Time", "Bus bandwidth, GB/s")),
        xaxis=across,
        xaxis2=across,
        yaxis={"type": "log", "title": "time (log)", "tickvals": _TIME_TICKS, "ticktext": _TIME_TEXTS},
        yaxis2={"rangemode": "tozero"},
        legend=style.LEGEND_BELOW,
    )


# The three assignments that each row holds: how its fields begin, the name, colour, dash and symbol.
CURVES = {
    "default": ("DDP's default", style.ALARM, "dash", "diamond"),
    "cap": ("best cap", style.ACCENT, "solid", "circle"),
    "optimum": ("best buckets", style.GOOD, "dot", "star"),
}


def _percent(row: ScalingRow, step: str) -> float:
    """What one GPU alone takes, in percent of the step in the field ``step``: the efficiency."""
    step_ns = getattr(row, step)
    return 100 * row.single_step_ns / step_ns if step_ns else 100.0


def _text(curve: str, row: ScalingRow) -> str:
    """The hover of one assignment at one world size."""
    step: int = getattr(row, f"{curve}_step_ns")
    buckets: int = getattr(row, f"{curve}_num_buckets")
    cap = f", bucket_cap_mb={format_number(row.bucket_cap_mb, 4)}" if curve == "cap" else ""
    proof = f", {'' if row.proved_optimal else 'not '}proved optimal" if curve == "optimum" else ""
    lines = (
        f"<b>{CURVES[curve][0]}{cap}, {row.world_size:,} ranks</b>",
        f"efficiency {_percent(row, f'{curve}_step_ns'):.1f}%, step {format_ms(step)}",
        f"exposed {format_ms(step - row.single_step_ns)}; {buckets} buckets{proof}",
    )
    return "<br>".join(lines)


def _cap_text(row: ScalingRow) -> str:
    """The hover of a best cap: the caps as good, whether the curve's range would choose another, and why."""
    lines = [_text("cap", row), f"as good around it: {format_mib_range(row.cap_low_mb, row.cap_high_mb)} MiB"]
    if not row.cap_is_sure:
        low, high = format_number(row.best_cap_low_mb, 4), format_number(row.best_cap_high_mb, 4)
        lines.append(f"not sure: the ends of the curve's range choose {low} and {high} MiB")
    wrapped = wrap(row.reason, 71, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(lines + [style.safe(line, 140) for line in wrapped])


def scaling_figure(rows: Sequence[ScalingRow]) -> go.Figure:
    """Three panels over world size, on logarithmic axes: efficiency, exposed communication, the best cap.

    The band about the best cap's efficiency is the range of the all-reduce curve, that about the cap holds
    the caps around it within 0.1 % of the best; where the best cap changes, a hover says why.
    """
    rows = sorted(rows, key=lambda row: row.world_size)
    # From half the smallest cap to twice the largest: what stands for 0 and for no end on the axis.
    caps = [cap for row in rows for cap in (row.bucket_cap_mb, row.cap_low_mb, row.cap_high_mb) if cap]
    least, most = min(caps, default=1.0) / 2, max(caps, default=1.0) * 2
    traces = [*_steps(rows), *_caps(rows, least, most)]
    sizes = sorted({row.world_size for row in rows})
    across = {"type": "log", "tickvals": sizes, "ticktext": [f"{size:,}" for size in sizes]}
    titles = ("Efficiency", "Exposed communication", "Best bucket_cap_mb")
    return style.figure(
        traces,
        780,
        grid=make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.06, subplot_titles=titles),
        xaxis=across,
        xaxis2=across,
        xaxis3=across | {"title": "world size, ranks (log)"},
        yaxis={"title": "of one GPU alone, %"},
        yaxis2={"title": "ms a step", "rangemode": "tozero"},
        yaxis3=style.mib_ticks(style.MIB_TICKS if most / least < 100 else style.MIB_TICKS[::2])
        | {"title": "MiB (log)"},
        legend=style.LEGEND_BELOW,
    )


def _steps(rows: Sequence[ScalingRow]) -> list[style.Trace]:
    """Efficiency, and what is exposed, under three assignments."""
    xs, traces = [row.world_size for row in rows], []
    for curve, (title, colour, dash, symbol) in CURVES.items():
        step = f"{curve}_step_ns"
        look: dict[str, Any] = {"mode": "lines+markers", "line": {"width": 2, "dash": dash}, "symbol": symbol}
        heights = (
            [_percent(row, step) for row in rows],
            [style.ms(getattr(row, step) - row.single_step_ns) for row in rows],
        )
        for number, ys in enumerate(heights, start=1):
            place = {"legendgroup": title, "showlegend": number == 1, **style.panel(number)}
            texts = [_text(curve, row) for row in rows]
            traces.append(style.dots(title, xs, ys, colour, texts, **look, **place))
    if any(row.cap_step_low_ns != row.cap_step_high_ns for row in rows):
        lows, highs = ([_percent(row, f"cap_step_{end}_ns") for row in rows] for end in ("high", "low"))
        told = "best cap over the range of the curve"
        look = {"legendgroup": told, **style.panel(1)}
        traces.append(style.area(told, xs, lows, highs, style.ACCENT, **look))
    return traces


def _caps(rows: Sequence[ScalingRow], least: float, most: float) -> list[style.Trace]:
    """The best cap, the caps around it that are as good, and a ring where it changes."""
    lows = [max(row.cap_low_mb, least) for row in rows]
    highs = [most if row.cap_high_mb is None else row.cap_high_mb for row in rows]
    xs, of_panel = [row.world_size for row in rows], style.panel(3)
    around = "caps around the best within 0.1 % of it"
    traces = [style.area(around, xs, lows, highs, style.GOOD, legendgroup=around, **of_panel)]
    lined = {"mode": "lines+markers", "line": {"width": 2}, "legendgroup": "best cap", "showlegend": False}
    ring = {"symbol": "circle-open", "size": 17, "marker": {"line": {"width": 2}}}
    changes, told = [row for row in rows if row.reason], "best cap changes: hover for why"
    for title, members, colour, look in (
        ("best cap", rows, style.ACCENT, lined),
        (told, changes, style.LINE, ring),
    ):
        if members:
            xs = [row.world_size for row in members]
            heights = [max(row.bucket_cap_mb, least) for row in members]
            traces.append(style.dots(title, xs, heights, colour, map(_cap_text, members), **look, **of_panel))
    return traces
