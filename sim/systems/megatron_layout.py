"""Where Megatron-Core puts gradients: a buffer a dtype, cut into buckets from its last parameter on (A9)."""

import math
from dataclasses import dataclass

from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.systems.megatron_settings import MegatronSettings

_PARAMETER_ALIGNMENT = 64  # elements, of a parameter's start under the distributed optimizer
_BUCKET_ALIGNMENT = 128  # and of a bucket's end
_BUSBW_ALIGNMENT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronBucket:
    """A part of a buffer that travels as one: ``members`` in its order, ``elements`` with padding."""

    members: tuple[int, ...]
    dtype: str
    grad_dtype: str
    elements: int

    @property
    def num_bytes(self) -> int:
        """Bytes of gradients that travel."""
        return self.elements * DTYPE_BYTES[self.grad_dtype]


def lay_out_buffers(
    workload: Workload, settings: MegatronSettings, world_size: int | None
) -> tuple[MegatronBucket, ...]:
    """Every bucket, buffer by buffer in the order in which their dtypes occur (A9.1, A9.2).

    ``world_size`` None: padding is that of one rank, and ``bucket_size`` by default that of few; neither
    changes which parameters a bucket holds, up to 40 ranks.
    """
    limit = settings.size_limit(workload, world_size)
    divisor = _divisor(settings, world_size)
    by_dtype: dict[str, list[int]] = {}
    for gradient in workload.gradients:
        by_dtype.setdefault(gradient.dtype, []).append(gradient.index)
    return tuple(
        MegatronBucket(
            members=members,
            dtype=dtype,
            grad_dtype=settings.grad_dtype(dtype),
            elements=_pad(elements, divisor),
        )
        for dtype, indices in by_dtype.items()
        for members, elements in _cut(workload, settings, indices[::-1], limit)
    )


def _cut(
    workload: Workload, settings: MegatronSettings, indices: list[int], limit: int | None
) -> list[tuple[tuple[int, ...], int]]:
    """Members of each bucket of a buffer and its elements up to the end of the last of them.

    Starts of buckets are multiples of 64, so that offsets within one depend on it alone.
    """
    shards = settings.use_distributed_optimizer
    cut: list[tuple[tuple[int, ...], int]] = []
    members: list[int] = []
    end = 0
    for index in indices:
        start = _pad(end, _PARAMETER_ALIGNMENT) if shards else end
        is_alone = shards and workload.gradients[index].name == settings.shared_embedding
        if is_alone and members:
            cut.append((tuple(members), start))
            members, start = [], 0
        members.append(index)
        end = start + workload.gradients[index].elements
        if is_alone or (limit is not None and end >= limit):
            cut.append((tuple(members), end))
            members, end = [], 0
    return [*cut, (tuple(members), end)] if members else cut


def _divisor(settings: MegatronSettings, world_size: int | None) -> int:
    """What a bucket's elements are a multiple of (A9.3)."""
    if not settings.use_distributed_optimizer:
        return 1
    busbw = _BUSBW_ALIGNMENT if settings.pad_buckets_for_high_nccl_busbw else 1
    return math.lcm(world_size or 1, _BUCKET_ALIGNMENT, busbw)


def _pad(elements: int, divisor: int) -> int:
    return -(-elements // divisor) * divisor
