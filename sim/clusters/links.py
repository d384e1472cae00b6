"""Hardware on other links: what a ring sends over a wire, and how long that takes where the wire gets less.

A collective takes the time of its ring's bytes on the wire, which changes, and a latency, all time beyond
that, which stays.
"""

from dataclasses import replace

from sim.clusters.fabric import job_of
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.collective import CollectiveKind, bus_factor
from sim.nouns.hardware import Hardware
from sim.units import NS_PER_S


def stretched_ns(service_ns: int, wire: float, measured_bytes_per_s: float, bytes_per_s: float) -> int:
    """Service time in ns of a collective whose wire gets ``bytes_per_s`` in place of what it was measured at.

    It is ``service_ns + wire x (1 / bytes_per_s - 1 / measured_bytes_per_s)`` for ``wire`` bytes. The
    measured time on the wire counts as no more than ``service_ns``, so that the result is never below 0.
    """
    if wire == 0 or bytes_per_s == measured_bytes_per_s:
        return service_ns
    part_ns = min(float(service_ns), wire * NS_PER_S / measured_bytes_per_s)
    return service_ns + round(part_ns * (measured_bytes_per_s / bytes_per_s - 1))


def hardware_on(hardware: Hardware, cluster: Cluster, other: Cluster) -> Hardware:
    """``hardware``, of the ranks on ``cluster``, as it is for as many on another cluster, by their placement.

    Each point of its curves, and what is known of its scatter, takes as long as ``stretched_ns`` says at the
    bandwidth of the job's rings there. An example is a cluster of four equal hosts of which one gets a slower
    port. It is too long where a path within hosts, and no link between them, is the slowest step.

    Raises:
        InputError: ranks that no way joins, or not as many as ``hardware`` has.
    """
    here, there = job_of(cluster), job_of(other)
    for job in (here, there):
        if job.world_size != hardware.world_size:
            raise InputError(
                f"placement: {job.world_size} GPUs are not legal; hardware {hardware.name!r} has "
                f"world_size={hardware.world_size}, so give {hardware.world_size}"
            )

    def stretched(kind: CollectiveKind, num_bytes: int, ns: int) -> int:
        wire = num_bytes * bus_factor(kind, hardware.world_size)
        return stretched_ns(ns, wire, here.bytes_per_s, there.bytes_per_s)

    said = {"cluster": other.name, "measured_bytes_per_s": here.bytes_per_s, "bytes_per_s": there.bytes_per_s}
    provenance = {**hardware.provenance, "carried": said}
    name = f"{hardware.name}, on {other.name}"
    return replace(hardware.retimed(stretched), name=name, provenance=provenance)
