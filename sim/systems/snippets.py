"""The lines to paste into a training script."""

import json
import re
from collections.abc import Sequence
from typing import Any

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.ddp_switches import (
    ARGUMENTS,
    HOOKS,
    LIST_SINCE,
    OLDEST,
    SUPPORTED_SINCE,
    ZERO_CAP_SINCE,
    Version,
    read_switches,
)
from sim.nouns.workload import Workload
from sim.systems import fsdp2, megatron, zero
from sim.systems.ddp_assignment import check_reaches, first_torches, torch_needed
from sim.systems.registry import plan
from sim.units import format_size

_CAP_IS_FIRST_SINCE: Version = (2, 4)  # before, an explicit cap has the first bucket of 1 MiB, too (A2.1)
# The versions of torch from which on the lines may be others, in order.
_MARKS = sorted(
    {LIST_SINCE, _CAP_IS_FIRST_SINCE, ZERO_CAP_SINCE} | {one.metadata["since"] for one in ARGUMENTS.values()}
)


def snippet(assignment: Assignment, workload: Workload, torch: str | None = None) -> str:
    """Python that makes DistributedDataParallel use ``assignment`` on ``model``, as ``ddp_model``; of
    ``fully_shard``, what wraps the modules of ``model``.

    The lines use keywords of stock DistributedDataParallel if these reach the buckets, which is checked, and
    if ``torch`` heeds them. That is the version where the script trains, such as ``2.8``; None stands for one
    new enough for all keywords. Otherwise the lines use ``sim.apply``, which needs bucketsim there.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its keywords reach other buckets.
        InputError: a keyword that is no name, a version that is none, or one that lacks a switch.
        NotModelledError: an assignment of another system than DistributedDataParallel, or switches that
            ``sim.apply`` refuses.
    """
    assignment.check_fits(workload)
    if assignment.policy == fsdp2.POLICY:
        if torch is not None and read_version(torch) < fsdp2.FSDP2_SINCE:
            raise InputError(
                f"torch: {torch} is not legal; the lines for {assignment.policy} need 2.13 or newer"
            )
        return plan(workload, assignment, None).lines()
    _check_policy(assignment, "DistributedDataParallel", DDP_POLICIES)
    check_code(assignment)
    if assignment.by_keywords:
        check_reaches(workload, assignment)
    version = None if torch is None else read_version(torch)
    if version is not None:
        _check_switches(assignment, version)
    why = _why_not_by_keywords(assignment, version)
    lines = _by_keywords(assignment) if why is None else _by_apply(assignment, why, version)
    title = (
        f"# bucketsim: {len(assignment.bucket_indices)} bucket(s) for {workload.name!r}, "
        f"{format_size(workload.total_bytes)} of gradients; {_needs(assignment, version)}"
    )
    elsewhere = [
        f"# Set elsewhere, and part of this assignment: {name}={value!r}"
        for name, value in assignment.settings.items()
        if name != "comm_hook"
    ]
    return (
        "\n".join([title, *elsewhere, *lines, *_register_hook(assignment.settings.get("comm_hook"))]) + "\n"
    )


def check_code(assignment: Assignment) -> None:
    """Raise for what no line should hold: files may hold anything, and lines names and values of switches.

    Raises:
        InputError, NotModelledError: a switch or a value that is not legal or not modelled.
    """
    read_switches(assignment)
    if not isinstance(assignment.requires.get("environment", {}), dict):
        raise InputError("requires.environment: not legal; give an object of names and values")


def read_version(text: str) -> Version:
    """Major and minor of a torch version such as ``2.8`` or ``2.11.0+cu130``. Raises ``InputError``."""
    match = re.fullmatch(r"(\d{1,3})\.(\d{1,3})(\.\w+)?(\+[\w.]+)?", text.strip())
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        raise InputError(f"torch: {text!r} is not legal; give a version from {_told(OLDEST)} on, such as 2.8")
    return int(match[1]), int(match[2])


def _told(version: Version) -> str:
    return f"{version[0]}.{version[1]}"


def _needs(assignment: Assignment, version: Version | None) -> str:
    """Which torch the lines are for; without a version, the oldest with which they do what they should."""
    if version is not None:
        return f"for torch {_told(version)}"
    switches = torch_needed(assignment.ddp_kwargs)
    if not assignment.by_keywords:
        return f"needs torch '>={_told(max(switches, SUPPORTED_SINCE))}'"
    since = next(one for one in _MARKS if one >= switches and _why_not_by_keywords(assignment, one) is None)
    if since == OLDEST:
        return f"any torch from {_told(OLDEST)} on"
    return f"needs torch '>={_told(since)}'" + (" (before: sim.apply)" if since > switches else "")


def _check_switches(assignment: Assignment, version: Version) -> None:
    """Raise ``InputError`` for a keyword that this torch has not, whatever its value."""
    first = first_torches(assignment.ddp_kwargs)
    for name, since in sorted(first.items(), key=lambda one: one[1]):
        if version < since:
            raise InputError(
                f"torch: {_told(version)} has no {name}, which is part of this assignment; give "
                f"{_told(since)} or newer"
            )


