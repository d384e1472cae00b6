"""Which inputs cannot be relied on: marked as doubtful, or a link that is not the one that trains."""

from collections.abc import Iterator
from typing import Any

from sim.costs.service_time import measured_ranks
from sim.nouns.assignment import Assignment
from sim.nouns.devices import backend_of, device_type, devices_of_job, ranks_of_job
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import format_number, format_percent, format_size, format_sizes

# The side that a backend reduces on, where a file names no device.
_SIDES = {**dict.fromkeys(("gloo", "mpi"), "cpu"), **dict.fromkeys(("nccl", "xccl", "hccl"), "accelerator")}
_MEASURED_BY = {
    "cpu": "bucketsim calibrate",
    "accelerator": "{}_perf of nccl-tests, for bucketsim import auto beside the output of all_reduce_perf",
}


def doubts_about(workload: Workload, hardware: Hardware, *, of_any_size: bool = False) -> tuple[str, ...]:
    """Sentences about the inputs: a step that this link cannot have given, recorded times that cannot be
    true, another link than the one that trains, doubtful points of the curve.

    ``of_any_size``: what is asked is another number of ranks than the recorded one.
    """
    return (
        *doubts_about_step(hardware),
        *(f"doubtful recording: {line}" for line in _listed(workload.provenance) if isinstance(line, str)),
        *(f"doubtful link: {told}" for told in _about_link(workload, hardware, of_any_size)),
        *_about_curve(hardware),
    )


def _about_link(workload: Workload, hardware: Hardware, of_any_size: bool) -> Iterator[str]:
    """What the link is that does not train: between other devices, over another backend, of other ranks."""
    roofline = workload.provenance.get("roofline")  # of an estimate the GPU that its times are of
    named = roofline.get("device") if isinstance(roofline, dict) else None
    trains = devices_of_job(workload) or ((named,) if isinstance(named, str) else ())
    sides, measured = {_side(one) for one in trains} - {None}, measured_on(hardware)
    if hardware.world_size > 1 and sides and measured is not None:
        said = hardware.provenance.get("backend")
        over = f" over {said}" if isinstance(said, str) else ""
        some = " some gradients" if len(sides) > 1 else ""
        ours, theirs = (_backend(one.provenance, trains[0]) for one in (workload, hardware))
        if sides != {measured} and measured == "cpu":
            yield (
                f"it was measured{over} between tensors of the CPU, and the workload trains{some} on an "
                f"accelerator; measure that one: nccl-tests on the same GPUs, then bucketsim import auto"
            )
        elif sides != {measured}:
            yield (
                f"it is one between accelerators{over}, and the workload trains{some} on the CPU; measure "
                f"the CPU's with bucketsim calibrate"
            )
        elif None not in (ours, theirs) and ours != theirs:
            told = f"it is one over {theirs}, and the job was recorded over {ours}"
            yield f"{told}; measure the link as {ours} uses it"
    recorded, ranks = ranks_of_job(workload), measured_ranks(hardware)
    if not of_any_size and recorded not in (None, ranks):
        has = "1 rank" if ranks == 1 else f"{ranks} ranks"
        yield (
            f"it is one of {has}, and the job was recorded on {recorded}; measure or compute one of "
            f"{recorded}, or ask bucketsim scaling what other numbers of ranks take"
        )


def doubts_about_buckets(
    workload: Workload, assignment: Assignment, hardware: Hardware | None = None
) -> tuple[str, ...]:
    """That buckets were made for a job of another number of ranks than that of ``hardware``, or, without it,
    than the recorded job."""
    made_for = None if assignment.made_for is None else assignment.made_for.world_size
    ranks = ranks_of_job(workload) if hardware is None else hardware.world_size
    if made_for is None or ranks in (None, made_for):
        return ()
    of = "the job was recorded on" if hardware is None else f"{hardware.name} has"
    return (
        f"doubtful assignment: it was made for {made_for} ranks, and {of} {ranks}; tune for that number of "
        f"ranks, with hardware of as many",
    )


def missing_curve(hardware: Hardware, kind: str) -> str:
    """That ``hardware`` has no curve of ``kind``, and what measures one on the devices that it is between."""
    by = _MEASURED_BY.get(measured_on(hardware) or "", ", or ".join(_MEASURED_BY.values())).format(kind)
    return f"hardware {hardware.name!r} has no {kind} curve; to measure it: {by}"


def is_refuted(hardware: Hardware) -> bool:
    """Whether a step of the job cannot have come from this link (``sim.own_step``, ``sim.anchor``)."""
    return bool(doubts_about_step(hardware))


def measured_on(hardware: Hardware) -> str | None:
    """Between what the curve was measured or computed, ``cpu`` or ``accelerator``; None where not told."""
    told = hardware.provenance
    device = told.get("device_type", told.get("device"))
    return _side(device) if isinstance(device, str) else _SIDES.get(_backend(told, "cuda") or "")


def _side(device: str) -> str | None:
    kind = device_type(device)
    return None if kind == "meta" else "cpu" if kind == "cpu" else "accelerator"


def _backend(told: dict[str, Any], device: str) -> str | None:
    """The backend of tensors on ``device`` that a file's provenance names; None where it names none."""
    said = told.get("backend", "nccl" if "fabric" in told else None)  # computed by NCCL's own cost model
    over = backend_of(said, device) if isinstance(said, str) else None
    return "nccl" if over == "rccl" else over  # which torch calls nccl


def doubts_about_step(hardware: Hardware) -> tuple[str, ...]:
    """That a measured step of the job is not this link's, and which link would give it."""
    said: list[str] = []
    for name, told in (
        ("own_step", "the job's own recorded step cannot come from it"),
        ("anchor", "the measured step does not come from it"),
    ):
        known: Any = hardware.spread.get(name)
        if not isinstance(known, dict) or known.get("fits") is not False:
            continue
        if known.get("why") in ("beyond", "bound") and {"factor", "value", "low", "high"} <= set(known):
            factor, value = known["factor"], format_number(known["value"], 4)
            what = f"one {value} times as slow as given" if factor == "curve" else f"{factor} {value}"
            ends = f"{format_number(known['low'], 2)} to {format_number(known['high'], 2)}"
            told = f"the measured step takes {what}, which is not within {ends}"
        elif known.get("error") is not None:
            told += f"; its prediction is off by {format_percent(known['error'], sign=True)}"
        if (ratio := known.get("explained_by")) is not None and known.get("factor") != "curve":
            told += f"; a link that takes {format_number(ratio)} times as long would"
        said.append(f"doubtful link: {told}. Measure the link that trains")
    return tuple(said)


def _about_curve(hardware: Hardware) -> tuple[str, ...]:
    """One sentence on all doubtful sizes of the curve; if there is one only, it says why."""
    points = {
        one["num_bytes"]: one["why"]
        for one in _listed(hardware.provenance)
        if isinstance(one, dict) and isinstance(one.get("num_bytes"), int) and isinstance(one.get("why"), str)
    }
    if not points:
        return ()
    what = f"{len(points)} of {len(hardware.all_reduce)} sizes, {format_sizes(points)}"
    if len(points) == 1:
        ((size, why),) = points.items()
        what = f"{format_size(size)} {why}"
    return (f"doubtful calibration: {what}; calibrate --again measures anew",)


def _listed(provenance: dict[str, Any]) -> list[Any]:
    """The entries of ``doubtful`` in a file's provenance, which may hold anything."""
    found = provenance.get("doubtful")
    return found if isinstance(found, list) else []
