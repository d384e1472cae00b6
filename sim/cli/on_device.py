"""--device, where it is not given: what the job trains on, as far as this machine has it."""

from typing import Annotated

import typer

from sim.cli.options import WHERE
from sim.cli.printing import note
from sim.errors import MachineError
from sim.nouns.devices import device_of_job
from sim.nouns.workload import Workload

Device = Annotated[
    str | None,
    typer.Option(
        help="Where tensors lie and backward runs: cpu or cuda. Default: as the workload says that the job "
        "does; a model of which nothing is known, on a GPU where there is one.",
        rich_help_panel=WHERE,
    ),
]
Backend = Annotated[
    str | None,
    typer.Option(help="gloo or nccl; default: gloo on cpu, nccl on cuda.", rich_help_panel=WHERE),
]


def device_of_link(asked: str | None, ranks: int, *, elsewhere: bool, boxed: bool) -> str:
    """Between what tensors a link is measured, ``asked`` or those of GPUs where each rank can have one.

    ``elsewhere``: somebody else starts the ranks, on machines that need not be like this one. ``boxed``: in
    network namespaces, whose wires only the CPU's tensors take.
    """
    gpus = 0 if asked is not None or boxed else _gpus_here()
    if gpus and (elsewhere or gpus >= ranks):
        return _said("cuda", "NCCL's link, as torch sees GPUs here")
    if gpus:
        return _said(
            "cpu",
            f"{ranks} ranks need a GPU each, of which torch sees {gpus} here: this is gloo between CPU "
            f"tensors, and says nothing of a job that trains on GPUs",
        )
    if elsewhere and asked is None:
        return _said("cpu", "torch sees no GPU here; for ranks that have one give --device cuda")
    return asked or "cpu"


def device_of_model(asked: str | None, workload: Workload | None, *, elsewhere: bool = False) -> str:
    """Where the user's own model runs, ``asked`` or that of the job; said where it could be another.

    ``elsewhere``: somebody else starts it, on machines that need not be like this one.

    Raises:
        MachineError: the job trains on a GPU, and there is none here: on the CPU it would be another job.
    """
    if asked is not None:
        return asked
    job = None if workload is None else device_of_job(workload)
    gpus = _gpus_here()
    if job == "cuda" and not gpus and not elsewhere:
        raise MachineError(
            "device: the job was recorded on cuda, and torch sees no GPU here; run it where there is one, or "
            "give --device cpu to measure another job, the same model on the CPU"
        )
    if job == "cuda" or (job is not None and gpus):
        return _said(job, "as the job was recorded")
    if gpus:
        return _said("cuda", "torch sees a GPU here")
    if job is None and elsewhere:
        return _said(
            "cpu", "torch sees no GPU here; for ranks that have one give --device cuda or the workload"
        )
    return "cpu"  # there is nothing else


def device_of_pacing(
    asked: str | None,
    workload: Workload | None,
    ranks: int,
    *,
    elsewhere: bool = False,
    only_cpu: bool = False,
) -> str:
    """Where a paced replay runs, ``asked`` or that of the job where that can be; said if the job has a GPU.

    ``only_cpu``: what else was asked for is replayed over gloo on the CPU.
    """
    if asked is not None:
        return asked
    if workload is None or device_of_job(workload) != "cuda":
        return "cpu"
    if only_cpu:
        return _said("cpu", "these options replay over gloo; the job itself was recorded on cuda")
    gpus = _gpus_here()
    if elsewhere or gpus >= ranks:
        return _said("cuda", "as the job was recorded")
    return _said(
        "cpu",
        f"the job was recorded on cuda, and {ranks} ranks need a GPU each, of which torch sees {gpus} here: "
        f"what is measured is its schedule over gloo between CPU tensors, not its link",
    )


def _gpus_here() -> int:
    from sim.validator.capabilities import gpus_here

    return gpus_here()


def _said(device: str, why: str) -> str:
    note(f"device: {device}: {why}")
    return device
