"""Why the cap that was best on one machine is not on the next: the cause, checked by steps without it.

Between two machines an all-reduce changes by what one bucket more costs and by what a byte costs. Each is put
back to what it was, all else left as it is now, and the old cap played against the new one: it is the cause
only where the old cap is then no worse by more than 0.1 % of the step. Where neither is it alone, or a
bucket's cost cannot be told from that of bytes, the all-reduces as they were are played as a whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sim.clusters.scaling.cap_steps import Tuned
from sim.clusters.scaling.carried import Carried, shifted, with_curve
from sim.costs.service_time import service_ns
from sim.nouns.hardware import Curve
from sim.nouns.workload import Workload
from sim.systems.registry import assign
from sim.tuner.gain import NOTHING
from sim.tuner.problem import Problem
from sim.units import divide_half_even, format_ms, format_number, format_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One machine, its best cap in MiB with that cap's step, and whether all caps are within 0.1 % of it."""

    carried: Carried
    best_mb: float
    best_ns: int
    all_are_alike: bool

    @property
    def gpus(self) -> str:
        """The machine in words: its number of GPUs."""
        ranks = self.carried.hardware.world_size
        return f"{ranks} GPU{'s' if ranks > 1 else ''}"

    @property
    def curve(self) -> Curve:
        """The all-reduce curve of the machine."""
        return self.carried.hardware.all_reduce


def side_of(tuned: Tuned, carried: Carried) -> Side:
    """What is kept of a machine's caps for its neighbours."""
    return Side(
        carried=replace(carried, hardware=tuned.problem.link),
        best_mb=tuned.best_mb,
        best_ns=tuned.best_ns,
        all_are_alike=tuned.all_are_alike,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A cause by code (``cost-of-a-bucket``, ``bandwidth``, ``all-reduces``), and the sentence."""

    code: str
    sentence: str


def find_reason(workload: Workload, before: Side, after: Side) -> Reason | None:
    """Why the best cap of ``before`` is not as good on ``after``; None where it is, within 0.1 %."""
    made = [assign(workload, bucket_cap_mb=side.best_mb) for side in (before, after)]
    sizes = [
        [sum(workload.gradients[index].on_wire for index in bucket) for bucket in one.bucket_indices]
        for one in made
    ]

    def lost_ns(curve: Curve) -> int:
        """By how much the old cap's step is longer than the new one's, on the new machine with this curve."""
        problem = Problem(workload, with_curve(after.carried.hardware, curve))
        ends = [problem.sync_end_ns(one.bucket_indices) for one in made]
        return problem.times * (ends[0] - ends[1])

    def matters(lost: int) -> bool:
        return lost > NOTHING * after.best_ns

    lost = lost_ns(after.curve)
    if not matters(lost):
        return None
    old, new = map(len, sizes)
    counts = f"{_buckets(old)} instead of {new}" if old != new else f"both make {_buckets(old)}"
    new_mb = format_number(after.best_mb, 6)
    opening = (
        f"at {after.gpus} bucket_cap_mb={format_number(before.best_mb, 6)}, the best at {before.gpus}, would "
        f"take {format_ms(lost)} ({format_percent(lost / after.best_ns)}) longer than {new_mb} ({counts})"
    )
    was_ns, now_ns = ([wire_ns(side.curve, each) for each in sizes] for side in (before, after))
    takes = f"its {_buckets(old)} take{'s' if old == 1 else ''}"
    cost = cost_of_a_bucket(before, after, *sizes)
    alone = without = 0
    if cost is not None:
        # The old machine with the new cost of a bucket, and the new one with the old cost.
        alone = lost_ns(shifted(before.curve, cost[1] - cost[0]))
        without = lost_ns(shifted(after.curve, cost[0] - cost[1]))
    was, now = ([format_ms(taken) for taken in each] for each in (was_ns, now_ns))
    code = "all-reduces"
    if cost is not None and matters(alone) != matters(without):
        code = "cost-of-a-bucket" if matters(alone) else "bandwidth"
    if cost is not None and code == "cost-of-a-bucket":
        why = (
            f"one bucket more costs {_us(cost[1])} on the wire, {_us(cost[0])} at {before.gpus}; at "
            f"{_us(cost[0])} it would {_lose(without)}"
        )
    elif code == "bandwidth":
        why = (
            f"{takes} {now[0]} on the wire ({was[0]} at {before.gpus}); were bytes as fast as at "
            f"{before.gpus}, it would {_lose(alone)}"
        )
    else:
        why = (
            f"{takes} {now[0]} on the wire, the {_buckets(new)} of {new_mb} {now[1]} ({was[0]} and "
            f"{was[1]} at {before.gpus}); with all-reduces as at {before.gpus} it would "
            f"{_lose(lost_ns(before.curve))}"
        )
    if before.all_are_alike and before.carried.hardware.world_size > 1:
        why += f"; at {before.gpus} every cap was within 0.1 % of the best"
    return Reason(code=code, sentence=f"{opening}; {why}")


def wire_ns(curve: Curve, sizes: Sequence[int]) -> int:
    """The sum in ns of the service times of buckets of ``sizes`` bytes, each alone on its channel."""
    return sum(service_ns(curve, size) for size in sizes)


def cost_of_a_bucket(
    before: Side, after: Side, old_sizes: Sequence[int], new_sizes: Sequence[int]
) -> tuple[int, int] | None:
    """What the wire takes for one bucket more with the bytes the same, in ns, before and after.

    It is told by the buckets of the two caps (bytes on the wire of each), or, if both make as many, by those
    of the old cap against one bucket of all bytes. None if NCCL sends some of them by another method than the
    rest, or if the curve bends between them.
    """
    sizes = {*old_sizes, *new_sizes}
    if any(len(set(map(side.carried.method, sizes))) > 1 for side in (before, after)):
        return None
    others = [sum(old_sizes)] if len(new_sizes) == len(old_sizes) else new_sizes
    was, now = (_bucket_ns(side.curve, old_sizes, others, min(sizes)) for side in (before, after))
    return None if was is None or now is None else (was, now)


def _bucket_ns(curve: Curve, sizes: Sequence[int], others: Sequence[int], smallest: int) -> int | None:
    """What one bucket more costs, in ns, where ``sizes`` and ``others`` are two ways to cut the same bytes.

    The cost is the difference of their times on the wire, over the difference of their numbers of buckets. A
    cost below 0 or above the whole time of a bucket of ``smallest`` bytes is no bucket's cost: it comes from
    a bend of the curve between the sizes, and the answer is None. A cost that is beyond these limits by no
    more than one ns for each bucket may come from rounded service times, and is moved to the limit.
    """
    more = len(sizes) - len(others)
    rise = wire_ns(curve, sizes) - wire_ns(curve, others)
    cost = divide_half_even(rise if more > 0 else -rise, abs(more))
    rounded = len(sizes) + len(others)
    whole = service_ns(curve, smallest)
    return min(max(cost, 0), whole) if -rounded <= cost <= whole + rounded else None


def _buckets(count: int) -> str:
    return f"{count} bucket{'' if count == 1 else 's'}"


def _lose(lost_ns: int) -> str:
    if format_ms(abs(lost_ns)) == format_ms(0):
        return "lose nothing"
    return f"lose {format_ms(lost_ns)}" if lost_ns > 0 else f"save {format_ms(-lost_ns)}"


def _us(ns: int) -> str:
    return f"{ns / 1000:.0f} us" if abs(ns) < 1_000_000 else format_ms(ns)
