"""The lines to paste into a training script."""

from collections.abc import Sequence

from sim.errors import NotModelledError
from sim.nouns.assignment import CAP_KWARGS, DDP_POLICIES, Assignment
from sim.nouns.ddp_switches import HOOKS, OLDEST, SUPPORTED_SINCE, read_switches
from sim.nouns.workload import Workload
from sim.systems import fsdp2, megatron, zero
from sim.systems.ddp_assignment import check_reaches, torch_needed
from sim.systems.registry import plan
from sim.units import format_size


def snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that makes DistributedDataParallel use ``assignment`` on ``model``, as ``ddp_model``; of
    ``fully_shard``, what wraps the modules of ``model``.

    The lines use keywords of stock DistributedDataParallel if these reach the buckets, which is checked;
    else ``sim.apply``, which needs bucketsim where the script trains. The first line says which torch has all
    of it; with an older one ``sim.apply`` gives DDP the same buckets.

    Raises:
        AssignmentError: the assignment does not fit ``workload``, or its keywords reach other buckets.
        InputError: a keyword that is no name.
        NotModelledError: an assignment of another system than DistributedDataParallel, or switches that
            ``sim.apply`` refuses.
    """
    assignment.check_fits(workload)
    if assignment.policy == fsdp2.POLICY:
        return plan(workload, assignment, None).lines()
    _check_policy(assignment, "DistributedDataParallel", DDP_POLICIES)
    read_switches(assignment)  # files may hold anything, and lines names and values of switches
    kwargs, hook = assignment.ddp_kwargs, assignment.settings.get("comm_hook")
    if assignment.by_keywords:
        check_reaches(workload, assignment)
        since = torch_needed(kwargs)
        arguments = ", ".join(["model", *(f"{name}={value!r}" for name, value in kwargs.items())])
        lines = ["import torch", "", f"ddp_model = torch.nn.parallel.DistributedDataParallel({arguments})"]
    else:
        kwargs = {name: value for name, value in kwargs.items() if name not in CAP_KWARGS}
        since = max(SUPPORTED_SINCE, torch_needed(kwargs))
        # Without ``made_for``: by ``bucket_bytes`` sim.apply refuses another model.
        told = {name: getattr(assignment, name) for name in ("bucket_indices", "bucket_bytes")}
        lines = [
            "# No keyword of DistributedDataParallel reaches these buckets: needs bucketsim where it trains.",
            "import sim",
            "from sim.nouns.assignment import Assignment",
            "",
            "assignment = Assignment(",
            *(f"    {name}={value!r}," for name, value in (told | {"ddp_kwargs": kwargs}).items() if value),
            ")",
            "ddp_model = sim.apply(model, assignment)",
        ]
    if hook is not None:
        imported, name = hook_call(hook)
        lines += ["", imported, f"ddp_model.register_comm_hook(None, {name})"]
    needs = f"needs torch '>={since[0]}.{since[1]}'" if since > OLDEST else "any torch from 2.4 on"
    ahead = [
        f"# bucketsim: {len(assignment.bucket_indices)} bucket(s) for {workload.name!r}, "
        f"{format_size(workload.total_bytes)} of gradients; {needs}",
        *(
            f"# Set elsewhere, and part of this assignment: {name}={value!r}"
            for name, value in assignment.settings.items()
            if name != "comm_hook"
        ),
    ]
    return "\n".join([*ahead, *lines]) + "\n"


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
