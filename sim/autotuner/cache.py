"""What an autotuned job kept, for its next run: an assignment file with the machine that it was kept on."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from sim.autotuner.unison import backend_of
from sim.formats.documents import load_assignment, to_text
from sim.formats.files import write_atomically
from sim.nouns.assignment import Assignment, MadeFor
from sim.recorder.live_recording import trained_parameters
from sim.recorder.training_step import dtype_name, surroundings

_MACHINE = "machine"


def load_kept(path: str | os.PathLike[str], ddp: DistributedDataParallel) -> Assignment | None:
    """The assignment in the file, if it was kept for this model, number of ranks and machine; else None.

    Raises:
        InputError: not an assignment.
    """
    if not Path(path).exists():
        return None
    kept = load_assignment(path)
    here = _made_for(ddp, kept.made_for.workload if kept.made_for else "")
    if kept.made_for != here or kept.provenance.get(_MACHINE) != _machine(ddp):
        return None
    return kept


def save_kept(path: str | os.PathLike[str], assignment: Assignment, ddp: DistributedDataParallel) -> None:
    """Write ``assignment`` with the machine that it was kept on; ``sim.apply`` takes the file too.

    Raises:
        InputError: the file cannot be written.
    """
    provenance = {**assignment.provenance, "source": "sim.autotune", _MACHINE: _machine(ddp)}
    write_atomically(Path(path), to_text(replace(assignment, provenance=provenance)))


def _made_for(ddp: DistributedDataParallel, workload: str) -> MadeFor:
    named = trained_parameters(ddp)
    return MadeFor(
        workload=workload,
        names=tuple(name for name, _ in named),
        num_bytes=tuple(parameter.numel() * parameter.element_size() for _, parameter in named),
        dtypes=tuple(dtype_name(parameter) for _, parameter in named),
        world_size=ddp.process_group.size(),
    )


def _machine(ddp: DistributedDataParallel) -> dict[str, Any]:
    """CPU, device and backend: on others the link and the computing of the job may differ."""
    found = surroundings(ddp.device)
    return {
        "cpu": found["cpu"],
        "device_name": found.get("device_name", ddp.device.type),
        "backend": backend_of(ddp),
    }
