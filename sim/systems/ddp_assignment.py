"""DDP's assignment in each iteration: its switches and caps, and the buckets that they make of a workload."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.errors import AssignmentError
from sim.nouns.assignment import DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.ddp_switches import ARGUMENTS, LIST_SINCE, OLDEST, SUPPORTED_SINCE, ZERO_CAP_SINCE, Version
from sim.nouns.timeline import Iteration
from sim.nouns.workload import Workload
from sim.systems.bucketing import Caps, ddp_limits, initial_buckets, initial_limits, rebuilt_buckets
from sim.systems.compile_cuts import torch_compiled
from sim.systems.switches import MODELLED_SETTINGS, check_ddp_kwargs, check_used, read_switches
from sim.units import MIB


def first_torches(kwargs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Version]:
    """By name, the first torch that has each argument given, whatever its value."""
    return {one.name: one.since for one in ARGUMENTS if one.name in kwargs}


def torch_needed(kwargs: Mapping[str, Any], settings: Mapping[str, Any]) -> Version:
    """The oldest torch that has all of these."""
    return max(first_torches(kwargs, settings).values(), default=OLDEST)


def torch_requirement(needed: Version) -> dict[str, str]:
    """What an assignment ``requires`` of torch; nothing where each torch that is supported will do."""
    return {"torch": f">={needed[0]}.{needed[1]}"} if needed > SUPPORTED_SINCE else {}


def as_compiled(workload: Workload, assignment: Assignment) -> Workload:
    """The workload as DDP sees it: under ``optimize_ddp`` as torch.compile makes it (A11)."""
    if assignment.policy not in DDP_POLICIES or assignment.settings.get("optimize_ddp") is None:
        return workload
    switches = read_switches(assignment)
    assert switches.optimize_ddp is not None
    return torch_compiled(workload, switches.optimize_ddp, switches.compile_cap_mb)


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
    needed = torch_needed(kwargs, settings)
    limits = ddp_limits(caps.bucket_cap_mb, caps.first_bucket_mb, caps.bucket_cap_mb_list)
    cap_list = caps.bucket_cap_mb_list
    if caps.first_bucket_mb is not None:
        cap_list = [limit / MIB for limit in limits]
    if cap_list is not None:
        kwargs["bucket_cap_mb_list"] = list(cap_list)
        needed = max(needed, LIST_SINCE)
    elif caps.bucket_cap_mb is not None:
        kwargs["bucket_cap_mb"] = caps.bucket_cap_mb
        if limits == [0]:  # an AssertionError before 2.12 (A2.1)
            needed = max(needed, ZERO_CAP_SINCE)
    requires: dict[str, Any] = torch_requirement(needed)
    if caps.set_last_bucket_cap:
        requires["environment"] = {"DDP_SET_LAST_BUCKET_CAP": "1"}
    proposed = Assignment(bucket_indices=((0,),), ddp_kwargs=kwargs, settings=settings)
    switches = read_switches(proposed)
    check_used(workload, switches)
    rebuilt = switches.rebuilt_from
    if rebuilt is None or (iteration != "steady" and iteration < rebuilt):
        buckets = initial_buckets(workload, initial_limits(limits, cap_list is not None, switches.searches))
    else:
        buckets = rebuilt_buckets(as_compiled(workload, proposed), limits, caps.set_last_bucket_cap)
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


def constructed_in(workload: Workload, assignment: Assignment) -> list[list[int]]:
    """The buckets of DDP's constructor under the arguments of ``assignment`` (A2.2)."""
    kwargs = assignment.ddp_kwargs
    limits = ddp_limits(kwargs.get("bucket_cap_mb"), None, kwargs.get("bucket_cap_mb_list"))
    searches = read_switches(assignment).searches
    return initial_buckets(workload, initial_limits(limits, "bucket_cap_mb_list" in kwargs, searches))
