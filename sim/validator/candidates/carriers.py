"""What carries the buckets of a replay, as the one who orders it says it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from sim.errors import InputError
from sim.nouns.hardware import CurvePoint, Hardware
from sim.nouns.workload import Workload
from sim.validator.launch import Place, run_ranks

DEVICES = ("cpu", "cuda")
BACKENDS = ("gloo", "nccl")
EMULATED = "emulated"
_PROBE_REPEATS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """Where tensors lie and what sums them up: gloo or NCCL between ranks, or an emulated link.

    ``backend`` None is gloo on the CPU and NCCL on GPUs. ``emulated`` is the machine whose all-reduce curve
    and channels one rank emulates.
    """

    device: str = "cpu"
    backend: str | None = None
    emulated: Hardware | None = None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise InputError(f"device: {self.device!r} is not legal; give cpu or cuda")
        if self.backend not in (None, *BACKENDS):
            raise InputError(f"backend: {self.backend!r} is not legal; give gloo or nccl")
        if self.backend == "nccl" and self.device == "cpu":
            raise InputError("backend: nccl is not legal on the CPU; give gloo, or cuda as the device")
        if self.emulated is not None and self.emulated.world_size == 1:
            raise InputError("hardware: world_size 1 has no link to emulate; give the machine that is meant")
        if self.emulated is not None and self.backend == "nccl":
            raise InputError("backend: nccl carries nothing over an emulated link; give one of the two")

    @property
    def name(self) -> str:
        """What a Measurement calls its backend."""
        if self.emulated is not None:
            return EMULATED
        return self.backend or ("nccl" if self.device == "cuda" else "gloo")

    @property
    def _uses_nccl(self) -> bool:
        """Beside an emulated link too: gloo would take the buffers that DDP broadcasts by way of the host."""
        return self.device == "cuda" and self.backend != "gloo"

    def order_to_ranks(self) -> dict[str, Any]:
        """What the ranks are told; objects and the common start travel over gloo, on the host."""
        return {
            "device": self.device,
            "backend": "cpu:gloo,cuda:nccl" if self._uses_nccl else "gloo",
            "link": None if self.emulated is None else _describe(self.emulated),
        }


GLOO_ON_HOST = Carrier()


def emulating_place(hardware: Hardware) -> Place:
    """The one rank that emulates the link of ``hardware``."""
    return Place(ranks=1, spread=f"with the emulated link of {hardware.name} ({hardware.world_size} ranks)")


def measure_machine(workload: Workload, hardware: Hardware, device: str) -> Hardware:
    """``hardware``'s link with this machine's copies and launches, measured on one rank.

    Slow-downs beside collectives go, since an emulated one takes nothing away from anybody. A gradient's hook
    is free: on the CPU the copies hold it, and on a GPU the host is ahead. ``channel_slowdown`` stays, as it
    belongs to the link; ``shared_connection`` does not, since an emulated message waits behind no other.
    Broadcasts go too: one rank has none.

    Raises:
        ReplayError: the rank failed.
    """
    found: list[dict[str, Any]] = []

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "local":
            found.append(event)

    job = probe_job(workload, Carrier(device=device, emulated=hardware))
    run_ranks(emulating_place(hardware), job, take)
    return with_local_costs(hardware, found[0])


def probe_job(workload: Workload, carrier: Carrier) -> dict[str, Any]:
    """The job that measures copies of ``workload``'s tensors, and launches."""
    return {
        "task": "probe",
        **carrier.order_to_ranks(),
        "shapes": [list(gradient.shape) for gradient in workload.gradients],
        "dtypes": [gradient.dtype for gradient in workload.gradients],
        "repeats": _PROBE_REPEATS,
    }


def with_local_costs(hardware: Hardware, found: dict[str, Any]) -> Hardware:
    """``hardware`` with what the event ``local`` of a probe job measured."""
    return replace(
        hardware,
        name=f"emulated {hardware.name}",
        shared_connection=False,
        **local_fields(found),
        hook_cost_ns=0,
        compute_slowdown=1.0,
        comm_slowdown=1.0,
        copy_in_slowdown=1.0,
        copy_out_slowdown=1.0,
        comm_copy_out_slowdown=1.0,
        broadcast=(CurvePoint(num_bytes=0, duration_ns=0),),
        spread={
            **{key: value for key, value in hardware.spread.items() if key == "all_reduce"},
            "copy_in_ns": _scatter(found["copy_in_ns"]),
            "copy_out_ns": _scatter(found["copy_out_ns"]),
            "launch_cost_ns": _scatter(found["launch_ns"]),
        },
        provenance={"source": "bucketsim, emulated link", "link": hardware.provenance},
    )


def local_fields(found: Mapping[str, Any]) -> dict[str, Any]:
    """Copies and launches of an event ``local``, as fields of a Hardware; copies too fast to see are free."""

    def rate(samples_ns: list[int]) -> float | None:
        middle = _middle(samples_ns)
        return round(found["copy_bytes"] * 1e9 / middle, 0) if middle > 0 else None

    return {
        "launch_cost_ns": max(0, _middle(found["launch_ns"])),
        "launch_blocks_compute": found["launch_blocks_compute"],
        "copy_in_bytes_per_s": rate(found["copy_in_ns"]),
        "copy_out_bytes_per_s": rate(found["copy_out_ns"]),
    }


def _middle(samples: Sequence[int]) -> int:
    return round(median(samples))


def _scatter(samples_ns: list[int]) -> dict[str, int]:
    ordered = sorted(samples_ns)
    return {
        "count": len(ordered),
        "min_ns": ordered[0],
        "median_ns": _middle(ordered),
        "max_ns": ordered[-1],
    }


def _describe(hardware: Hardware) -> dict[str, Any]:
    return {
        "points": [[point.num_bytes, point.duration_ns] for point in hardware.all_reduce],
        "channels": hardware.comm_channels,
        "channel_slowdown": hardware.channel_slowdown,
    }
