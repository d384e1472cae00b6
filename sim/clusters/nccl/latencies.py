"""Latency of each algorithm and protocol over a fabric: steps by kind of hop, as NCCL counts them."""

from sim.clusters.nccl.bandwidths import ring_steps
from sim.clusters.nccl.constants import (
    BASE_US,
    NET_OVERHEAD_US,
    PLATEAU,
    PLATEAU_BYTES,
    PROTOCOLS,
    STEP_US,
    Algorithm,
    Wire,
    wire,
)
from sim.clusters.nccl.fabric import Fabric, Hop, Protocol

_ARITY_US = 0.4  # one more GPU that sends to the same head


def latency_us(
    fabric: Fabric, collective: str, num_bytes: int, algorithm: Algorithm, protocol: Protocol
) -> float:
    """us that a collective takes besides the time of its bytes; large messages take longer steps on rings."""
    number = PROTOCOLS.index(protocol)
    base = BASE_US[algorithm][number]
    intra = STEP_US[wire(fabric)][algorithm][number] + _beyond_us(fabric.intra)
    net: Algorithm = "tree" if fabric.world_size == fabric.hosts else algorithm  # latencies are exposed
    inter = STEP_US["net"][net][number] + _beyond_us(fabric.inter) * (2 if protocol == "Simple" else 1)
    levels = fabric.hosts.bit_length() - 1
    others = fabric.world_size // fabric.hosts - 1  # NCCL divides integers
    if algorithm == "ring":
        return base + _ring_us(fabric, collective, num_bytes, protocol, base, intra, inter)
    if algorithm == "tree":
        return base + 2 * (others * intra + levels * inter)
    if algorithm == "nvls":
        return intra + (inter if fabric.hosts > 1 else 0.0)
    if algorithm == "nvls_tree":
        return intra + 2 * levels * inter
    if algorithm == "collnet_direct":
        return base + 2 * (min(1, others) * intra + others * _ARITY_US) + inter
    return base + 2 * others * intra + inter


def _ring_us(
    fabric: Fabric,
    collective: str,
    num_bytes: int,
    protocol: Protocol,
    base: float,
    intra: float,
    inter: float,
) -> float:
    steps = ring_steps(collective, fabric.world_size)
    if collective in ("reduce", "broadcast"):
        kind: Wire = "net" if fabric.hosts > 1 else wire(fabric)
        hop = fabric.inter if fabric.hosts > 1 else fabric.intra
        algorithm: Algorithm = "tree" if protocol == "Simple" else "ring"
        step = STEP_US[kind][algorithm][PROTOCOLS.index(protocol)]
        return steps * (step + _beyond_us(hop))
    between = steps * (fabric.hosts - 1) // (fabric.world_size - 1)
    if fabric.hosts > 1:  # each step is also posted to the network's thread
        intra = max(intra, NET_OVERHEAD_US[fabric.cpu] * (3 if protocol == "Simple" else 1))
    latency = (steps - between) * intra + between * inter
    if protocol != "Simple" or fabric.hosts == 1 or collective != "all_reduce":
        return latency
    # NCCL runs twice the channels that its search found (src/graph/connect.cc).
    each = num_bytes // (2 * fabric.channels * fabric.world_size)
    return (base + latency) * PLATEAU[fabric.generation] - base if each >= PLATEAU_BYTES else latency


def _beyond_us(hop: Hop | None) -> float:
    return 0.0 if hop is None else ((hop.latency_ns or 0) + (hop.reported_ns or 0)) / 1000
