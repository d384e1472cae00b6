"""What DistributedDataParallel's buckets hold in memory (A2.9, A3.4, A3.17, A3.18)."""

from collections import Counter

from sim.nouns.collective import CollectiveTimes
from sim.nouns.memory import Holding
from sim.nouns.timeline import Timeline
from sim.nouns.workload import DTYPE_BYTES, Gradient
from sim.systems.hook_table import Sent
from sim.systems.switches import Switches, read_switches

_GRADIENTS = "gradients before they are views"


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """Flat buffers, gradients beside them under ``gradient_as_bucket_view``, and what hooks allocate.

    A flat buffer for every bucket is there from the constructor on, with room for all of its gradients: the
    cap decides how many there are, not how much they hold. A sparse gradient has none.
    """
    switches = read_switches(timeline.assignment)
    return (*_buffers(timeline, switches), *_gradients(timeline, switches), *_hooked(timeline, switches))


def _param_dtype(timeline: Timeline) -> str | None:
    """The dtype of buffers under mixed precision; None: each parameter's own (A2.9)."""
    dtype = (timeline.assignment.ddp_kwargs.get("mixed_precision") or {}).get("param_dtype")
    return None if dtype is None else str(dtype)


def _is_views(timeline: Timeline, switches: Switches) -> bool:
    """Whether gradients live in the buffers; mixed precision casts them out again."""
    return switches.gradient_as_bucket_view and _param_dtype(timeline) is None


def _buffers(timeline: Timeline, switches: Switches) -> tuple[Holding, ...]:
    """The size of all dense gradients; if gradients are views, only of those that are never ready."""
    dtype, is_views = _param_dtype(timeline), _is_views(timeline, switches)

    def size(gradient: Gradient) -> int:
        if gradient.sparse or (is_views and gradient.ready_ns is not None):
            return 0
        if dtype is None:
            return gradient.num_bytes
        return gradient.num_bytes // DTYPE_BYTES[gradient.dtype] * DTYPE_BYTES[dtype]

    total = sum(size(gradient) for gradient in timeline.workload.gradients)
    return (Holding(what="flat buffers", num_bytes=total),)


def _gradients(timeline: Timeline, switches: Switches) -> tuple[Holding, ...]:
    """The gradients that backward made, until each is copied into its view (A3.4).

    With ``batched_grad_copy`` they are held until the bucket is complete. Gradients accumulated under
    ``no_sync`` after ``set_to_none`` are no views, and all are held from the first micro-batch on.
    """
    if not _is_views(timeline, switches) or switches.keeps_views:
        return ()
    done = {(span.kind, span.gradient): span.end_ns for span in timeline.compute if span.gradient is not None}
    home = {i: number for number, bucket in enumerate(timeline.assignment.bucket_indices) for i in bucket}
    held: list[Holding] = []
    waiting: Counter[int] = Counter()  # bytes by bucket
    now = 0
    for index in timeline.workload.order():
        gradient, bucket = timeline.workload.gradients[index], home[index]
        start = max(now, done.get(("backward", index), now))
        now = max(start, done.get(("copy_in", index), start))
        if gradient.sparse:
            continue
        waiting[bucket] += gradient.num_bytes
        end = max(timeline.buckets[bucket].ready_ns, start) if switches.batched_grad_copy else now
        begin = 0 if switches.accumulation_steps > 1 else start
        held.append(_during(_GRADIENTS, gradient.num_bytes, begin, end))
    if switches.batched_grad_copy:  # all of a bucket's are there while it is copied, however short that is
        for bucket, num_bytes in waiting.items():
            ready = timeline.buckets[bucket].ready_ns
            held.append(_during(_GRADIENTS, num_bytes, ready, ready))
    return tuple(held)


def _hooked(timeline: Timeline, switches: Switches) -> tuple[Holding, ...]:
    """What a bucket needs beside its buffer while it is under way."""
    sent: dict[int, list[CollectiveTimes]] = {}
    for played in timeline.collectives:
        if played.collective.bucket is not None:
            sent.setdefault(played.collective.bucket, []).append(played)
    begun = {span.bucket: span.start_ns for span in timeline.compute if span.kind == "hook"}
    hook, held = switches.comm_hook, []
    for bucket, collectives in sent.items():
        first, last = collectives[0], collectives[-1]
        start = min(begun.get(bucket, first.launch_ns), first.launch_ns)
        if hook is not None:
            indices = timeline.assignment.bucket_indices[bucket]
            reduced = Sent(
                bucket_bytes=sum(timeline.workload.gradients[index].num_bytes for index in indices),
                message_bytes=tuple(played.collective.num_bytes for played in collectives),
                start_ns=start,
                end_ns=last.usable_ns,
            )
            held += hook.kind.holds(hook, reduced)
        elif switches.reduce_dtype is not None and switches.reduce_dtype != _param_dtype(timeline):
            end = timeline.buckets[bucket].available_ns
            held.append(_during("buffers in reduce_dtype", first.collective.num_bytes, start, end))
    return tuple(held)


def _during(what: str, num_bytes: int, start_ns: int, end_ns: int) -> Holding:
    return Holding(what=what, num_bytes=num_bytes, start_ns=start_ns, end_ns=end_ns)
