"""Machines that others measured: those that constants come from, and those that presets are held to.

``machines.json`` has them with their sources: nccl-tests' all_reduce_perf, out of place; times in us by size
in MiB, bus bandwidths in GB/s at the largest sizes, where time is bandwidth. The constants of
``sim.clusters.nccl_model`` come from all but those ``elsewhere``, which were looked up once the model was
made; no prediction is tested on them. On the first and the last with NVLink one process drives all GPUs and
launches on each in turn, which takes longer than small messages do: their bandwidth is taken from 32 MiB on.
Through host memory (NCCL's SHM transport) go GeForce or NCCL_P2P_DISABLE=1; on the RTX PRO 6000 between the
two switches only.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from sim.clusters.fabric import Fabric, fabric_of
from sim.clusters.machines import PCIE_X16, preset
from sim.clusters.nccl_model import collective_ns
from sim.nouns.hardware import Curve, CurvePoint
from tests.clusters.published_fabrics import MIB, box, median_error

_ROWS = json.loads(Path(__file__).with_name("machines.json").read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A machine and its times in us by size in MiB."""

    name: str
    fabric: Fabric
    time_us: dict[int, float]

    @property
    def curve(self) -> Curve:
        """Its times as points."""
        return tuple(
            CurvePoint(num_bytes=size * MIB, duration_ns=round(us * 1000))
            for size, us in self.time_us.items()
        )

    def error(self) -> float:
        """Median of |computed / measured - 1| over the sizes, in per cent."""
        made = (collective_ns(self.fabric, "all_reduce", point.num_bytes) for point in self.curve)
        return median_error(made, self.curve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A machine without NVLink in use: what slots carry by NCCL's count, and what it reached, bytes/s."""

    slot: float
    bus: float


def _times(row: dict[str, dict[str, float]]) -> dict[int, float]:
    return {int(size): us for size, us in row["time_us"].items()}


NVLINK_MACHINES = [
    Timed(name=row["name"], fabric=box(*row["fabric"]), time_us=_times(row)) for row in _ROWS["nvlink"]
]
ELSEWHERE = [
    Timed(name=row["name"], fabric=fabric_of(preset(row["preset"], row["hosts"])), time_us=_times(row))
    for row in _ROWS["elsewhere"]
]
THROUGH_HOST, PEER_TO_PEER = (
    [Reached(slot=PCIE_X16[row["pcie_gen"]], bus=row["bus_GB_per_s"] * 1e9) for row in _ROWS[how]]
    for how in ("through_host", "peer_to_peer")
)
