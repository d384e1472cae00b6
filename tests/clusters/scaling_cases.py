"""What the planner's tests share: machines whose curves are given, and small workloads."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import sim
from sim.clusters.machines import preset
from sim.clusters.nccl.fabric import fabric_of
from sim.clusters.scaling.cap_steps import tune_caps
from sim.clusters.scaling.carried import Carried
from sim.clusters.scaling.reasons import Reason, Side, find_reason, side_of
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


def side(workload: Workload, hardware: Hardware) -> Side:
    """A measured machine; its fabric only says how many ranks there are."""
    fabric = fabric_of(hosts_of(hardware.world_size))
    carried = Carried(fabric=fabric, hardware=hardware, source="measured")
    return side_of(tune_caps(workload, hardware), carried)


def reason_of(workload: Workload, before: Hardware, after: Hardware) -> Reason | None:
    """Between two measured machines."""
    return find_reason(workload, side(workload, before), side(workload, after))


def step_ns(workload: Workload, hardware: Hardware, cap_mb: float) -> int:
    """The step under a cap."""
    assignment = sim.assign(workload, bucket_cap_mb=cap_mb)
    return sim.summarize(sim.simulate(workload, hardware, assignment, engine="analytic")).step_ns


def bucket_bytes(workload: Workload, cap_mb: float) -> tuple[int, ...]:
    """Of the buckets under a cap."""
    return sim.assign(workload, bucket_cap_mb=cap_mb).bucket_bytes or ()


def lose(lost_ns: int) -> str:
    """By how much a step is longer, in the words of a sentence."""
    ms = f"{abs(lost_ns) / MS:.2f} ms"
    if ms == "0.00 ms":
        return "lose nothing"
    return f"lose {ms}" if lost_ns > 0 else f"save {ms}"


def parts(cluster: Cluster) -> dict[str, Any]:
    """Its fields, of which one may be changed."""
    return {field.name: getattr(cluster, field.name) for field in fields(cluster)}
