"""Tables of ``bucketsim cluster``: one curve, and the most loaded links."""

from collections.abc import Sequence
from typing import Any

from sim.cli.printing import table
from sim.nouns.hardware import Hardware
from sim.nouns.link_load import LinkLoad
from sim.units import NS_PER_S, format_number, format_size, format_time

_SHOWN = tuple(1 << power for power in range(10, 34, 2))
_MOST_LOADS = 16


def print_curve(hardware: Hardware, collective: str) -> None:
    """Times, where they may lie, and bus bandwidths (as nccl-tests count them) at powers of four."""
    methods: dict[str, Any] = hardware.provenance.get("methods", {}) if collective == "all_reduce" else {}
    expected: dict[str, Any] = hardware.spread.get(collective, {})
    factor = bus_factor(collective, hardware.world_size)
    rows = [
        {
            "size": format_size(point.num_bytes),
            "time": format_time(point.duration_ns),
            "expected": _range(expected.get(str(point.num_bytes))),
            "bus bandwidth": f"{factor * point.num_bytes * NS_PER_S / point.duration_ns / 1e9:.1f} GB/s"
            if point.duration_ns
            else "-",
            "by": str(methods.get(str(point.num_bytes), "-")),
        }
        for point in getattr(hardware, collective) or ()
        if point.num_bytes in _SHOWN
    ]
    left_out = {*(() if methods else ("by",)), *(() if expected else ("expected",))}
    columns = [name for name in ("size", "time", "expected", "bus bandwidth", "by") if name not in left_out]
    table(
        f"{hardware.name}: {collective.replace('_', '-')}",
        columns,
        [[row[name] for name in columns] for row in rows],
        words=["by"],
    )


def _range(known: dict[str, Any] | None) -> str:
    """Where a time may lie; of a measured point nothing is open."""
    return (
        "measured" if known is None else f"{format_time(known['min_ns'])} to {format_time(known['max_ns'])}"
    )


def print_loads(loads: Sequence[LinkLoad], algorithm: str) -> None:
    """The links between hosts that are busy longest, for 1 GiB of message; equal figures in one row."""
    rows: dict[tuple[str, ...], list[LinkLoad]] = {}
    for load in loads:
        key = (
            f"{format_number(load.bytes_per_s / 1e9, 4)} GB/s",
            format_number(load.share, 4),
            format_time(round(load.s_per_byte * (1 << 30) * NS_PER_S)),
        )
        rows.setdefault(key, []).append(load)
    table(
        f"links between hosts by the time that 1 GiB by {algorithm} keeps them busy",
        ["link", "of", "carries", "bytes per byte", "busy"],
        [
            [f"{alike[0].a} > {alike[0].b}", str(len(alike)), *key]
            for key, alike in list(rows.items())[:_MOST_LOADS]
        ],
    )


def bus_factor(collective: str, world_size: int) -> float:
    """What nccl-tests multiply the message's rate by (nccl-tests doc/PERFORMANCE.md)."""
    if collective == "broadcast":
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (world_size - 1) / world_size
