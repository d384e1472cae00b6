"""The lines to paste into a training script."""

import json
import re
from collections.abc import Sequence

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.ddp_switches import ARGUMENTS, HOOKS, OLDEST, SUPPORTED_SINCE, Version, read_switches
from sim.nouns.workload import Workload
from sim.systems import fsdp2, megatron, zero
from sim.systems.ddp_assignment import check_reaches, first_torches, torch_needed
from sim.systems.registry import plan
from sim.units import format_size


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
    version = None if torch is None else read_version(torch)
    if assignment.policy == fsdp2.POLICY:
        if version is not None and version < fsdp2.FSDP2_SINCE:
            raise InputError(
                f"torch: {torch} is not legal; the lines for {assignment.policy} need 2.13 or newer"
            )
        return plan(workload, assignment, None).lines()
    _check_policy(assignment, "DistributedDataParallel", DDP_POLICIES)
    check_code(assignment)
    if assignment.by_keywords:
        check_reaches(workload, assignment)
    why = _why_not_by_keywords(assignment, version)
    hook = assignment.settings.get("comm_hook")
    lines = [
        f"# bucketsim: {len(assignment.bucket_indices)} bucket(s) for {workload.name!r}, "
        f"{format_size(workload.total_bytes)} of gradients; {_needs(assignment, version)}",
        *(
            f"# Set elsewhere, and part of this assignment: {name}={value!r}"
            for name, value in assignment.settings.items()
            if name != "comm_hook"
        ),
        *(_by_keywords(assignment) if why is None else _by_apply(assignment, why, version)),
    ]
    if hook is not None:
        imported, name = hook_call(hook)
        lines += ["", imported, f"ddp_model.register_comm_hook(None, {name})"]
    return "\n".join(lines) + "\n"


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
    first = first_torches(assignment.ddp_kwargs)
    switches = max((since for name, since in first.items() if name in ARGUMENTS), default=OLDEST)
    if not assignment.by_keywords:
        return f"needs torch '>={_told(max(switches, SUPPORTED_SINCE))}'"
    if (since := torch_needed(assignment.ddp_kwargs)) == OLDEST:
        return f"any torch from {_told(OLDEST)} on"
    return f"needs torch '>={_told(since)}'" + (" (before: sim.apply)" if since > switches else "")


def _why_not_by_keywords(assignment: Assignment, version: Version | None) -> str | None:
    """Why keywords of stock DDP are not enough here; None where they are.

    Raises:
        InputError: a switch that this torch has not, whatever its value.
    """
    first = first_torches(assignment.ddp_kwargs)
    missing = {name: since for name, since in first.items() if version is not None and version < since}
    for name in sorted(missing.keys() & ARGUMENTS.keys(), key=missing.__getitem__):
        raise InputError(
            f"torch: {_told(version or OLDEST)} has no {name}, which is part of this assignment; give "
            f"{_told(missing[name])} or newer"
        )
    if not assignment.by_keywords:
        return "No keyword of DistributedDataParallel reaches these buckets"
    for name, since in missing.items():
        return f"torch {_told(version or OLDEST)} has no {name}, which came with {_told(since)}"
    return None


def _by_keywords(assignment: Assignment) -> list[str]:
    lines, environment = [], assignment.requires.get("environment", {})
    if environment:
        lines = ["import os", *(f"os.environ[{name!r}] = {value!r}" for name, value in environment.items())]
        lines[-1] += "  # before import torch"
    arguments = ["model", *(f"{name}={value!r}" for name, value in assignment.ddp_kwargs.items())]
    call = f"ddp_model = torch.nn.parallel.DistributedDataParallel({', '.join(arguments)})"
    return [*lines, "import torch", "", call]


def _by_apply(assignment: Assignment, why: str, version: Version | None) -> list[str]:
    """Lines that call ``sim.apply``, without ``made_for``: by ``bucket_bytes`` it refuses another model."""
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
        AssignmentError, InputError, NotModelledError: as ``megatron_flags``, of ZeRO.
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
