"""What Megatron-Core's buffers hold in memory beside the gradients (A9.1, A9.5)."""

from sim.nouns.memory import Holding
from sim.nouns.timeline import Timeline
from sim.systems.megatron_layout import lay_out_buffers
from sim.systems.megatron_settings import read_megatron_settings


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """What is held besides the gradients, which lie in the buffers. That is the buffers' padding, what fp32
    adds, and each gradient that backward makes, until its hook has added it to its buffer."""
    workload = timeline.workload
    settings = read_megatron_settings(timeline.assignment.settings, workload)
    buckets = lay_out_buffers(workload, settings, timeline.hardware.world_size)
    beyond = sum(bucket.num_bytes for bucket in buckets) - workload.total_bytes
    done = {(span.kind, span.gradient): span.end_ns for span in timeline.compute if span.gradient is not None}
    held, now = [Holding(what="gradient buffers", num_bytes=max(0, beyond))], 0
    for index in workload.order():
        start = max(now, done.get(("backward", index), now))
        now = max(start, done.get(("hook", index), start))
        size = workload.gradients[index].num_bytes
        held.append(Holding(what="gradients to add", num_bytes=size, start_ns=start, end_ns=now))
    return tuple(held)
