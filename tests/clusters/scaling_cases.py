"""What tests of the scaling view share: machines whose curves are given, and small workloads."""

from collections.abc import Mapping

from sim.clusters.machines import preset
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from tests.handmade import handmade, wired

MS = 1_000_000
MIB = 1 << 20


def workload_of(ready_ms: list[float], sizes_mib: list[float], forward_ms: float = 10) -> Workload:
    """Gradients that become ready from the last to the first; backward ends with the last of them."""
    ready, sizes = [round(ms * MS) for ms in ready_ms], [round(mib * MIB) for mib in sizes_mib]
    return handmade(ready[::-1], sizes[::-1], forward_ns=round(forward_ms * MS), backward_ns=ready[-1])


def hosts_of(count: int) -> Cluster:
    """``count`` hosts of one GPU each."""
    return preset("pcie_hosts", hosts=count, gpus=1, gbit_per_s=10)


def measured(points_ms: Mapping[float, float], ranks: int = 2) -> Hardware:
    """Hardware by MiB and ms of its all-reduces."""
    times = {round(size * MIB): round(time * MS) for size, time in points_ms.items()}
    return wired(times, name=f"{ranks} ranks", world_size=ranks)


def affine(bucket_ms: float, mib_ms: float, ranks: int = 2) -> Hardware:
    """All-reduces that take so much each, and so much a MiB."""
    return measured({0: bucket_ms, 1024: bucket_ms + 1024 * mib_ms}, ranks)