def _why_not_by_keywords(assignment: Assignment, version: Version | None) -> str | None:
    """Why keywords of stock DDP are not enough here; None where they are."""
    if not assignment.by_keywords:
        return "No keyword of DistributedDataParallel reaches these buckets"
    if version is None:
        return None
    kwargs = assignment.ddp_kwargs
    if "bucket_cap_mb_list" in kwargs and version < LIST_SINCE:
        return f"torch {_told(version)} has no bucket_cap_mb_list, which came with {_told(LIST_SINCE)}"
    if "bucket_cap_mb" not in kwargs:
        return None
    if kwargs["bucket_cap_mb"] == 0 and version < ZERO_CAP_SINCE:
        return f"torch {_told(version)} refuses bucket_cap_mb=0, which {_told(ZERO_CAP_SINCE)} takes"
    if version < _CAP_IS_FIRST_SINCE:
        return (
            f"torch {_told(version)} makes a first bucket of 1 MiB even with bucket_cap_mb, which ended with "
            f"{_told(_CAP_IS_FIRST_SINCE)}"
        )
    return None


def _by_keywords(assignment: Assignment) -> list[str]:
    lines = []
    environment = assignment.requires.get("environment", {})
    if environment:
        lines.append("import os")
        lines += [
            f"os.environ[{name!r}] = {value!r}  # before import torch" for name, value in environment.items()
        ]
    arguments = ["model", *(f"{name}={typed(name, value)}" for name, value in assignment.ddp_kwargs.items())]
    call = f"ddp_model = torch.nn.parallel.DistributedDataParallel({', '.join(arguments)})"
    return [*lines, "import torch", "", call]


def typed(name: str, value: Any) -> str:
    """A value of a keyword as one types it; mixed precision is torch's own class, with dtypes of torch."""
    if name != "mixed_precision" or not isinstance(value, dict):
        return repr(value)
    dtypes = ", ".join(f"{field}=torch.{dtype}" for field, dtype in value.items())
    return f"torch.nn.parallel.distributed._MixedPrecision({dtypes})"


def _by_apply(assignment: Assignment, why: str, version: Version | None) -> list[str]:
    """Lines that call ``sim.apply``, without ``made_for``: by ``bucket_bytes`` it refuses another model."""
    if assignment.ddp_kwargs.get("mixed_precision"):
        raise NotModelledError(f"mixed_precision: sim.apply does not support it, and it is needed: {why}")
    lines = [f"# {why}: needs bucketsim where it trains."]
    if version is not None and version < SUPPORTED_SINCE:
        lines.append(
            f"# bucketsim asks for torch >= {_told(SUPPORTED_SINCE)}: sim.apply was not tried with an older "
            f"one."
        )
    lines += [
        "import sim",
        "from sim.nouns.assignment import Assignment",
        "",
        "assignment = Assignment(",
        f"    bucket_indices={assignment.bucket_indices!r},",
    ]
    if assignment.bucket_bytes is not None:
        lines.append(f"    bucket_bytes={assignment.bucket_bytes!r},")
    kwargs = {name: value for name, value in assignment.ddp_kwargs.items() if name not in CAP_KWARGS}
    if kwargs:
        lines.append(f"    ddp_kwargs={kwargs!r},")
    return [*lines, ")", "ddp_model = sim.apply(model, assignment)"]


def _register_hook(name: str | None) -> list[str]:
    """The lines that register a communication hook of torch's; none where there is none."""
    if name is None:
        return []
    imported, hook = hook_call(name)
    return ["", imported, f"ddp_model.register_comm_hook(None, {hook})"]


def hook_call(name: str) -> tuple[str, str]:
    """The import of a communication hook of torch's, and the hook, as Python."""
    module = HOOKS[name].module
    return f"from torch.distributed.algorithms.ddp_comm_hooks import {module}", f"{module}.{name}_hook"


def megatron_flags(assignment: Assignment, workload: Workload) -> str:
    """Flags to add to Megatron-LM's training script; what is set elsewhere is told in a comment.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its buckets are not these settings'.
        InputError: a setting that is not legal.
        NotModelledError: an assignment of another system than Megatron-Core's, or a setting not modelled.
    """
    _check_policy(assignment, "Megatron-Core", (megatron.SYSTEM,))
    made_for = assignment.made_for
    return plan(workload, assignment, None if made_for is None else made_for.world_size).lines()


def deepspeed_config(assignment: Assignment, workload: Workload) -> str:
    """The JSON text to merge into DeepSpeed's configuration; batch size and optimizer are yours to add.

    ``accelerator`` (``DS_ACCELERATOR``) and ``offload_bytes_per_s`` (the machine's) are no part of it.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its buckets are not these settings'.
        InputError: a setting that is not legal.
        NotModelledError: an assignment of another system than ZeRO, or a setting that is not modelled.
    """
    _check_policy(assignment, "DeepSpeed", tuple(zero.STAGES))
    return plan(workload, assignment, None).lines()


def _check_policy(assignment: Assignment, whose: str, policies: Sequence[str]) -> None:
    if assignment.policy not in policies:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of {whose}, whose lines these are; they are written "
            f"for {', '.join(policies)}"
        )


def bucket_indices_json(assignment: Assignment, workload: Workload) -> str:
    """``bucket_indices`` with sizes and parameter names, as JSON text."""
    gradients = workload.gradients
    rows = [
        {
            "bucket": number,
            "num_bytes": sum(gradients[index].num_bytes for index in bucket),
            "indices": list(bucket),
            "names": [gradients[index].name for index in bucket],
        }
        for number, bucket in enumerate(assignment.bucket_indices)
    ]
    document = {
        "workload": workload.name,
        "bucket_indices": [list(bucket) for bucket in assignment.bucket_indices],
        "ddp_kwargs": assignment.ddp_kwargs,
        "requires": assignment.requires,
        "buckets": rows,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
