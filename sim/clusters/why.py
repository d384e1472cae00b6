"""Why the cap that was best on one machine is not on the next: the cause, checked by steps without it.

Between two machines an all-reduce changes by what one bucket more costs and by what a byte costs. Each is put
back to what it was, all else left as it is now, and the old cap played against the new one: it is the cause
only where the old cap is then no worse by more than 0.1 % of the step. Where neither is it alone, or a
bucket's cost cannot be told from that of bytes, the all-reduces as they were are played as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sim.costs.service_time import service_ns
from sim.nouns.hardware import Curve, Hardware
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.tuner.gain import NOTHING
from sim.tuner.problem import Problem
from sim.units import divide_half_even, format_ms, format_number, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One machine, its best cap in MiB with that cap's step, and whether all caps are within 0.1 % of it."""

    hardware: Hardware
    best_mb: float
    best_ns: int
    all_are_alike: bool


def why_caps_change(workload: Workload, before: Side, after: Side) -> tuple[str, str]:
    """A code (``cost-of-a-bucket``, ``bandwidth``, ``all-reduces``) and a sentence on why the best cap of
    ``before`` is not as good on ``after``; both empty where it is, within 0.1 %."""
    cuts = [assign(workload, bucket_cap_mb=side.best_mb).bucket_indices for side in (before, after)]
    sizes = [[sum(workload.gradients[index].on_wire for index in one) for one in cut] for cut in cuts]
    old, new = (side.hardware.all_reduce for side in (before, after))

    def lost_ns(curve: Curve) -> int:
        """By how much the old cap's step is longer than the new one's, on the new machine with this curve."""
        problem = Problem(workload, replace(after.hardware, all_reduce=curve, spread={}))
        first, second = (problem.sync_end_ns(cut) for cut in cuts)
        return problem.times * (first - second)

    def matters(lost: int) -> bool:
        return lost > NOTHING * after.best_ns

    lost = lost_ns(new)
    if not matters(lost):
        return "", ""
    was = f"{before.hardware.world_size} GPU{'s' if before.hardware.world_size > 1 else ''}"
    now = f"{after.hardware.world_size} GPU{'s' if after.hardware.world_size > 1 else ''}"
    counts = [f"{len(each)} bucket{'' if len(each) == 1 else 's'}" for each in sizes]
    code, why = "all-reduces", ""
    costs = [bucket_cost_ns(curve, *sizes) for curve in (old, new)]
    if None not in costs:
        first, second = (cost or 0 for cost in costs)
        # The old machine with the new cost of a bucket, and the new one with the old cost.
        alone, without = (lost_ns(_shifted(*each)) for each in ((old, second - first), (new, first - second)))
        if matters(alone) and not matters(without):
            code = "cost-of-a-bucket"
            why = (
                f"one bucket more costs {format_ms(second)} on the wire, {format_ms(first)} at {was}; at "
                f"{format_ms(first)} it would {_lose(without)}"
            )
        elif matters(without) and not matters(alone):
            code, why = "bandwidth", f"were bytes as fast as at {was}, it would {_lose(alone)}"
    if code != "cost-of-a-bucket":
        one = "s" if len(sizes[0]) == 1 else ""
        takes = [format_ms(sum(service_ns(curve, size) for size in sizes[0])) for curve in (new, old)]
        why = why or f"with all-reduces as at {was} it would {_lose(lost_ns(old))}"
        why = f"its {counts[0]} take{one} {takes[0]} on the wire ({takes[1]} at {was}); {why}"
    if before.all_are_alike and before.hardware.world_size > 1:
        why += f"; at {was} every cap was within 0.1 % of the best"
    return code, (
        f"at {now} bucket_cap_mb={format_number(before.best_mb, 6)}, the best at {was}, would take "
        f"{format_ms(lost)} ({format_percent(lost / after.best_ns)}) longer than "
        f"{format_number(after.best_mb, 6)} ({counts[0]} instead of {len(sizes[1])}); {why}"
    )


def bucket_cost_ns(curve: Curve, sizes: Sequence[int], others: Sequence[int]) -> int | None:
    """What one bucket more costs, in ns, where ``sizes`` and ``others`` are two ways to cut the same bytes.

    It is the difference of their times on the wire over that of their numbers of buckets; where both make as
    many, one bucket of all bytes takes the place of the second. A cost below 0 or above the whole time of the
    smallest bucket is no bucket's cost: it comes from a bend of the curve between the sizes, and None is the
    answer.
    """
    smallest = min(*sizes, *others)
    if len(sizes) == len(others):
        others = [sum(sizes)]
    more = len(sizes) - len(others)
    if not more:
        return None
    rise = sum(service_ns(curve, size) for size in sizes) - sum(service_ns(curve, size) for size in others)
    cost = divide_half_even(rise if more > 0 else -rise, abs(more))
    whole, rounded = service_ns(curve, smallest), len(sizes) + len(others)  # a ns for each rounding
    return min(max(cost, 0), whole) if -rounded <= cost <= whole + rounded else None


def _shifted(curve: Curve, by_ns: int) -> Curve:
    """``curve`` with every all-reduce so much longer; none below 0."""
    return tuple(replace(point, duration_ns=max(0, point.duration_ns + by_ns)) for point in curve)


def _lose(lost_ns: int) -> str:
    if format_ms(abs(lost_ns)) == format_ms(0):
        return "lose nothing"
    return f"lose {format_ms(lost_ns)}" if lost_ns > 0 else f"save {format_ms(-lost_ns)}"
