"""What buckets cost in memory, from what a timeline holds when."""

from collections.abc import Iterable

from sim.nouns.assignment import bucket_bytes
from sim.nouns.memory import Holding, Memory
from sim.nouns.timeline import Timeline

_GIVEN_BACK, _AT_ONCE, _TAKEN = range(3)  # in this order in one instant


def buffer_memory(timeline: Timeline) -> Memory:
    """What buckets cost on one rank in the timeline's step, in bytes (``Memory`` says what is counted)."""
    kept = sum(one.num_bytes for one in timeline.holdings if one.start_ns is None)
    sizes = bucket_bytes(timeline.workload, timeline.assignment.bucket_indices)
    return Memory(
        buffers_bytes=kept,
        transient_peak_bytes=peak_bytes(timeline.holdings),
        largest_bucket_bytes=max(sizes),
    )


def peak_bytes(holdings: Iterable[Holding]) -> int:
    """The most that is held at one moment, of what is not held for good.

    In one instant, first what ends is given back; then what takes no time at all is taken and given back,
    one after the other; then what starts is taken.
    """
    changes: list[tuple[int, int, int]] = []
    for one in holdings:
        if one.start_ns is None or one.end_ns is None:
            continue
        if one.start_ns < one.end_ns:
            changes += [(one.end_ns, _GIVEN_BACK, -one.num_bytes), (one.start_ns, _TAKEN, one.num_bytes)]
        else:
            changes.append((one.start_ns, _AT_ONCE, one.num_bytes))
    now = peak = 0
    for _, kind, change in sorted(changes):
        peak = max(peak, now + change)
        if kind != _AT_ONCE:
            now += change
    return peak
