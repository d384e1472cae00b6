"""What ZeRO moves in memory beside its collectives, in bytes (A5.5, A5.7, A5.8, A8.8).

Read from DeepSpeed 0.19.8. A pass over N bytes that reads and writes each counts N: what a copy of N bytes
moves. Where ranks do different amounts, it is what the busiest does, as the others wait for it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.zero_flushes import Flush, ZeroMessage
from sim.systems.zero_layout import FlatGroup, Slice
from sim.systems.zero_settings import ZeroSettings

_FP32, _FP64 = DTYPE_BYTES["float32"], DTYPE_BYTES["float64"]


def arrival_bytes(elements: int, settings: ZeroSettings) -> int:
    """A gradient's copy into the contiguous buffer; 0 if it does not fit (A5.4), unless ``cpu_offload``."""
    is_copied = settings.cpu_offload or elements <= settings.reduce_bucket_size
    return elements * DTYPE_BYTES[settings.buffer_dtype] * (settings.fills_buffers and is_copied)


def accumulating_bytes(elements: int, settings: ZeroSettings, micro_batch: int) -> int:
    """A gradient's cast to ``grad_accum_dtype`` in its hook, and its addition after the first micro-batch."""
    if not settings.casts_gradients:
        return 0
    narrow, wide = DTYPE_BYTES[settings.dtype], DTYPE_BYTES[settings.grad_accum_dtype]
    adds = 3 * wide if micro_batch else 0
    return elements * (narrow + wide + adds) // 2


def message_bytes(message: ZeroMessage, settings: ZeroSettings, world_size: int) -> int:
    """Bytes moved for one collective: flattening, casts, scaling without ``reduce_scatter``, copies back."""
    buffer, wire = DTYPE_BYTES[settings.buffer_dtype], DTYPE_BYTES[settings.communication_data_type]
    elements = message.elements
    casts = settings.communication_data_type != settings.buffer_dtype
    moved = 2 * (buffer + wire) * casts * elements  # there and back; in a reduce only its root casts back
    if settings.fills_buffers and not settings.reduce_scatter:
        return (moved + 2 * wire * elements * _scalings(settings, world_size)) // 2
    flattens = len(message.slices) > 1
    kept = _most(message.slices) if settings.fills_buffers else elements
    moved += 2 * buffer * elements * flattens + (buffer + wire) * kept * (flattens or casts)
    if not settings.fills_buffers:
        moved += 2 * wire * elements  # the division; if gradients fill buffers, ``flush_bytes`` counts it
    if settings.adds_to_partition:
        moved += kept * (wire + 4 * _FP32)
    return moved // 2


def flush_bytes(
    workload: Workload, flush: Flush, settings: ZeroSettings, groups: Mapping[int, FlatGroup]
) -> int:
    """Bytes moved once a flush: the division, and the copy of owned gradients into the partition's buffer."""
    size = DTYPE_BYTES[settings.buffer_dtype]
    moved = 0
    if settings.fills_buffers and settings.reduce_scatter:
        moved += size * sum(workload.gradients[index].elements for index in flush.members)
    if settings.fills_buffers and not settings.cpu_offload and not settings.adds_to_partition:
        whole = (
            Slice(part.owner, workload.gradients[index].elements)
            for index in flush.members
            for part in groups[workload.gradients[index].group].slices(index)
        )
        moved += size * _most(whole)
    return moved


def offloaded_bytes(
    workload: Workload,
    flush: Flush,
    settings: ZeroSettings,
    groups: Mapping[int, FlatGroup],
    micro_batch: int,
) -> int:
    """What a flush moves between device and host under ``cpu_offload`` (A8.8).

    Owned parts go to the host as fp32 in the last micro-batch. If there are several micro-batches, whole
    gradients go to the host in each, and from the second on come back to be added to.
    """
    if not settings.cpu_offload:
        return 0
    parts = [
        (part, workload.gradients[index].elements)
        for index in flush.members
        for part in groups[workload.gradients[index].group].slices(index)
    ]
    moved = 0
    if micro_batch == settings.gradient_accumulation_steps - 1:
        moved += _FP32 * _most(part for part, _ in parts)
    if settings.gradient_accumulation_steps > 1 and not settings.adds_to_partition:
        whole = _most(Slice(part.owner, size) for part, size in parts)
        moved += DTYPE_BYTES[settings.dtype] * whole * (2 if micro_batch else 1)
    return moved


def returned_bytes(settings: ZeroSettings, groups: Mapping[int, FlatGroup]) -> int:
    """What step() moves from host to device under ``cpu_offload``: the updated partitions."""
    owned = sum(group.partition_elements for group in groups.values())
    return DTYPE_BYTES[settings.dtype] * owned * settings.cpu_offload


def step_bytes(settings: ZeroSettings, groups: Mapping[int, FlatGroup]) -> int:
    """What step() does with this rank's partitions around the optimizer (A5.12): overflow check, norm,
    flattening, clipping, and the updated partition back into the parameters.
    """
    if settings.cpu_offload:
        return 0  # norms are taken in the flushes; ``returned_bytes`` counts what goes back
    held = _FP32 if settings.adds_to_partition else DTYPE_BYTES[settings.buffer_dtype]
    moved = _FP32 + DTYPE_BYTES[settings.dtype]
    moved += 2 * held * settings.checks_overflow
    moved += (held + 2 * _FP64) * settings.compute_grad_norm
    if settings.adds_to_partition:
        moved += _FP32  # the partition is flat from the start and only zeroed
    else:
        moved += 2 * held + (held + _FP32) * (held != _FP32)
    moved += 2 * _FP32 * settings.scales_gradients
    return sum(group.partition_elements for group in groups.values()) * moved // 2


def _scalings(settings: ZeroSettings, world_size: int) -> int:
    """How many kernels scale the bucket if ``reduce_scatter`` is off."""
    if settings.prescale_gradients:
        return 1
    factor = settings.gradient_predivide_factor
    return (factor != 1.0) + (factor != world_size)


def _most(parts: Iterable[Slice]) -> int:
    """Elements of the owner that has most of them."""
    owned: Counter[int] = Counter()
    for part in parts:
        owned[part.owner] += part.elements
    return max(owned.values(), default=0)
