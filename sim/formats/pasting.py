"""The lines to paste into a training script."""

import json

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import DDP_POLICIES, Assignment
from sim.nouns.workload import Workload
from sim.units import format_size


def snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that makes DistributedDataParallel use ``assignment`` on ``model``, as ``ddp_model``.

    Stock DDP with keywords where the assignment has them; otherwise ``sim.apply``, which needs bucketsim
    where the script trains.

    Raises:
        AssignmentError: the assignment does not fit ``workload``.
        InputError: a keyword that is no name.
        NotModelledError: an assignment of another system than DistributedDataParallel.
    """
    assignment.check_fits(workload)
    if assignment.policy not in DDP_POLICIES:
        raise NotModelledError(
            f"policy: {assignment.policy!r} is no system of DistributedDataParallel, whose lines these are; "
            f"they are written for {', '.join(DDP_POLICIES)}"
        )
    for name in assignment.ddp_kwargs:
        if not name.isidentifier():
            raise InputError(f"ddp_kwargs: {name!r} is not legal; give names of DistributedDataParallel")
    lines = _by_keywords(assignment) if assignment.by_keywords else _by_apply(assignment)
    torch_range = assignment.requires.get("torch")
    needs = "any torch" if torch_range is None else f"needs torch {torch_range!r} (before: sim.apply)"
    title = (
        f"# bucketsim: {len(assignment.bucket_indices)} bucket(s) for {workload.name!r}, "
        f"{format_size(workload.total_bytes)} of gradients; {needs}"
    )
    elsewhere = [
        f"# Set elsewhere, and part of this assignment: {name}={value!r}"
        for name, value in assignment.settings.items()
    ]
    return "\n".join([title, *elsewhere, *lines]) + "\n"


def _by_keywords(assignment: Assignment) -> list[str]:
    lines = []
    environment = assignment.requires.get("environment", {})
    if environment:
        lines.append("import os")
        lines += [
            f"os.environ[{name!r}] = {value!r}  # before import torch" for name, value in environment.items()
        ]
    arguments = ["model", *(f"{name}={value!r}" for name, value in assignment.ddp_kwargs.items())]
    call = f"ddp_model = torch.nn.parallel.DistributedDataParallel({', '.join(arguments)})"
    return [*lines, "import torch", "", call]


def _by_apply(assignment: Assignment) -> list[str]:
    """The assignment spelled out, without what it was made for: ``bucket_bytes`` tell another model."""
    lines = [
        "# No keyword of DistributedDataParallel reaches these buckets: needs bucketsim where it trains.",
        "import sim",
        "from sim.nouns.assignment import Assignment",
        "",
        "assignment = Assignment(",
        f"    bucket_indices={assignment.bucket_indices!r},",
    ]
    if assignment.bucket_bytes is not None:
        lines.append(f"    bucket_bytes={assignment.bucket_bytes!r},")
    if assignment.ddp_kwargs:
        lines.append(f"    ddp_kwargs={assignment.ddp_kwargs!r},")
    return [*lines, ")", "ddp_model = sim.apply(model, assignment)"]


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
