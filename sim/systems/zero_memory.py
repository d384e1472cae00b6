"""What ZeRO's buckets hold in memory (A5.5, A5.7, A5.8), read from DeepSpeed 0.19.8."""

from sim.nouns.memory import Holding
from sim.nouns.timeline import Timeline
from sim.nouns.workload import DTYPE_BYTES
from sim.systems.zero import STAGES
from sim.systems.zero_flushes import ZeroMessage, plan_flushes, plan_messages
from sim.systems.zero_layout import ProcessGroup, lay_out
from sim.systems.zero_settings import ZeroSettings, read_zero_settings


def hold(timeline: Timeline) -> tuple[Holding, ...]:
    """The contiguous buffers of a backward, offloading's staging, and copies made for each collective.

    Buffers have ``reduce_bucket_size`` elements, full or not, two of them with ``overlap_comm``; a gradient
    larger than that is reduced where it is (A5.4). The gradients of one's own partition are not counted.
    """
    workload, policy = timeline.workload, timeline.assignment.policy
    settings = read_zero_settings(timeline.assignment.settings, STAGES[policy], workload)
    world_size = timeline.hardware.world_size
    groups, everyone = lay_out(workload, settings, world_size), ProcessGroup(0, world_size, 1)
    held = []
    if settings.fills_buffers:
        one = settings.reduce_bucket_size * DTYPE_BYTES[settings.buffer_dtype]
        held.append(Holding(what="contiguous buffers", num_bytes=one * (1 + settings.overlap_comm)))
    if settings.cpu_offload:
        largest = max(gradient.elements for gradient in workload.gradients)
        held.append(Holding(what="offloading", num_bytes=largest * DTYPE_BYTES[settings.dtype]))
    messages = [
        message
        for flush in plan_flushes(workload, settings)
        for message in plan_messages(workload, flush, settings, groups, everyone)
    ]
    played = [one for one in timeline.collectives if one.collective.bucket is not None]
    held += [
        Holding(
            what="copies to send",
            num_bytes=_copies_bytes(message, settings),
            start_ns=times.launch_ns,
            end_ns=times.usable_ns,
        )
        for message, times in zip(messages, played, strict=True)
    ]
    return tuple(held)


def _copies_bytes(message: ZeroMessage, settings: ZeroSettings) -> int:
    """Several slices are flattened, unless the buffer travels as it is; another dtype on the wire is cast."""
    buffer, wire = DTYPE_BYTES[settings.buffer_dtype], DTYPE_BYTES[settings.communication_data_type]
    travels_as_it_is = settings.fills_buffers and not settings.reduce_scatter
    flattens = len(message.slices) > 1 and not travels_as_it_is
    casts = settings.communication_data_type != settings.buffer_dtype
    return message.elements * (buffer * flattens + wire * casts)
