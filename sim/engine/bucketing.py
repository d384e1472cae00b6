"""Bucket assignment: torch's own rules (A1, A2) and the other policies.

``compute_bucket_assignment_by_size`` mirrors the C++ function of that name; the rest decides which
limits and which order it is given.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.timeline import Iteration
from sim.nouns.workload import Workload
from sim.units import MIB, cap_bytes

DEFAULT_FIRST_BUCKET_BYTES = MIB  # dist._DEFAULT_FIRST_BUCKET_BYTES (A2.1)
DEFAULT_BUCKET_CAP_BYTES = 25 * MIB

# Switches of DistributedDataParallel that the engines model; all others are refused.
MODELLED_DDP_KWARGS = {
    "gradient_as_bucket_view": "no copy-back at the end of backward (A3.4)",
    "broadcast_buffers": "buffers are broadcast before each forward (A3.16)",
    "forward_sync_buffers": "its name since torch 2.13, which goes first where both are given",
}
# Switches that change no step while they are off; any other name is unknown.
OFF_DDP_KWARGS = (
    "batched_grad_copy",
    "check_reduction",
    "delay_all_reduce_named_params",
    "find_unused_parameters",
    "init_sync",
    "mixed_precision",
    "param_to_hook_all_reduce",
    "skip_all_reduce_unused_params",
    "static_graph",
)


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


def _check_used(workload: Workload) -> None:
    for gradient in workload.gradients:
        if gradient.ready_ns is None:
            raise NotModelledError(
                f"workload {workload.name!r}: gradient {gradient.index} ({gradient.name}) is never "
                f"ready; DDP without find_unused_parameters raises an error on it (A3.21), and "
                f"find_unused_parameters is not modelled yet"
            )


def ddp_buckets(
    workload: Workload, limits: Sequence[int], iteration: Iteration, set_last_bucket_cap: bool
) -> list[list[int]]:
    """DDP's buckets in launch order in a given iteration.

    Iteration 1 uses one bucket per (dtype, device), in reversed parameter order (A2.2, A2.3); from
    iteration 2 on the buckets rebuilt from ready order (A2.4-A2.6). ``limits`` that were given as a
    list hold in iteration 1 too, and are then consumed from the first parameter.
    """
    _check_used(workload)
    if iteration == 1:
        count = len(workload.gradients)
        return _cut(workload, range(count), limits, ordered=False)[::-1]
    order = workload.order()
    if set_last_bucket_cap:
        return _cut(workload, order[::-1], limits, ordered=True)[::-1]
    return _cut(workload, order, limits, ordered=True)


def check_ddp_kwargs(kwargs: dict[str, Any]) -> None:
    """Refuse what the engines do not model. Raises ``NotModelledError`` or ``InputError``."""
    caps = ("bucket_cap_mb", "bucket_cap_mb_list")
    for name, value in kwargs.items():
        if name in caps:
            continue
        if name not in MODELLED_DDP_KWARGS:
            if name in OFF_DDP_KWARGS and (value is False or value is None):
                continue
            raise NotModelledError(
                f"ddp: {name}={value!r} is not modelled yet; modelled switches: "
                f"{', '.join(MODELLED_DDP_KWARGS)}"
            )
        if not isinstance(value, bool):
            raise InputError(f"ddp: {name}={value!r} is not legal; give true or false")


def assign(
    workload: Workload,
    policy: str = "ddp",
    bucket_cap_mb: float | None = None,
    *,
    first_bucket_mb: float | None = None,
    bucket_cap_mb_list: Sequence[float] | None = None,
    set_last_bucket_cap: bool = False,
    iteration: Iteration = "steady",
    **ddp_kwargs: Any,
) -> Assignment:
    """The buckets that a policy makes of ``workload``.

    Args:
        workload: what backward makes ready.
        policy: ``ddp``; ``per-parameter`` (each gradient its own bucket in ready order, launched by
            DDP's rules: what ``bucket_cap_mb=0`` gives); ``single`` (one bucket per dtype and device).
        bucket_cap_mb: MiB, torch's name; None is DDP's default with its 1 MiB first bucket (A2.1).
        first_bucket_mb: MiB, cap of the first bucket: short for ``bucket_cap_mb_list=[first, cap]``.
        bucket_cap_mb_list: MiB, one cap a bucket (torch >= 2.11).
        set_last_bucket_cap: ``DDP_SET_LAST_BUCKET_CAP=1`` (A2.5).
        iteration: ``"steady"``, 1, 2 or 3 (A2.2-A2.6).
        ddp_kwargs: further switches of ``DistributedDataParallel``, by torch's names.

    Raises:
        InputError: an argument is not legal.
        NotModelledError: a policy or switch that is not modelled.
    """
    if iteration not in ("steady", 1, 2, 3):
        raise InputError(f"iteration: {iteration!r} is not legal; give 'steady', 1, 2 or 3")
    if not isinstance(set_last_bucket_cap, bool):
        raise InputError(f"set_last_bucket_cap: {set_last_bucket_cap!r} is not legal; give true or false")
    check_ddp_kwargs(ddp_kwargs)
    kwargs: dict[str, Any] = dict(ddp_kwargs)
    requires: dict[str, Any] = {}
    if policy != "ddp" and (
        bucket_cap_mb is not None or first_bucket_mb is not None or bucket_cap_mb_list is not None
    ):
        raise InputError(f"policy: {policy!r} takes no bucket caps; only 'ddp' does")
    if policy == "ddp":
        limits = ddp_limits(bucket_cap_mb, first_bucket_mb, bucket_cap_mb_list)
        if first_bucket_mb is not None:
            bucket_cap_mb_list = [limit / MIB for limit in limits]
        if iteration == 1 and bucket_cap_mb_list is None:
            limits = [sys.maxsize]
        buckets = ddp_buckets(workload, limits, iteration, set_last_bucket_cap)
        if bucket_cap_mb_list is not None:
            kwargs["bucket_cap_mb_list"] = list(bucket_cap_mb_list)
            requires["torch"] = ">=2.11"
        elif bucket_cap_mb is not None:
            kwargs["bucket_cap_mb"] = bucket_cap_mb
            if cap_bytes(bucket_cap_mb) == 0:  # an AssertionError before 2.12 (A2.1)
                requires["torch"] = ">=2.12"
        if set_last_bucket_cap:
            requires["environment"] = {"DDP_SET_LAST_BUCKET_CAP": "1"}
    elif policy == "per-parameter":
        buckets = ddp_buckets(workload, [sys.maxsize if iteration == 1 else 0], iteration, False)
        kwargs["bucket_cap_mb"] = 0
        requires["torch"] = ">=2.12"
    elif policy == "single":
        buckets = ddp_buckets(workload, [sys.maxsize], iteration, False)
        kwargs["bucket_cap_mb"] = -(-workload.total_bytes // MIB) + 1
    else:
        raise NotModelledError(f"policy: {policy!r} is not modelled yet; give ddp, per-parameter or single")
    indices = tuple(tuple(bucket) for bucket in buckets)
    return Assignment(
        policy=policy,  # type: ignore[arg-type]
        bucket_indices=indices,
        bucket_bytes=bucket_bytes(workload, indices),
        ddp_kwargs=kwargs,
        requires=requires,
        made_for=made_for(workload),
        provenance={"source": "sim.assign", "workload": workload.name},
    )


def check_reaches(workload: Workload, assignment: Assignment) -> None:
    """Raise ``AssignmentError`` unless stock DDP, given ``assignment.ddp_kwargs``, rebuilds its buckets."""
    check_ddp_kwargs(assignment.ddp_kwargs)
    made = assign(
        workload,
        bucket_cap_mb=assignment.ddp_kwargs.get("bucket_cap_mb"),
        bucket_cap_mb_list=assignment.ddp_kwargs.get("bucket_cap_mb_list"),
        set_last_bucket_cap="environment" in assignment.requires,
    )
    if [set(bucket) for bucket in made.bucket_indices] != [set(b) for b in assignment.bucket_indices]:
        raise AssignmentError(
            f"ddp_kwargs: {assignment.ddp_kwargs} makes DDP use {len(made.bucket_indices)} bucket(s), not "
            f"the {len(assignment.bucket_indices)} of bucket_indices"
        )


def cap_list(workload: Workload, assignment: Assignment) -> list[float] | None:
    """``bucket_cap_mb_list`` that makes stock DDP (torch >= 2.11) rebuild exactly these buckets.

    None where no list can: several dtypes or devices, a sparse gradient, buckets that are not
    contiguous in ready order, a bucket that ends in an empty tensor (B(i)).
    """
    caps = [size / MIB for size in bucket_bytes(workload, assignment.bucket_indices)]
    rebuilt = ddp_buckets(workload, [cap_bytes(cap) for cap in caps], "steady", False)
    same = [sorted(bucket) for bucket in rebuilt] == [sorted(bucket) for bucket in assignment.bucket_indices]
    return caps if same and len({g.key for g in workload.gradients}) == 1 else None
