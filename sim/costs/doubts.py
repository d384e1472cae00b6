"""Which inputs cannot be relied on: marked as doubtful, or a link that is not the one that trains."""

from typing import Any

from sim.nouns.devices import backend_of, device_of_job, device_type
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_size

_OF_CPUS = ("gloo", "mpi")
_OF_ACCELERATORS = ("nccl", "rccl", "xccl", "hccl")


def doubts_about(workload: Workload, hardware: Hardware) -> tuple[str, ...]:
    """Sentences about the inputs: a step that this link cannot have given, recorded times that cannot be
    true, another link than the one that trains, doubtful points of the curve."""
    return (
        *doubts_about_step(hardware),
        *(f"doubtful recording: {line}" for line in _listed(workload.provenance) if isinstance(line, str)),
        *_about_link(workload, hardware),
        *_about_curve(hardware),
    )


def is_refuted(hardware: Hardware) -> bool:
    """Whether a job's own recorded step cannot have come from this link (``sim.own_step``)."""
    own: Any = hardware.spread.get("own_step")
    return isinstance(own, dict) and own.get("fits") is False


def _trained_on(workload: Workload) -> str | None:
    """The device of the job; of an estimate the GPU that its times are of."""
    roofline = workload.provenance.get("roofline")
    return device_of_job(workload) or (roofline.get("device") if isinstance(roofline, dict) else None)


def measured_on(hardware: Hardware) -> str | None:
    """Between what the curve was measured or computed, ``cpu`` or ``accelerator``; None where not told."""
    told = hardware.provenance
    device = told.get("device_type", told.get("device"))
    if isinstance(device, str):
        return _side(device)
    if isinstance(backend := told.get("backend"), str):
        over = backend_of(backend, "cuda")
        return "cpu" if over in _OF_CPUS else "accelerator" if over in _OF_ACCELERATORS else None
    return "accelerator" if "fabric" in told else None


def _side(device: str | None) -> str | None:
    if device is None or device_type(device) == "meta":
        return None
    return "cpu" if device_type(device) == "cpu" else "accelerator"


def _about_link(workload: Workload, hardware: Hardware) -> tuple[str, ...]:
    """That the link is not the one that trains; empty where it may be."""
    trains, measured = _side(_trained_on(workload)), measured_on(hardware)
    if hardware.world_size == 1 or None in (trains, measured) or trains == measured:
        return ()
    backend = hardware.provenance.get("backend")
    over = f" over {backend}" if isinstance(backend, str) else ""
    if measured == "cpu":
        return (
            f"doubtful link: it was measured{over} between tensors of the CPU, and the workload trains on an "
            f"accelerator; measure that one: nccl-tests on the same GPUs, then bucketsim import auto",
        )
    return (
        f"doubtful link: it is one between accelerators{over}, and the workload trains on the CPU; measure "
        f"the CPU's with bucketsim calibrate",
    )


def doubts_about_step(hardware: Hardware) -> tuple[str, ...]:
    """That the job's own step is not this link's, and which link would give it."""
    if not is_refuted(hardware):
        return ()
    ratio = hardware.spread["own_step"].get("explained_by")
    told = "" if ratio is None else f"; a link that takes {ratio:.3g} times as long would"
    return (
        f"doubtful link: the job's own recorded step cannot come from it{told}. Measure the link that trains",
    )


def _about_curve(hardware: Hardware) -> tuple[str, ...]:
    """One sentence on all doubtful sizes of the curve; if there is one only, it says why."""
    points = [
        (one["num_bytes"], one["why"])
        for one in _listed(hardware.provenance)
        if isinstance(one, dict) and isinstance(one.get("num_bytes"), int) and isinstance(one.get("why"), str)
    ]
    if not points:
        return ()
    if len(points) == 1:
        ((size, why),) = points
        what, them = f"{format_size(size)} {why}", "it"
    else:
        least, most = (format_size(end(size for size, _ in points)) for end in (min, max))
        what, them = f"{len(points)} of {len(hardware.all_reduce)} sizes, {least} to {most}", "them"
    return (f"doubtful calibration: {what}; calibrate --again measures {them} anew",)


def _listed(provenance: dict[str, Any]) -> list[Any]:
    """The entries of ``doubtful`` in a file's provenance, which may hold anything."""
    found = provenance.get("doubtful")
    return found if isinstance(found, list) else []
