"""DDP's assignments: buckets that switches and caps make of a workload, and buckets under other switches."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment, bucket_bytes, made_for
from sim.nouns.ddp_switches import (
    ARGUMENTS,
    LIST_SINCE,
    OLDEST,
    SUPPORTED_SINCE,
    ZERO_CAP_SINCE,
    Switches,
    Version,
    read_switches,
    split_switches,
)
from sim.nouns.timeline import Iteration
from sim.nouns.workload import Workload
from sim.systems.bucketing import Caps, ddp_limits, initial_buckets, initial_limits, rebuilt_buckets
from sim.systems.compile_cuts import torch_compiled
from sim.systems.step_writer import check_backward
from sim.units import MIB


def first_torches(kwargs: Mapping[str, Any]) -> dict[str, Version]:
    """By name, the first torch that has each argument given, whatever its value."""
    return {name: one.metadata["since"] for name, one in ARGUMENTS.items() if name in kwargs}


def torch_needed(kwargs: Mapping[str, Any]) -> Version:
    """The oldest torch that has all of these."""
    return max(first_torches(kwargs).values(), default=OLDEST)


def torch_requirement(needed: Version) -> dict[str, str]:
    """What an assignment ``requires`` of torch; nothing where each torch that is supported will do."""
    return {"torch": f">={needed[0]}.{needed[1]}"} if needed > SUPPORTED_SINCE else {}


def as_compiled(workload: Workload, assignment: Assignment) -> Workload:
    """The workload as DDP sees it: under ``optimize_ddp`` as torch.compile makes it (A11)."""
    if assignment.policy not in DDP_POLICIES or assignment.settings.get("optimize_ddp") is None:
        return workload
    switches = read_switches(assignment)
    assert switches.optimize_ddp is not None
    cap_mb, kwargs = switches.compile_cap_mb, assignment.ddp_kwargs
    if cap_mb is None:  # DDP's own, but at least 1 MiB (A11.1)
        limits = ddp_limits(kwargs.get("bucket_cap_mb"), None, kwargs.get("bucket_cap_mb_list"))
        cap_mb = max(MIB, *limits) / MIB
    return torch_compiled(workload, switches.optimize_ddp, cap_mb)


def check_used(workload: Workload, switches: Switches) -> None:
    """Raise ``NotModelledError`` where DDP itself would stop: unused parameters, or hooks that fire twice."""
    finds = switches.find_unused_parameters or switches.static_graph
    for gradient in workload.gradients:
        if gradient.ready_ns is None and not finds:
            raise NotModelledError(
                f"{workload.label(gradient)} is never ready; DDP without find_unused_parameters or "
                f"static_graph raises an error on it at the next forward (A3.21)"
            )
        if gradient.sparse and gradient.ready_ns is None:
            raise NotModelledError(
                f"{workload.label(gradient)} is sparse and never ready; DDP stops with 'Expected sparse "
                f"gradient to be defined'"
            )
        if gradient.uses > 1 and not switches.static_graph:
            raise NotModelledError(
                f"{workload.label(gradient)} becomes ready {gradient.uses} times in one backward; DDP "
                f"without static_graph raises 'marked ready twice' (A8.5)"
            )
    check_backward(workload)


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
        options: switches, by torch's names.
    """
    if policy == "per-parameter":
        caps = replace(caps, bucket_cap_mb=0)
    elif policy == "single":
        caps = replace(caps, bucket_cap_mb=-(-workload.total_bytes // MIB) + 1)
    kwargs, settings = split_switches(options)
    needed = torch_needed(kwargs)
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


def with_switches(workload: Workload, assignment: Assignment, **options: Any) -> Assignment:
    """The same buckets, used with ``options``; without any, ``assignment`` itself.

    Where the keywords no longer reach the buckets under these switches (A2.6), they are left out, and
    ``sim.apply`` gives DDP the buckets.

    Args:
        workload: what backward makes ready.
        assignment: of DDP's policies.
        options: switches by torch's names, as ``sim.assign`` takes them; none of them a cap.

    Raises:
        AssignmentError: the assignment does not fit the workload.
        InputError: a cap, or a value that is not legal.
        NotModelledError: another system than DDP, or switches that are not modelled.
    """
    if not options:
        return assignment
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is a system of its own, and takes no switches of "
            f"DistributedDataParallel such as {next(iter(options))}"
        )
    for name in (*CAP_KWARGS, "first_bucket_mb", "set_last_bucket_cap"):
        if name in options:
            raise InputError(
                f"{name}: {options[name]!r} is not legal; the assignment says what the buckets are"
            )
    assignment.check_fits(workload)
    kwargs, settings = split_switches(options)
    newest = torch_requirement(torch_needed(kwargs))
    made = replace(
        assignment,
        ddp_kwargs=assignment.ddp_kwargs | kwargs,
        settings=assignment.settings | settings,
        requires=assignment.requires | newest,
    )
    check_used(workload, read_switches(made))
    return made if _reaches(workload, made) else _spelled_out(made, newest)


def job_switches(workload: Workload, given: Mapping[str, Any]) -> dict[str, Any]:
    """The switches of the job that ``workload`` was recorded from, but those that are ``given`` otherwise."""
    aliases = {ARGUMENTS[name].metadata["alias_of"] for name in given if name in ARGUMENTS}
    named = set(given) | aliases
    return {name: value for name, value in workload.switches.items() if name not in named}


def is_never_rebuilt(switches: Mapping[str, Any]) -> bool:
    """Whether DDP keeps its constructor's buckets under these switches (A2.6)."""
    return bool(switches.get("find_unused_parameters")) and not switches.get("static_graph")


def as_the_job(workload: Workload, assignment: Assignment, **options: Any) -> Assignment:
    """The buckets of ``assignment``, used as the job that ``workload`` was recorded from used its own.

    A switch of ``options`` goes before one of ``assignment``, and that before the job's. An assignment of
    another system has none of DDP's.

    Raises:
        AssignmentError, InputError, NotModelledError: as ``with_switches``.
    """
    if assignment.policy in DDP_POLICIES:
        options = job_switches(workload, assignment.ddp_kwargs | assignment.settings | options) | options
    return with_switches(workload, assignment, **options)


def _reaches(workload: Workload, assignment: Assignment) -> bool:
    """Whether stock DDP, with these keywords and switches, rebuilds these buckets."""
    try:
        check_reaches(workload, assignment)
    except AssignmentError:
        return False
    return True


def _spelled_out(assignment: Assignment, requires: dict[str, Any]) -> Assignment:
    kwargs = {name: value for name, value in assignment.ddp_kwargs.items() if name not in CAP_KWARGS}
    return replace(assignment, policy="explicit", ddp_kwargs=kwargs, requires=requires)
