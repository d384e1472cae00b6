"""Systems of the public measurements by published figures alone, and machines that constants come from.

None of the systems is read off a curve. Bandwidths in NCCL's own units (src/graph/topo.h): 20 GB/s a link of
NVLink 3 (A100: 12 links), 20.6 of NVLink 4 (GH200: 18 links), 12 for PCIe 3.0 x16 and twice that a
generation, 12 a 100 Gbit/s of network; 10 Gbit/s carry 1.2 of the speeds that its search tries
(src/graph/search.cc).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path
from statistics import median

from sim.clusters.fabric import Fabric, Hop, Kind, fabric_of
from sim.clusters.machines import PCIE_X16, preset
from sim.clusters.nccl_model import Method, collective_ns, nccl_us
from sim.nouns.hardware import Curve
from tests.handmade import points
from tests.published.figures import curve, figures

MIB, GIB = 2**20, 2**30

GB = 10**9
A100_NVLINK = 12 * 20 * GB
GH200_NVLINK = round(18 * 20.6 * GB)
PCIE_3, PCIE_4, PCIE_5 = 12 * GB, 24 * GB, 48 * GB
# Eight GPUs on slots of their own need two sockets. Which processors is not said: of those with PCIe 5 NCCL
# counts 22 GB/s (Sapphire Rapids) to 40 between two; the least is taken.
SOCKETS_5 = 22 * GB


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A system, its fabric, and what figures alone lack where they are further off than the aim."""

    name: str
    fabric: Fabric
    missing: str


