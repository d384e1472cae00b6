"""DDP's bucket assignment (A1, A2).

``compute_bucket_assignment_by_size`` mirrors the C++ function of that name; the rest decides which
limits and which order it is given.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sim.engine.switches import MODELLED_SETTINGS, check_ddp_kwargs, check_used, read_switches
from sim.errors import AssignmentError, InputError
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.timeline import Iteration
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


def constructed_in(workload: Workload, assignment: Assignment) -> list[list[int]]:
    """The buckets of DDP's constructor under the arguments of ``assignment`` (A2.2)."""
    kwargs = assignment.ddp_kwargs
    limits = ddp_limits(kwargs.get("bucket_cap_mb"), None, kwargs.get("bucket_cap_mb_list"))
    searches = read_switches(assignment).searches
    return initial_buckets(workload, initial_limits(limits, "bucket_cap_mb_list" in kwargs, searches))


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


def assign(
    workload: Workload,
    policy: str,
    caps: Caps,
    options: dict[str, Any],
    iteration: Iteration,
) -> Assignment:
    """DDP's buckets in launch order in a given iteration, and what makes DDP use them.

    Iteration 1 uses one bucket per (dtype, device), in reversed parameter order (A2.2, A2.3); from
    iteration 2 on the buckets rebuilt from ready order (A2.4-A2.6), with ``static_graph`` from iteration 3,
    with ``find_unused_parameters`` never. Limits that were given as a list hold in iteration 1 too, and are
    then consumed from the first parameter.

    Args:
        policy: ``ddp``; ``per-parameter`` (``bucket_cap_mb=0``); ``single`` (one bucket per key).
        options: switches, by torch's names (``MODELLED_DDP_KWARGS``, ``MODELLED_SETTINGS``).
    """
    if policy == "per-parameter":
        caps = replace(caps, bucket_cap_mb=0)
    elif policy == "single":
        caps = replace(caps, bucket_cap_mb=-(-workload.total_bytes // MIB) + 1)
    settings = {name: value for name, value in options.items() if name in MODELLED_SETTINGS}
    kwargs = {name: value for name, value in options.items() if name not in settings}
    check_ddp_kwargs(kwargs)
    requires: dict[str, Any] = {}
    limits = ddp_limits(caps.bucket_cap_mb, caps.first_bucket_mb, caps.bucket_cap_mb_list)
    cap_list = caps.bucket_cap_mb_list
    if caps.first_bucket_mb is not None:
        cap_list = [limit / MIB for limit in limits]
    if cap_list is not None:
        kwargs["bucket_cap_mb_list"] = list(cap_list)
        requires["torch"] = ">=2.11"
    elif caps.bucket_cap_mb is not None:
        kwargs["bucket_cap_mb"] = caps.bucket_cap_mb
        if limits == [0]:  # an AssertionError before 2.12 (A2.1)
            requires["torch"] = ">=2.12"
    if kwargs.get("batched_grad_copy"):
        requires["torch"] = ">=2.12"
    if caps.set_last_bucket_cap:
        requires["environment"] = {"DDP_SET_LAST_BUCKET_CAP": "1"}
    proposed = Assignment(bucket_indices=((0,),), ddp_kwargs=kwargs, settings=settings)
    switches = read_switches(proposed)
    check_used(workload, switches)
    rebuilt = switches.rebuilt_from
    if rebuilt is None or (iteration != "steady" and iteration < rebuilt):
        buckets = initial_buckets(workload, initial_limits(limits, cap_list is not None, switches.searches))
    else:
        buckets = rebuilt_buckets(workload, limits, caps.set_last_bucket_cap)
    indices = tuple(map(tuple, buckets))
    return replace(
        proposed,
        policy=policy,  # type: ignore[arg-type]
        bucket_indices=indices,
        bucket_bytes=bucket_bytes(workload, indices),
        requires=requires,
        made_for=made_for(workload),
    )


def check_reaches(workload: Workload, assignment: Assignment) -> None:
    """Raise ``AssignmentError`` unless stock DDP, given ``assignment.ddp_kwargs``, rebuilds its buckets."""
    options = {**assignment.ddp_kwargs, **assignment.settings}
    caps = Caps(
        bucket_cap_mb=options.pop("bucket_cap_mb", None),
        bucket_cap_mb_list=options.pop("bucket_cap_mb_list", None),
        set_last_bucket_cap="environment" in assignment.requires,
    )
    made = assign(workload, "ddp", caps, options, "steady")
    if [set(bucket) for bucket in made.bucket_indices] != [set(b) for b in assignment.bucket_indices]:
        raise AssignmentError(
            f"ddp_kwargs: {assignment.ddp_kwargs} makes DDP use {len(made.bucket_indices)} bucket(s), not "
            f"the {len(assignment.bucket_indices)} of bucket_indices"
        )
