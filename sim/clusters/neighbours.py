"""A job's hardware beside the rings of other jobs, or on other links: its time on the wire is stretched.

A collective takes the time of its ring's bytes on the wire, plus a latency. The wire has the bandwidths of
the cluster's links; all measured time beyond that counts as latency, and stays as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sim.clusters.links import job_bandwidths
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import CURVES, Hardware
from sim.units import NS_PER_S


def wire_bytes(collective: str, num_bytes: int, world_size: int) -> float:
    """Bytes that a ring sends over each of its wires for a message of ``num_bytes``.

    2 (n - 1) / n of them in an all-reduce, half of that in a reduce-scatter or an all-gather, all of them in
    a broadcast (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002; the bus-bandwidth
    factors of nccl-tests' PERFORMANCE.md). One rank sends nothing.
    """
    if world_size == 1:
        return 0.0
    if collective == "broadcast":
        return float(num_bytes)
    return num_bytes * (2 if collective == "all_reduce" else 1) * (world_size - 1) / world_size


def stretched_ns(
    service_ns: int,
    collective: str,
    num_bytes: int,
    world_size: int,
    measured_bytes_per_s: float,
    bytes_per_s: float,
) -> int:
    """Service time in ns of a collective whose wire gets ``bytes_per_s`` in place of what it was measured at.

    It is ``service_ns + wire_bytes x (1 / bytes_per_s - 1 / measured_bytes_per_s)``. The measured time on the
    wire counts as no more than ``service_ns``, so that the result is never below 0.
    """
    wire = wire_bytes(collective, num_bytes, world_size)
    if wire == 0 or bytes_per_s == measured_bytes_per_s:
        return service_ns
    part_ns = min(float(service_ns), wire * NS_PER_S / measured_bytes_per_s)
    return service_ns + round(part_ns * (measured_bytes_per_s / bytes_per_s - 1))


def hardware_beside(
    hardware: Hardware, cluster: Cluster, ranks: Sequence[str], beside: Sequence[Sequence[str]]
) -> Hardware:
    """``hardware``, of a job alone, as it is while the rings of other jobs run without a pause.

    Each point of its curves, and what is known of its scatter, takes as long as ``stretched_ns`` says at the
    job's fair share of the links. That is too short for short messages that pass a shared port: they queue
    there behind what the others have sent, for a few ms at 1 Gbit/s, and this queue is not counted. It is too
    long where a path within hosts, and no shared link, is the slowest step.

    Args:
        hardware: the job's, measured or computed with nothing else on the links.
        cluster: where all of them run.
        ranks: the GPU of each rank, such as ``host0.gpu0``.
        beside: those of each other job.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or that no way joins; or not as many as
            ``hardware`` has.
    """
    _check_world_size(hardware, ranks, "ranks")
    jobs = [ranks, *beside]
    alone, shared = job_bandwidths(cluster, [ranks])[0], job_bandwidths(cluster, jobs)[0]
    said = {"beside": [list(others) for others in beside], "cluster": cluster.name}
    others = f"{len(beside)} other job{'s' if len(beside) != 1 else ''}"
    return _carried(hardware, alone, shared, f"{hardware.name}, beside {others}", said)


def hardware_on(
    hardware: Hardware, cluster: Cluster, ranks: Sequence[str], other: Cluster, other_ranks: Sequence[str]
) -> Hardware:
    """``hardware``, of ``ranks`` on ``cluster``, as it is for as many ranks on another cluster.

    As in ``hardware_beside`` the time on the wire changes with the bandwidth of the job's rings, and
    latencies stay. An example is a cluster of four equal hosts of which one gets a slower port.

    Raises:
        InputError: as ``hardware_beside``.
    """
    _check_world_size(hardware, ranks, "ranks")
    _check_world_size(hardware, other_ranks, "other_ranks")
    (here,), (there,) = job_bandwidths(cluster, [ranks]), job_bandwidths(other, [other_ranks])
    return _carried(hardware, here, there, f"{hardware.name}, on {other.name}", {"cluster": other.name})


def _check_world_size(hardware: Hardware, ranks: Sequence[str], field: str) -> None:
    """Raise ``InputError`` unless ``hardware`` has as many ranks as ``ranks``."""
    if len(ranks) != hardware.world_size:
        raise InputError(
            f"{field}: {len(ranks)} GPUs are not legal; hardware {hardware.name!r} has "
            f"world_size={hardware.world_size}, so give {hardware.world_size}"
        )


def _carried(
    hardware: Hardware, measured: float, bytes_per_s: float, name: str, said: dict[str, Any]
) -> Hardware:
    """``hardware`` with each time of its curves, and of their scatter, as ``stretched_ns`` has it."""
    curves: dict[str, Any] = {}
    spread = dict(hardware.spread)
    for collective in CURVES:
        curve = hardware.curve(collective)
        known = spread.get(collective)
        scatter = dict(known) if isinstance(known, dict) else {}
        points = []
        for point in curve or ():
            stretched = partial(
                stretched_ns,
                collective=collective,
                num_bytes=point.num_bytes,
                world_size=hardware.world_size,
                measured_bytes_per_s=measured,
                bytes_per_s=bytes_per_s,
            )
            points.append(replace(point, duration_ns=stretched(point.duration_ns)))
            size = str(point.num_bytes)
            if isinstance(scatter.get(size), dict):
                scatter[size] = {key: _stretched(key, of, stretched) for key, of in scatter[size].items()}
        if curve is not None:
            curves[collective] = tuple(points)
        if scatter:
            spread[collective] = scatter
    said = {**said, "measured_bytes_per_s": measured, "bytes_per_s": bytes_per_s}
    provenance = {**hardware.provenance, "carried": said}
    return replace(hardware, name=name, **curves, spread=spread, provenance=provenance)


def _stretched(key: str, value: Any, stretched: Callable[[int], int]) -> Any:
    """One thing that ``spread`` says of a point: its times are stretched, the rest stays."""
    is_time = key.endswith("_ns") and isinstance(value, int) and not isinstance(value, bool)
    return stretched(value) if is_time else value
