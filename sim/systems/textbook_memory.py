"""What buckets of the textbook and last-hook systems hold in memory (A6, A7)."""

from sim.nouns.memory import Holding
from sim.nouns.timeline import Timeline
from sim.systems.textbook import STYLES


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """Storage that every gradient is copied into as it comes, or what is flattened until it is copied back.

    Nothing where gradients are sent in place or are views of their bucket (A7.1, A7.4), and nothing for a
    bucket of one gradient that is flattened: torch gives back a view of it.
    """
    gradients, buckets = timeline.workload.gradients, timeline.assignment.bucket_indices
    style = STYLES.get(timeline.assignment.policy)
    if style is not None and style.copies is None:
        return ()
    if style is not None and style.copies == "arrival":
        total = sum(gradient.on_wire for gradient in gradients)
        return (Holding(what="flat storage", num_bytes=total),)
    sent = {played.collective.bucket: played for played in timeline.collectives}
    flattened = {
        span.bucket: span.start_ns
        for span in timeline.compute
        if span.kind == "copy_in" and span.bucket is not None
    }
    return tuple(
        Holding(
            what="flattened buckets",
            num_bytes=sent[number].collective.num_bytes,
            start_ns=flattened.get(number, timeline.buckets[number].ready_ns),
            end_ns=timeline.buckets[number].available_ns,
        )
        for number, bucket in enumerate(buckets)
        if number in sent and len(bucket) > 1
    )
