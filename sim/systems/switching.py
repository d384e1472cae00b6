"""Buckets that are there already, under other switches of DistributedDataParallel."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sim.errors import AssignmentError, InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.ddp_switches import SWITCHES
from sim.nouns.workload import Workload
from sim.systems.ddp_assignment import check_reaches, torch_needed, torch_requirement
from sim.systems.switches import MODELLED_SETTINGS, check_used, read_switches


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
    settings = {name: value for name, value in options.items() if name in MODELLED_SETTINGS}
    kwargs = {name: value for name, value in options.items() if name not in settings}
    newest = torch_requirement(torch_needed(kwargs, settings))
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
    aliases = {SWITCHES[name].alias_of for name in given if name in SWITCHES}
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
