"""Devices and backends by name, as torch writes them, and what of them the ranks of one job have alike."""

from collections.abc import Mapping

from sim.nouns.workload import Workload

# torch's own defaults for a process group that was made without a backend's name
# (``torch.distributed.Backend.default_device_backend_map``)
_BY_DEFAULT = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl", "mps": "gloo"}

# variables that take the overlap away which a recording is to show, and why
SERIALISING = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "each timed event of the recorder makes the GPU's one queue wait",
    "CUDA_LAUNCH_BLOCKING": "the host waits for every kernel",
}


def serialised_by(environment: Mapping[str, str]) -> list[str]:
    """Sentences on the variables of ``environment`` that serialise what a GPU does."""
    again = "so that overlap is not what it is without it; record again without this variable"
    return [f"{name}=1: {why}, {again}" for name, why in SERIALISING.items() if environment.get(name) == "1"]


def device_type(device: str) -> str:
    """``"cuda"`` of ``"cuda:3"``: the ranks of one host have a device each, of one type."""
    return device.split(":", 1)[0].lower()


def devices_of_job(workload: Workload) -> tuple[str, ...]:
    """The types of device that the gradients of ``workload`` are on, each once; empty where nothing says it.

    Where no gradient says, its provenance does, which names the type or the model of the device.
    """
    types = [device_type(gradient.device) for gradient in workload.gradients if gradient.device]
    named = workload.provenance.get("device_type", workload.provenance.get("device"))
    if not set(types) - {"meta"}:
        types = [device_type(named)] if isinstance(named, str) else []
    return tuple(one for one in dict.fromkeys(types) if one != "meta")


def device_of_job(workload: Workload) -> str | None:
    """The type of device that the job of ``workload`` trains on; None where nothing says it."""
    return next(iter(devices_of_job(workload)), None)


def ranks_of_job(workload: Workload) -> int | None:
    """How many ranks the job had that ``workload`` was recorded from; None where nothing says it."""
    told = workload.provenance.get("world_size")
    return told if type(told) is int and told > 0 else None


def backend_of(said: str, device: str) -> str:
    """The backend that reduces tensors on ``device``, of what torch says of a whole process group.

    ``said`` is one backend ("nccl"), one for each type of device ("cpu:gloo,cuda:nccl"), or "undefined",
    where the group was made without a name and each type has torch's default. What names none for this
    device is returned as it is.
    """
    place, said = device_type(device), said.lower()
    pairs = dict(pair.split(":", 1) for pair in said.split(",") if ":" in pair)
    return (_BY_DEFAULT if said == "undefined" else pairs).get(place, said)


def link_source(backend: str) -> str:
    """What makes a hardware of the link of ``backend``; ``calibrate`` and nccl-tests know no MPI."""
    if backend == "gloo":
        return "bucketsim calibrate makes"
    prints = "OSU's osu_allreduce prints" if backend == "mpi" else "nccl-tests prints"
    return f"bucketsim import auto makes of what {prints}"
