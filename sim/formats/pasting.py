"""The lines to paste into a training script."""

import json

from sim.errors import InputError, NotModelledError
from sim.nouns.assignment import Assignment
from sim.nouns.workload import Workload
from sim.units import format_size


def snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that makes stock DistributedDataParallel use ``assignment``.

    Raises:
        NotModelledError: no keyword of DistributedDataParallel reaches these buckets.
    """
    assignment.check_fits(workload)
    if not assignment.ddp_kwargs and assignment.policy == "explicit":
        raise NotModelledError(
            "snippet: no keyword of DistributedDataParallel reaches these buckets (not contiguous in ready "
            "order, several dtypes, or a sparse gradient)"
        )
    for name in assignment.ddp_kwargs:
        if not name.isidentifier():
            raise InputError(f"ddp_kwargs: {name!r} is not legal; give names of DistributedDataParallel")
    torch_range = assignment.requires.get("torch")
    needs = "any torch" if torch_range is None else f"needs torch {torch_range!r}"
    environment = assignment.requires.get("environment", {})
    lines = [
        f"# bucketsim: {len(assignment.bucket_indices)} bucket(s) for {workload.name!r}, "
        f"{format_size(workload.total_bytes)} of gradients; {needs}"
    ]
    if environment:
        lines.append("import os")
        lines += [
            f"os.environ[{name!r}] = {value!r}  # before import torch" for name, value in environment.items()
        ]
    lines += ["import torch", ""]
    arguments = ["model"]
    for name, value in assignment.ddp_kwargs.items():
        arguments.append(f"{name}={value!r}")
    call = f"ddp_model = torch.nn.parallel.DistributedDataParallel({', '.join(arguments)})"
    return "\n".join([*lines, call]) + "\n"


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
