"""What NCCL chooses on one machine and not on another, and what its old choices would cost."""

from collections.abc import Iterable

from sim.clusters.nccl.choosing import Method, choose, methods, time_ns
from sim.clusters.scaling.carried import Carried
from sim.nouns.hardware import Curve, CurvePoint


def switched_methods(before: Carried, after: Carried, sizes: Iterable[int]) -> list[tuple[int, str, str]]:
    """Sizes in bytes that go by another method now, with the old and the new one by name.

    Empty if a curve was measured, or if one of the old methods cannot be had on the new machine.
    """
    if before.source != "computed" or after.source != "computed":
        return []
    allowed = methods(after.fabric, "all_reduce")
    found: list[tuple[int, str, str]] = []
    for size in sizes:
        was, now = _choice(before, size), _choice(after, size)
        if was is None or now is None or was == now:
            continue
        if was not in allowed:
            return []
        found.append((size, str(was), str(now)))
    return found


def by_old_methods(before: Carried, after: Carried) -> Curve:
    """The all-reduce curve of ``after`` by the methods of ``before``; by its own if those cannot be had."""
    allowed = methods(after.fabric, "all_reduce")

    def duration_ns(size: int) -> int:
        was, now = _choice(before, size), _choice(after, size)
        chosen = was if was in allowed else now
        return 0 if chosen is None else time_ns(after.fabric, "all_reduce", size, chosen)

    return tuple(
        CurvePoint(num_bytes=point.num_bytes, duration_ns=duration_ns(point.num_bytes))
        for point in after.hardware.all_reduce
    )


def _choice(carried: Carried, size: int) -> Method | None:
    return choose(carried.fabric, "all_reduce", size)
