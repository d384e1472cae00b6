"""A curve of all-reduces that were seen in training steps, several of each size."""

from collections.abc import Mapping, Sequence

from sim.nouns.hardware import Curve, CurvePoint
from sim.units import median_ns

SHORTEST_OVER_RANKS = "median over steps of the shortest over ranks"


def median_curve(by_size: Mapping[int, Sequence[int]]) -> Curve:
    """The median of the times (ns) of each size (bytes)."""
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=median_ns(times)) for size, times in sorted(by_size.items())
    )


def scatter_by_size(by_size: Mapping[int, Sequence[int]], quantile: str) -> dict[str, dict[str, int | str]]:
    """How the times (ns) of each size scatter, as in ``Hardware.spread``; ``quantile``: words for a time."""
    return {
        str(size): {
            "count": len(times),
            "min_ns": min(times),
            "median_ns": median_ns(times),
            "max_ns": max(times),
            "quantile": quantile,
        }
        for size, times in sorted(by_size.items())
    }
