"""The time that buckets take on the wire, each alone, and that of the last one, which nothing hides."""

from collections.abc import Sequence

from sim.costs.service_time import service_ns
from sim.nouns.assignment import Assignment
from sim.nouns.hardware import Curve
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.units import divide_half_even


def bucket_sizes(workload: Workload, assignment: Assignment) -> list[int]:
    """Bytes on the wire of each bucket."""
    return [
        sum(workload.gradients[index].on_wire for index in bucket) for bucket in assignment.bucket_indices
    ]


def wire_ns(curve: Curve, sizes: Sequence[int]) -> int:
    """The sum in ns of the service times of buckets of ``sizes`` bytes, each alone on its channel."""
    return sum(service_ns(curve, size) for size in sizes)


def bucket_ns(curve: Curve, sizes: Sequence[int], others: Sequence[int], smallest: int) -> int | None:
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


def tail_ns(timeline: Timeline) -> int | None:
    """ns of the last bucket's all-reduce; None unless the others are done when it is launched."""
    last = timeline.buckets[-1]
    others = [bucket.end_ns for bucket in timeline.buckets[:-1]]
    return last.service_ns if max(others, default=0) <= last.launch_ns else None