def nccl_time_ns(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> int:
    """The time that NCCL itself counts."""
    return round(nccl_us(fabric, collective, num_bytes, method) * 1000)


def box(
    ranks: int, kind: Kind, bytes_per_s: float, generation: str, channels: int, *, nvls: bool = False
) -> Fabric:
    return Fabric(
        world_size=ranks,
        hosts=1,
        ranks_per_host=ranks,
        generation=generation,  # type: ignore[arg-type]
        intra=Hop(kind=kind, bytes_per_s=bytes_per_s),
        inter=None,
        channels=channels,
        nvls=nvls,
    )


def dgx_a100(ranks: int) -> Fabric:
    """NVIDIA DGX A100 system architecture: six NVSwitches, 12 links of NVLink 3 a GPU."""
    return box(ranks, "nvswitch", A100_NVLINK, "ampere", 12)


def alps(hosts: int) -> Fabric:
    """CSCS Alps: four GH200 a node, all to all over 6 links each, one Slingshot-11 NIC of 200 Gbit/s each.

    GPUs reach their NIC through Grace, over which NCCL before 2.27 has no LL128 (PATH_PHB).
    """
    if hosts == 1:
        return box(4, "nvlink", GH200_NVLINK, "hopper", 18)
    return Fabric(
        world_size=4 * hosts,
        hosts=hosts,
        ranks_per_host=4,
        generation="hopper",
        intra=Hop(kind="nvlink", bytes_per_s=GH200_NVLINK),
        inter=Hop(kind="net", bytes_per_s=4 * 24 * GB),
        channels=4,
        cpu="arm",
        protocols=("LL", "Simple"),
    )


def p4de(hosts: int) -> Fabric:
    """AWS p4de.24xlarge: DGX A100's NVLink, four EFA of 100 Gbit/s.

    aws-ofi-nccl (src/platform-aws.c) reports 75 us for it to choose by, and lets NCCL use Simple alone.
    """
    return Fabric(
        world_size=8 * hosts,
        hosts=hosts,
        ranks_per_host=8,
        generation="ampere",
        intra=Hop(kind="nvswitch", bytes_per_s=A100_NVLINK),
        inter=Hop(kind="net", bytes_per_s=4 * 12 * GB, reported_ns=75_000),
        channels=4,
        protocols=("Simple",),
    )


def hkbu(net: float) -> Fabric:
    """Eight hosts of four RTX 2080 Ti: PCIe 3.0 x16, no peer-to-peer and no GPUDirect on GeForce.

    By the bus ids in the file (3d, 3e and b1, b2) two GPUs share a switch, whose way up to host memory both
    use to send: half of it each.
    """
    return Fabric(
        world_size=32,
        hosts=8,
        ranks_per_host=4,
        generation="volta",
        intra=Hop(kind="shm", bytes_per_s=PCIE_3 / 2),
        inter=Hop(kind="net", bytes_per_s=net),
        channels=1,
        protocols=("LL", "Simple"),
    )


# What the model lacks where figures alone are further off than the aim.
AIM = 15.0
ONE_RANK = "kernels of one rank by a profiler, which wait for the others too"
SLINGSHOT = "steps over Slingshot at some sizes take up to four times as long"
HOST_MEMORY = "a constant factor of host memory: 1.4 to 14.9 GB/s on other machines"
SLOT = "a constant factor of the way between the slots, which is not published"
SOCKETS = "a constant factor of the way between sockets, which is not published"
LAUNCHES = "one process launches for eight GPUs in turn: constant times"
EFA = "steps over EFA up to 32 MiB take up to twice as long"
# NVLink, PCIe and ports are those of data sheets (A100 600 GB/s, GH200 900; A40, L4 and A100 PCIe 4.0 x16,
# RTX PRO 6000 5.0 x16) by the counts of topo.h; 10 Gbit/s by search.cc.
SYSTEMS = tuple(
    System(name=name, fabric=fabric, missing=missing)
    for name, fabric, missing in (
        ("thanos, 8 A100", dgx_a100(8), ""),
        ("stas00, 8 A100, one process", dgx_a100(8), LAUNCHES),
        ("p4de, 2 hosts of 8 A100, EFA", p4de(2), EFA),
        ("alps, 4 GH200", alps(1), ""),
        ("alps, 8 GH200", alps(2), ""),
        ("alps, 16 GH200", alps(4), SLINGSHOT),
        ("alps, 32 GH200", alps(8), SLINGSHOT),
        ("hkbu, 32 2080 Ti, 100G IB", hkbu(12 * GB), HOST_MEMORY),
        ("hkbu, 32 2080 Ti, 10 GbE", hkbu(1.2 * GB), ""),
        ("vidur, bridged pair of A100", box(2, "nvlink", A100_NVLINK, "ampere", 12), ""),
        ("vidur, 4 A100 in bridged pairs", box(4, "pcie", PCIE_4, "ampere", 1), ""),
        ("vidur, 2 A100 of a DGX", dgx_a100(2), ONE_RANK),
        ("vidur, 4 A100 of a DGX", dgx_a100(4), ONE_RANK),
        ("vidur, 8 A100 of a DGX", dgx_a100(8), ONE_RANK),
        ("kopernik, 2 L4", box(2, "pcie", PCIE_4, "ampere", 1), SLOT),
        ("kopernik, 4 A40, SHM", box(4, "shm", PCIE_4, "ampere", 1), HOST_MEMORY),
        ("dominator, 2 RTX PRO 6000", box(2, "pcie", PCIE_5, "blackwell", 1), SLOT),
        ("dominator, 4 RTX PRO 6000", box(4, "pcie", PCIE_5, "blackwell", 1), SLOT),
        ("dominator, 8 RTX PRO 6000", box(8, "qpi", SOCKETS_5, "blackwell", 1), SOCKETS),
    )
)
BY_NAME = {system.name: system for system in SYSTEMS}


def three_of(points: Curve) -> Curve:
    """The least, the one nearest to the middle in logarithms, and the greatest."""
    middle = (log2(points[0].num_bytes) + log2(points[-1].num_bytes)) / 2
    return (points[0], min(points, key=lambda point: abs(log2(point.num_bytes) - middle)), points[-1])


def median_error(durations_ns: Iterable[float], points: Curve) -> float:
    """Median of |computed / measured - 1| over the points, in per cent."""
    pairs = zip(durations_ns, points, strict=True)
    return 100 * median(abs(duration_ns / point.duration_ns - 1) for duration_ns, point in pairs)


@cache
def measured(system: System) -> Curve:
    """What is kept of its curve of 1 MiB to 1 GiB; of one of hundreds of sizes it is a sample."""
    points = curve(figures("fabrics")[system.name]["points"])
    return tuple(point for point in points if MIB <= point.num_bytes <= GIB)


# Machines that others measured (``machines.json``, with sources): nccl-tests' all_reduce_perf, out of place;
# times in us by size in MiB, bus bandwidths in GB/s at the largest sizes, where time is bandwidth. Constants
# of ``sim.clusters.nccl_model`` come from all but those ``elsewhere``, which were looked up once the model
# was made; no prediction is tested on them. On the first and the last with NVLink one process drives all GPUs
# and launches on each in turn, which takes longer than small messages do: their bandwidth is taken from 32
# MiB on. Through host memory (NCCL's SHM transport) go GeForce or NCCL_P2P_DISABLE=1; on the RTX PRO 6000
# between the two switches only.
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
        return points({size * MIB: round(us * 1000) for size, us in self.time_us.items()})

    def error(self) -> float:
        """Median of |computed / measured - 1| over the sizes, in per cent."""
        made = (collective_ns(self.fabric, "all_reduce", point.num_bytes) for point in self.curve)
        return median_error(made, self.curve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A machine without NVLink in use: what slots carry by NCCL's count, and what it reached, bytes/s."""

    slot: float
    bus: float


def _timed(row: dict[str, dict[str, float]], fabric: Fabric) -> Timed:
    times = {int(size): us for size, us in row["time_us"].items()}
    return Timed(name=str(row["name"]), fabric=fabric, time_us=times)


NVLINK_MACHINES = [_timed(row, box(*row["fabric"])) for row in _ROWS["nvlink"]]
ELSEWHERE = [_timed(row, fabric_of(preset(row["preset"], row["hosts"]))) for row in _ROWS["elsewhere"]]
THROUGH_HOST, PEER_TO_PEER = (
    [Reached(slot=PCIE_X16[row["pcie_gen"]], bus=row["bus_GB_per_s"] * 1e9) for row in _ROWS[how]]
    for how in ("through_host", "peer_to_peer")
)
