"""Rules by which other systems merge gradients, as peers to beat: the buckets that they would make, in launch
order.

Our own code for published rules. What is taken over is which gradients travel together, per dtype and device
(a sparse gradient alone); launches and copies are DDP's.
"""

from collections.abc import Hashable

from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.problem import Buckets
from sim.units import MIB, NS_PER_MS

# Horovod's own (its documentation of 0.28; 64 MiB up to 0.21).
FUSION_THRESHOLD_BYTES = 128 * MIB
CYCLE_TIME_NS = NS_PER_MS


def fit_alpha_beta(hardware: Hardware) -> tuple[float, float]:
    """The line ``alpha + beta * num_bytes`` (ns, ns per byte) that comes closest to the all-reduce curve.

    Least squares of relative errors: a curve spans many powers of ten, and a line fitted to absolute times
    would have no latency left. Neither is negative: a line that would be is refitted without the term. A
    curve of one point is flat; one rank pays nothing.
    """
    if hardware.world_size == 1:
        return 0.0, 0.0
    curve = hardware.all_reduce
    points = [(point.num_bytes, point.duration_ns, 1 / max(1, point.duration_ns) ** 2) for point in curve]
    weight = sum(w for _, _, w in points)
    mean_x = sum(x * w for x, _, w in points) / weight
    mean_y = sum(y * w for _, y, w in points) / weight
    spread = sum((x - mean_x) ** 2 * w for x, _, w in points)
    if spread == 0:
        return mean_y, 0.0
    beta = sum((x - mean_x) * (y - mean_y) * w for x, y, w in points) / spread
    if beta <= 0:
        return mean_y, 0.0
    alpha = mean_y - beta * mean_x
    if alpha < 0:
        through_zero = sum(x * x * w for x, _, w in points)
        return 0.0, sum(x * y * w for x, y, w in points) / through_zero
    return alpha, beta


def merge_wisely(workload: Workload, alpha: float, beta: float) -> Buckets:
    """MG-WFBP: merge a gradient with the next one where that costs less than another start-up.

    S. Shi, X. Chu, B. Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD
    Algorithms", INFOCOM 2019; "MG-WFBP: Merging Gradients Wisely for Efficient Communication in Distributed
    Deep Learning", IEEE TPDS 2021. A collective of M bytes takes ``alpha + beta * M`` ns, one at a time. In
    ready order, a bucket whose collective could start at s takes in the next gradient, too, if that is ready
    before s + alpha. Runs of several dtypes or devices are each cut as if they had the channel alone.

    Each merge is right for the two that it joins; all of them together are not always this model's optimum.
    """
    order = workload.order()
    places = {index: place for place, index in enumerate(order)}
    runs: dict[Hashable, list[int]] = {}
    for index in order:
        gradient = workload.gradients[index]
        runs.setdefault(index if gradient.sparse else gradient.key, []).append(index)
    buckets = [bucket for run in runs.values() for bucket in _merge_run(workload, run, alpha, beta)]
    return tuple(sorted(buckets, key=lambda bucket: places[bucket[-1]]))


def _merge_run(workload: Workload, run: list[int], alpha: float, beta: float) -> list[tuple[int, ...]]:
    made: list[tuple[int, ...]] = []
    bucket: list[int] = []
    start = free = 0.0
    for index in run:
        ready = float(workload.gradients[index].ready_ns or 0)
        if bucket and ready >= start + alpha:
            num_bytes = sum(workload.gradients[member].on_wire for member in bucket)
            free = start + alpha + beta * num_bytes
            made.append(tuple(bucket))
            bucket = []
        bucket.append(index)
        start = max(free, ready)
    return [*made, tuple(bucket)]


def fuse_in_cycles(
    workload: Workload,
    threshold_bytes: int = FUSION_THRESHOLD_BYTES,
    cycle_time_ns: int = CYCLE_TIME_NS,
) -> Buckets:
    """Horovod's tensor fusion: what has become ready by a cycle's tick is fused up to a threshold.

    Ticks are multiples of ``cycle_time_ns`` from the start of backward; no cycle lasts longer than that. In
    each, the first waiting gradient opens a buffer and those behind it join in order while all together are
    at most ``threshold_bytes``; gradients of another dtype or device are passed over for as long as the
    buffer could hold them, too. A sparse gradient is gathered, alone. Horovod would launch at the tick, here
    a bucket is launched as soon as DDP's rules have it.
    """
    cycles: dict[int, list[int]] = {}
    for index in workload.order():
        ready = workload.gradients[index].ready_ns or 0
        cycles.setdefault(-(-ready // cycle_time_ns), []).append(index)
    return tuple(
        bucket for waiting in cycles.values() for bucket in _fuse(workload, waiting, threshold_bytes)
    )


def _fuse(workload: Workload, waiting: list[int], threshold_bytes: int) -> list[tuple[int, ...]]:
    """The buckets of one cycle, in launch order."""
    made = []
    while waiting:
        first, *others = waiting
        opener = workload.gradients[first]
        bucket, passed, size, seen = [first], [], opener.num_bytes, opener.num_bytes
        for place, index in enumerate(others):
            gradient = workload.gradients[index]
            seen += gradient.num_bytes
            alike = gradient.key == opener.key and not gradient.sparse and not opener.sparse
            if alike and size + gradient.num_bytes <= threshold_bytes:
                bucket.append(index)
                size += gradient.num_bytes
            elif seen <= threshold_bytes:
                passed.append(index)
            else:
                passed += others[place:]
                break
        made.append(tuple(bucket))
        waiting = passed
    return made
