"""What several steps show of one thing: which of them are quiet, and the curve of their all-reduces."""

from collections.abc import Collection, Mapping, Sequence

from sim.importer.imported import count_of, few
from sim.nouns.hardware import Curve, CurvePoint
from sim.units import NS_PER_MS, format_ms, median_ns

_FACTOR = 2
# Steps differ by so much without a reason: a late launch; on a CPU the scheduler takes the cores away.
_HICCUP_NS = {True: 2 * NS_PER_MS, False: 50 * NS_PER_MS}


def quiet_numbers(lengths_ns: Mapping[int, int], *, on_gpu: bool) -> set[int]:
    """The numbers of the shortest steps that bear each other out, be they the minority.

    They are at least two within a factor of the shortest of them; a step alone is taken as it is. Empty where
    every step differs manifold from every other.

    Args:
        lengths_ns: by step number.
        on_gpu: whether the device that computed is one.
    """
    if len(lengths_ns) < 2:
        return set(lengths_ns)
    for least in sorted(lengths_ns.values()):
        most = max(_FACTOR * least, least + _HICCUP_NS[on_gpu])
        alike = {number for number, time in lengths_ns.items() if least <= time <= most}
        if len(alike) > 1:
            return alike
    return set()


def left_out(lengths_ns: Mapping[int, int], quiet: Collection[int]) -> str:
    """A sentence on steps that are not quiet; empty if all are.

    Args:
        lengths_ns: by step number, that of the rank that took longest.
        quiet: the numbers of ``quiet_numbers``, at least one.
    """
    loud = [number for number in lengths_ns if number not in quiet]
    if not loud:
        return ""
    shown = few([f"step {number}: {format_ms(lengths_ns[number])}" for number in loud])
    used = few([f"{number} ({format_ms(lengths_ns[number])})" for number in sorted(quiet)])
    return (
        f"steps differ manifold; {count_of(len(loud), 'step')} of {len(lengths_ns)} left out ({shown}); the "
        f"import is made of the quiet steps alone: {used}"
    )


# ---- curves

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
