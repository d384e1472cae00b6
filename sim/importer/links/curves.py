"""Curves and their scatter from the rows of link benchmarks."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

from sim.importer.links.columns import Variant
from sim.importer.links.link_rows import LinkRow, Timing
from sim.nouns.hardware import Curve, CurvePoint
from sim.units import median_ns

# DDP reduces its buckets in place: the buffer that goes in is the one that comes out.
_PREFERRED: tuple[Variant, ...] = ("in", "only", "out")


def chosen(row: LinkRow) -> tuple[Variant, Timing]:
    """The timing of a row that counts: in place where there is one."""
    return next((variant, row.timings[variant]) for variant in _PREFERRED if variant in row.timings)


def curve_of(rows: Iterable[LinkRow], statistic: str) -> tuple[Curve, dict[str, dict[str, Any]]]:
    """The points of a curve, medians over rows of one size, and their ``spread``.

    Of several rows the spread is over these; of one, what its file says of its samples, or else the two
    timings in and out of place. A size with a single timing has none.
    """
    by_size: dict[int, list[LinkRow]] = defaultdict(list)
    for row in rows:
        by_size[row.num_bytes].append(row)
    points, spread = [], {}
    for num_bytes, same in sorted(by_size.items()):
        timings = [chosen(row)[1] for row in same]
        duration = median_ns([timing.duration_ns for timing in timings])
        points.append(CurvePoint(num_bytes=num_bytes, duration_ns=duration))
        if known := _spread(same, timings, duration, statistic):
            spread[str(num_bytes)] = known
    return tuple(points), spread


def _spread(
    rows: list[LinkRow], timings: list[Timing], duration: int, statistic: str
) -> dict[str, Any] | None:
    if len(rows) > 1:
        low = min(timing.scatter.get("min_ns", timing.duration_ns) for timing in timings)
        high = max(timing.scatter.get("max_ns", timing.duration_ns) for timing in timings)
        count = sum(timing.scatter.get("count", 1) for timing in timings)
        return _between(count, "median", duration, low, high, "repeated rows")
    scatter = timings[0].scatter
    if scatter:
        return {"quantile": statistic, **scatter, "of": "what the file says of its samples"}
    both = [timing.duration_ns for timing in rows[0].timings.values()]
    if len(both) == 2:
        return _between(2, statistic, duration, min(both), max(both), "in place and out of place")
    return None


def _between(count: int, quantile: str, middle: int, low: int, high: int, of: str) -> dict[str, Any]:
    return {
        "count": count,
        "quantile": quantile,
        "median_ns": middle,
        "min_ns": low,
        "max_ns": high,
        "of": of,
    }


def in_place_ratio(rows: Iterable[LinkRow]) -> dict[str, float] | None:
    """Time in place over time out of place: median, least and greatest over rows with both; None without."""
    ratios = [
        row.timings["in"].duration_ns / row.timings["out"].duration_ns
        for row in rows
        if "in" in row.timings and "out" in row.timings
    ]
    if not ratios:
        return None
    return {
        "median": round(median(ratios), 4),
        "least": round(min(ratios), 4),
        "greatest": round(max(ratios), 4),
        "rows": len(ratios),
    }
