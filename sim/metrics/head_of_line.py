"""The bucket that was ready while the link was idle, and had to wait for one before it."""

from sim.metrics.intervals import intersection_length
from sim.nouns.timeline import BucketTimes, Timeline


def find_blocked(timeline: Timeline) -> tuple[BucketTimes, BucketTimes, int] | None:
    """The bucket that waited longest for an earlier one to become ready while the link was idle.

    Returns the bucket that waited, the bucket that it waited for, and for how many ns the link was idle
    meanwhile; None where no bucket waited so. A system that does not launch in DDP's order (A3.5) launches
    the first before the second is ready, so that nothing is blocked. While a collective waits for another
    rank, its link is not idle.
    """
    worst: tuple[BucketTimes, BucketTimes, int] | None = None
    taken = [(played.start_ns - played.late_ns, played.end_ns) for played in timeline.collectives]
    latest: BucketTimes | None = None  # of those before, the one that was ready last
    for k, waiting in enumerate(timeline.buckets):
        blocking = latest
        if blocking is not None and blocking.ready_ns > waiting.launch_ns:  # without DDP's order
            earlier = [other for other in timeline.buckets[:k] if other.ready_ns <= waiting.launch_ns]
            blocking = max(earlier, key=lambda bucket: bucket.ready_ns, default=None)
        if latest is None or waiting.ready_ns > latest.ready_ns:
            latest = waiting
        if blocking is None or blocking.ready_ns <= waiting.ready_ns:
            continue
        waited = blocking.ready_ns - waiting.ready_ns
        if worst is not None and waited <= worst[2]:
            continue
        idle = waited - intersection_length([(waiting.ready_ns, blocking.ready_ns)], taken)
        if worst is None or idle > worst[2]:
            worst = (waiting, blocking, idle)
    return worst
