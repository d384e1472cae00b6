"""What the points of a scaling figure say: the three assignments that each row holds, and their hovers."""

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import wrap

from app.figures.style import ACCENT, ALARM, GOOD, safe
from sim.nouns.scaling_row import ScalingRow
from sim.units import format_mib_range, format_ms, format_number, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One of the three assignments that each row holds, and how it is drawn."""

    name: str
    colour: str
    dash: str
    symbol: str
    step_ns: Callable[[ScalingRow], int]
    exposed_ns: Callable[[ScalingRow], int]
    efficiency: Callable[[ScalingRow], float]


CURVES = (
    Curve(
        name="DDP's default",
        colour=ALARM,
        dash="dash",
        symbol="diamond",
        step_ns=lambda row: row.default_step_ns,
        exposed_ns=lambda row: row.default_exposed_comm_ns,
        efficiency=lambda row: row.default_efficiency,
    ),
    Curve(
        name="best cap",
        colour=ACCENT,
        dash="solid",
        symbol="circle",
        step_ns=lambda row: row.cap_step_ns,
        exposed_ns=lambda row: row.cap_exposed_comm_ns,
        efficiency=lambda row: row.cap_efficiency,
    ),
    Curve(
        name="best buckets",
        colour=GOOD,
        dash="dot",
        symbol="star",
        step_ns=lambda row: row.optimum_step_ns,
        exposed_ns=lambda row: row.optimum_exposed_comm_ns,
        efficiency=lambda row: row.optimum_efficiency,
    ),
)


def percent(ns: int, step_ns: int) -> float:
    """A time in percent of a step; all of it where the step takes no time."""
    return 100 * ns / step_ns if step_ns else 100.0


def text_of(curve: Curve, row: ScalingRow) -> str:
    """The hover of one assignment at one world size."""
    step, exposed = curve.step_ns(row), curve.exposed_ns(row)
    lines = [
        f"<b>{curve.name}, {row.world_size:,} ranks</b>",
        f"efficiency {format_percent(curve.efficiency(row))}, step {format_ms(step)}",
        f"exposed {format_ms(exposed)}, {format_percent(exposed / step if step else 0.0)} of the step",
    ]
    if curve.name == "DDP's default":
        lines.append(f"{row.default_num_buckets} buckets, {_behind_words(row)}")
    elif curve.name == "best cap":
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
    lines = [
        f"<b>bucket_cap_mb={format_number(row.bucket_cap_mb, 4)}, {row.world_size:,} ranks</b>",
        f"as good around it, in MiB: {format_mib_range(row.cap_low_mb, row.cap_high_mb)}{_elsewhere(row)}",
        f"DDP's default is {'as good' if row.default_is_alike else _behind_words(row)}",
    ]
    if not row.cap_is_sure:
        lines.append(
            f"not sure: the ends of the curve's range choose {format_number(row.best_cap_low_mb, 4)} and "
            f"{format_number(row.best_cap_high_mb, 4)} MiB"
        )
    if row.reason:
        lines.append(_wrapped(row.reason))
    return "<br>".join(lines)


def _elsewhere(row: ScalingRow) -> str:
    more = row.cap_num_stretches - 1
    return f"; {more} stretch{'es' if more > 1 else ''} elsewhere too" if more else ""


def _wrapped(text: str) -> str:
    lines = wrap(text, 71, break_long_words=False, break_on_hyphens=False)
    return "<br>".join(safe(line, 140) for line in lines)


def _behind_words(row: ScalingRow) -> str:
    behind = row.default_step_ns - row.cap_step_ns
    return f"{format_ms(abs(behind))} {'behind' if behind >= 0 else 'before'} the best cap"
