"""DDP's bucket assignment (A1, A2).

``compute_bucket_assignment_by_size`` mirrors the C++ function of that name; the rest decides which
limits and which order it is given.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from sim.errors import InputError
from sim.nouns.assignment import Assignment, bucket_bytes
from sim.nouns.workload import Workload
from sim.units import MIB, cap_bytes

DEFAULT_FIRST_BUCKET_BYTES = MIB  # dist._DEFAULT_FIRST_BUCKET_BYTES (A2.1)
DEFAULT_BUCKET_CAP_BYTES = 25 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """How large buckets may become, in MiB, by torch's names; ``None`` everywhere is DDP's default (A2.1).

    ``first_bucket_mb`` is the cap of the first bucket: short for ``bucket_cap_mb_list=[first, cap]``.
    ``set_last_bucket_cap`` is ``DDP_SET_LAST_BUCKET_CAP=1`` (A2.5).
    """

    bucket_cap_mb: float | None = None
    first_bucket_mb: float | None = None
    bucket_cap_mb_list: Sequence[float] | None = None
    set_last_bucket_cap: bool = False


@dataclass(slots=True)
class _Accumulator:
    """The open bucket of one key and its place in the limits."""

    indices: list[int] = field(default_factory=list)
    size: int = 0
    limit: int = 0


def compute_bucket_assignment_by_size(
    sizes: Sequence[int],
    keys: Sequence[object],
    limits: Sequence[int],
    sparse: Sequence[bool] = (),
    order: Sequence[int] = (),
) -> tuple[list[list[int]], list[int]]:
    """Buckets of tensor indices and the limit each was closed by, as torch's C++ computes them (A1).

    ``tuner.reach.cap_layouts`` cuts by the same rule as machine code, and ``cap_list`` inverts it: all three
    change together.

    Args:
        sizes: bytes of each tensor, in the sequence walked.
        keys: (dtype, device) of each tensor, in the same sequence (A1.3).
        limits: bytes; every key starts at the first, the last repeats for ever (A1.3, A1.4).
        sparse: whether a gradient is sparse, looked up by tensor index (A1.1, A1.2).
        order: tensor index of each element walked; empty: its own position.

    Leftover buckets of three or more keys have no defined order in torch (A1.5); here the key seen
    last comes first.
    """
    if not limits:
        raise InputError("bucket limits: an empty list is not legal; give at least one limit")
    buckets: list[list[int]] = []
    closed_by: list[int] = []
    open_buckets: dict[object, _Accumulator] = {}
    for position, (size, key) in enumerate(zip(sizes, keys, strict=True)):
        index = order[position] if order else position
        if sparse and sparse[index]:
            buckets.append([index])
            closed_by.append(0)
            continue
        accumulator = open_buckets.setdefault(key, _Accumulator())
        accumulator.indices.append(index)
        accumulator.size += size
        limit = limits[accumulator.limit]
        if accumulator.size >= limit:
            buckets.append(accumulator.indices)
            closed_by.append(limit)
            accumulator.indices, accumulator.size = [], 0
            accumulator.limit = min(accumulator.limit + 1, len(limits) - 1)
    for accumulator in reversed(open_buckets.values()):
        if accumulator.indices:
            buckets.append(accumulator.indices)
            closed_by.append(limits[accumulator.limit])
    if not order:
        ranked = sorted(zip(buckets, closed_by, strict=True), key=lambda pair: min(pair[0]))
        buckets, closed_by = [pair[0] for pair in ranked], [pair[1] for pair in ranked]
    return buckets, closed_by


def _cut(workload: Workload, walked: Sequence[int], limits: Sequence[int], ordered: bool) -> list[list[int]]:
    gradients = [workload.gradients[index] for index in walked]
    buckets, _ = compute_bucket_assignment_by_size(
        [gradient.num_bytes for gradient in gradients],
        [gradient.key for gradient in gradients],
        limits,
        [gradient.sparse for gradient in workload.gradients],
        walked if ordered else (),
    )
    return buckets


def ddp_limits(
    bucket_cap_mb: float | None,
    first_bucket_mb: float | None,
    bucket_cap_mb_list: Sequence[float] | None,
) -> list[int]:
    """DDP's size limits in bytes for the rebuilt buckets (A2.1, A2.4).

    ``None`` everywhere is DDP's default, [1 MiB, 25 MiB]; an explicit ``bucket_cap_mb`` has no small
    first bucket; ``first_bucket_mb`` gives one, which DDP reaches by the list [first, cap], as the last
    limit repeats (A1.4).
    """
    if bucket_cap_mb_list is not None:
        if not bucket_cap_mb_list:
            raise InputError("bucket_cap_mb_list: an empty list is not legal; give at least one cap")
        if bucket_cap_mb is not None or first_bucket_mb is not None:
            raise InputError("bucket_cap_mb_list: give it alone, without bucket_cap_mb or first_bucket_mb")
        return [cap_bytes(cap) for cap in bucket_cap_mb_list]
    cap = DEFAULT_BUCKET_CAP_BYTES if bucket_cap_mb is None else cap_bytes(bucket_cap_mb)
    if first_bucket_mb is not None:
        return [cap_bytes(first_bucket_mb), cap]
    return [DEFAULT_FIRST_BUCKET_BYTES, cap] if bucket_cap_mb is None else [cap]


def initial_limits(limits: Sequence[int], given_as_list: bool, searches: bool) -> list[int]:
    """The limits of the constructor's buckets: one bucket per dtype and device where they will be rebuilt.

    ``limits`` themselves where they are given as a list, or where a search for unused parameters rules a
    rebuild out (A2.2).
    """
    return list(limits) if given_as_list or searches else [sys.maxsize]


def initial_buckets(workload: Workload, limits: Sequence[int]) -> list[list[int]]:
    """The buckets that DDP's constructor makes: cut in parameter order, the list reversed (A2.3)."""
    return _cut(workload, range(len(workload.gradients)), limits, ordered=False)[::-1]


def rebuilt_buckets(
    workload: Workload, limits: Sequence[int], set_last_bucket_cap: bool = False
) -> list[list[int]]:
    """The buckets that DDP rebuilds from ready order (A2.4, A2.5); unused parameters come last (A8.1)."""
    order = workload.order()
    unused = [gradient.index for gradient in workload.gradients if gradient.ready_ns is None]
    walked = (*order, *unused)
    if set_last_bucket_cap:
        return _cut(workload, walked[::-1], limits, ordered=True)[::-1]
    return _cut(workload, walked, limits, ordered=True)


def cap_list(workload: Workload, assignment: Assignment) -> list[float] | None:
    """``bucket_cap_mb_list`` that makes stock DDP (torch >= 2.11) rebuild exactly these buckets.

    None where no list can: several dtypes or devices, a sparse gradient, buckets that are not
    contiguous in ready order, a bucket that ends in an empty tensor (B(i)).
    """
    caps = [size / MIB for size in bucket_bytes(workload, assignment.bucket_indices)]
    rebuilt = rebuilt_buckets(workload, [cap_bytes(cap) for cap in caps])
    same = [sorted(bucket) for bucket in rebuilt] == [sorted(bucket) for bucket in assignment.bucket_indices]
    return caps if same and len({g.key for g in workload.gradients}) == 1 else None
