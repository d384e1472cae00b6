"""DDP's bucket assignment (A2): which limits and which order the cut is given."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from sim.errors import InputError
from sim.nouns.workload import Workload
from sim.systems.cut import PER_KEY, cut, number_keys
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


def compute_bucket_assignment_by_size(
    sizes: Sequence[int],
    keys: Sequence[object],
    limits: Sequence[int],
    sparse: Sequence[bool] = (),
    order: Sequence[int] = (),
) -> list[list[int]]:
    """Buckets of tensor indices, as torch's function of this name makes them (A1).

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
    tensors = order or range(len(sizes))
    is_sparse = [bool(sparse) and sparse[index] for index in tensors]
    numbers, num_keys = number_keys(zip(keys, is_sparse, strict=True))
    bucket_of, emitted = [0] * len(sizes), [0] * len(sizes)
    bounds, opened = [0] * 2 * len(limits), [0] * PER_KEY * num_keys
    buckets: list[list[int]] = [
        [] for _ in range(cut(sizes, numbers, limits, bucket_of, bounds, emitted, opened))
    ]
    for index, bucket in zip(tensors, bucket_of, strict=True):
        buckets[bucket].append(index)
    return buckets if order else sorted(buckets, key=min)


def _cut(workload: Workload, walked: Sequence[int], limits: Sequence[int], ordered: bool) -> list[list[int]]:
    gradients = [workload.gradients[index] for index in walked]
    return compute_bucket_assignment_by_size(
        [gradient.num_bytes for gradient in gradients],
        [gradient.key for gradient in gradients],
        limits,
        [gradient.sparse for gradient in workload.gradients],
        walked if ordered else (),
    )


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
    buckets = _cut(workload, rebuild_order(workload, set_last_bucket_cap), limits, ordered=True)
    return buckets[::-1] if set_last_bucket_cap else buckets


def rebuild_order(workload: Workload, set_last_bucket_cap: bool = False) -> tuple[int, ...]:
    """The gradients as the rebuild walks them: in ready order, unused ones last, or all from the end."""
    unused = [gradient.index for gradient in workload.gradients if gradient.ready_ns is None]
    order = (*workload.order(), *unused)
    return order[::-1] if set_last_bucket_cap else order
