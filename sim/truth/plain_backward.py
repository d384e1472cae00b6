"""A recorded backward without what collectives beside it did to it: the inverse of ``compute_slowdown``."""

from dataclasses import replace

from sim.metrics.intervals import union
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload


def without_interference(timeline: Timeline, compute_slowdown: float) -> Workload:
    """The workload of ``timeline`` as its backward would have gone alone.

    Recorded beside collectives, a backward contains what those of its own buckets did to it; other buckets
    would do something else. While one of these is on the wire, 1 ns of recorded time is ``1 /
    compute_slowdown`` ns of computing. Played with that slow-down and the same buckets, what comes out is
    what was recorded.

    Args:
        timeline: the recorded step, played under the buckets that it was recorded with.
        compute_slowdown: what a collective makes of computing beside it, 1 or more.
    """
    workload = timeline.workload
    busy = union((bucket.start_ns, bucket.end_ns) for bucket in timeline.buckets)

    def plain(time: int) -> int:
        beside = sum(max(0, min(end, time) - start) for start, end in busy)
        return round(time - beside * (1 - 1 / compute_slowdown))

    def moved(times: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return tuple(None if time is None else plain(time) for time in times)

    ready = moved(tuple(gradient.ready_ns for gradient in workload.gradients))
    return replace(
        workload,
        gradients=tuple(
            replace(gradient, ready_ns=time) for gradient, time in zip(workload.gradients, ready, strict=True)
        ),
        backward_ns=plain(workload.backward_ns),
        ready_order=workload.order(),
        ready_includes=tuple(effect for effect in workload.ready_includes if effect != "interference"),
        samples=tuple(map(moved, workload.samples)),
    )
