"""All-reduces that NCCL does not run and other libraries do, for comparison: on a graph or a fabric.

A step has the latency of NCCL's ring with Simple (``latencies``), so that the algorithms differ in their
schedule alone.
"""

from collections.abc import Sequence

from sim.clusters.nccl.constants import PROTOCOLS, STEP_US, wire
from sim.clusters.nccl.fabric import Fabric
from sim.clusters.nccl.paths import REPORTED_NS
from sim.clusters.topology.textbook_traffic import Phase
from sim.clusters.topology.traffic import busiest_s_per_byte
from sim.errors import NotModelledError
from sim.nouns.checks import at_least
from sim.units import NS_PER_S

_SIMPLE = PROTOCOLS.index("Simple")


def step_us(fabric: Fabric, between_hosts: bool) -> float:
    """What one step takes before its first byte arrives."""
    hop = fabric.inter if between_hosts else fabric.intra
    beyond_ns = 0 if hop is None else (hop.latency_ns or 0) + min(hop.reported_ns or 0, REPORTED_NS)
    return STEP_US["net" if between_hosts else wire(fabric)]["ring"][_SIMPLE] + beyond_ns / 1000


def phases_ns(fabric: Fabric, phases: Sequence[Phase], num_bytes: int) -> int:
    """Phases one after the other, each as long as its steps take to start and its busiest link is busy."""
    at_least("num_bytes", num_bytes, 0)
    latency_us = sum(phase.steps * step_us(fabric, phase.across) for phase in phases)
    busy_s = sum(busiest_s_per_byte(phase.traffic) for phase in phases) * num_bytes
    return round(latency_us * 1000 + busy_s * NS_PER_S)


def halving_doubling_ns(fabric: Fabric, num_bytes: int) -> int:
    """Recursive halving, then doubling (Thakur, Rabenseifner, Gropp 2005, doi:10.1177/1094342005051521).

    Partners are near first, so that half of all bytes stay within hosts; beyond a host all its ranks send at
    once and share its NICs. Ranks beyond a power of two give their part to a neighbour first and get the
    result last, two whole messages more.
    """
    at_least("num_bytes", num_bytes, 0)
    check_even(fabric, "halving_doubling")
    core = 1 << (fabric.world_size.bit_length() - 1)
    total = 0.0
    if core != fabric.world_size:
        across = fabric.ranks_per_host == 1
        total += 2 * (step_us(fabric, across) + num_bytes / _bytes_per_us(fabric, across))
    distance, part = 1, num_bytes / 2
    while distance < core:
        across = distance >= fabric.ranks_per_host
        total += 2 * (step_us(fabric, across) + part / _bytes_per_us(fabric, across))
        distance, part = distance * 2, part / 2
    return round(total * 1000)


def hierarchical_ns(fabric: Fabric, num_bytes: int) -> int:
    """Reduce-scatter in each host, all-reduces of the parts between hosts, all-gather in each host.

    All by rings; a host's rings to the others share its NICs (Cho et al. 2019, BlueConnect,
    proceedings.mlsys.org/paper_files/paper/2019).
    """
    at_least("num_bytes", num_bytes, 0)
    check_even(fabric, "hierarchical")
    local, hosts = fabric.ranks_per_host, fabric.hosts
    total = 0.0
    if local > 1:
        total += 2 * (local - 1) * (step_us(fabric, False) + num_bytes / local / _rate(fabric, False))
    if hosts > 1:  # 1/local of the bytes at 1/local of the NICs
        total += 2 * (hosts - 1) * (step_us(fabric, True) + num_bytes / hosts / _rate(fabric, True))
    return round(total * 1000)


def check_even(fabric: Fabric, algorithm: str) -> None:
    """Raise ``NotModelledError`` where hosts have different numbers of ranks, as no textbook has them."""
    if fabric.least_ranks != fabric.ranks_per_host:
        raise NotModelledError(
            f"algorithm: {algorithm} is not modelled on hosts with {fabric.least_ranks} to "
            f"{fabric.ranks_per_host} ranks; put as many on each, or use ring or tree"
        )


def _bytes_per_us(fabric: Fabric, across: bool) -> float:
    """What one rank of a host gets while all of them send."""
    return _rate(fabric, across) / (fabric.ranks_per_host if across else 1)


def _rate(fabric: Fabric, across: bool) -> float:
    hop = fabric.inter if across else fabric.intra
    assert hop is not None  # a Fabric of several hosts has it
    return hop.bytes_per_s / 1e6
