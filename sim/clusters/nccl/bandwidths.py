"""Bandwidth of each algorithm and protocol over a fabric, by the rules of NCCL's cost model."""

from sim.clusters.nccl.constants import (
    CORRECTED_FROM,
    LL_MOST,
    MOST_NVLS,
    NVLS_LEFT,
    NVLS_SPEEDS,
    PROTOCOLS,
    RING_LL128_MOST,
    TREE_CORRECTION,
    TREE_LL128_MOST,
    TREE_MOST,
    Algorithm,
    column,
    row,
)
from sim.clusters.nccl.fabric import Fabric, Protocol

_GB = 1e9


def ring_steps(collective: str, ranks: int) -> int:
    """How many steps NCCL counts for a ring, of which each moves ``1 / ranks`` of the bytes."""
    if collective == "all_reduce":
        return 2 * (ranks - 1)
    return ranks - 1 if collective in ("reduce_scatter", "all_gather") else ranks


def bytes_per_us(fabric: Fabric, collective: str, algorithm: Algorithm, protocol: Protocol) -> float:
    """Bytes of the whole tensor that go through in one us, once all is under way (NCCL's ``bandwidths``)."""
    ranks = fabric.world_size
    if algorithm == "ring":
        bus = _ring_bus(fabric, protocol) * ranks / ring_steps(collective, ranks)
    elif algorithm == "tree":
        bus = _tree_bus(fabric, protocol) / 2
    elif algorithm == "nvls":
        heads = _nvls_bus(fabric)
        if collective == "all_reduce":
            bus = (heads if fabric.hosts == 1 else min(heads, _inter(fabric))) * 5 / 6
        else:  # a rank's own part need not travel; 0.9 is NCCL's
            bus = heads * min((fabric.mean_ranks - 1) / fabric.mean_ranks, 0.9)
    elif algorithm == "nvls_tree":
        inter = _inter(fabric) if fabric.hosts == 2 else _inter(fabric) / 2
        bus = min(_nvls_bus(fabric), inter) * 5 / 6
    else:
        bus = _collnet_bus(fabric, algorithm) / 2
    return bus * 1000


def _inter(fabric: Fabric) -> float:
    assert fabric.inter is not None  # a Fabric of several hosts has it
    return fabric.inter.bytes_per_s / _GB


def _ring_bus(fabric: Fabric, protocol: Protocol) -> float:
    bus = fabric.intra.bytes_per_s / _GB if fabric.ranks_per_host > 1 else _inter(fabric)
    if fabric.hosts > 1:
        bus = min(bus, _inter(fabric))
    if protocol == "LL":  # half of what travels are flags
        return min(_ll_most(fabric), bus * 0.5)
    if protocol == "LL128":  # 8 of 128 bytes are flags
        return min(bus * 0.92, fabric.channels * RING_LL128_MOST[row(fabric)][column(fabric)])
    return bus


def _tree_bus(fabric: Fabric, protocol: Protocol) -> float:
    """GB/s at which a double binary tree moves bytes; an all-reduce moves each up and down, so gets half.

    Between two hosts each of the two trees has one edge and half of the bytes, so that a NIC sends about half
    of what a ring makes it send; NCCL's search lets a tree's bandwidth within the host rise to twice that
    between hosts.
    """
    bus = fabric.intra.bytes_per_s / _GB
    if fabric.hosts > 1:
        inter = _inter(fabric) * (2 if fabric.hosts == 2 else 1)
        bus = min(bus, inter) if fabric.ranks_per_host > 1 else inter
    bus = min(bus * 0.92, fabric.channels * TREE_MOST[row(fabric)][column(fabric)])
    if protocol == "LL":
        bus = min(bus / 3.8, _ll_most(fabric))
    elif protocol == "LL128":
        flags = 7 / 9 if fabric.hosts == 1 else 120 / 128
        bus = min(bus * flags, fabric.channels * TREE_LL128_MOST[row(fabric)][column(fabric)])
    # With one GPU in a host all of a tree's traffic goes through it (NCCL_TOPO_PATTERN_TREE).
    return bus * 0.85 if fabric.least_ranks == 1 else bus


def _ll_most(fabric: Fabric) -> float:
    by = row(fabric) if fabric.hosts == 1 else int(fabric.cpu == "amd")
    return LL_MOST[by][column(fabric)]


def nvls_speed(fabric: Fabric) -> float:
    """GB/s that NCCL's search finds for each head of NVLS; 0 if no speed of its list fits.

    There are as many heads as the smallest host has GPUs, 32 at most. A GPU's links carry this speed once for
    each head, and once more for itself if it is a head (ncclTopoSearchTryNvls, src/graph/search.cc).
    """
    most = fabric.intra.bytes_per_s / _GB / (nvls_heads(fabric) + 1)
    return next((speed for speed in NVLS_SPEEDS[fabric.generation] if speed <= most), 0.0)


def nvls_heads(fabric: Fabric) -> int:
    """How many GPUs of a host are heads: each has its part of a message reduced for all."""
    return min(fabric.least_ranks, MOST_NVLS)


def _nvls_bus(fabric: Fabric) -> float:
    return nvls_heads(fabric) * nvls_speed(fabric) * NVLS_LEFT[fabric.generation]


def _collnet_bus(fabric: Fabric, algorithm: Algorithm) -> float:
    """The network's switches reduce: a NIC sends each byte once and gets it back once."""
    bus = min(fabric.intra.bytes_per_s / _GB, 2 * _inter(fabric))
    if algorithm == "collnet_chain":
        return bus
    gpus_per_nic = fabric.mean_ranks / fabric.channels
    bus /= gpus_per_nic - (gpus_per_nic - 1) / 2
    return bus * 0.85 if fabric.generation in ("hopper", "blackwell") else bus


def corrected(num_bytes: int, protocol: Protocol) -> float:
    """The bytes that a tree at its full bandwidth would move in the time that it takes for ``num_bytes``.

    NCCL divides by a factor that jumps at powers of two, so that time would fall there as size grows. Here
    the factor holds at the powers of two, and between them time is linear.
    """
    factors = TREE_CORRECTION[PROTOCOLS.index(protocol)]
    if num_bytes < CORRECTED_FROM:
        return num_bytes / factors[0]
    level = (num_bytes // CORRECTED_FROM).bit_length() - 1
    if level >= len(factors):
        return float(num_bytes)
    low = CORRECTED_FROM << level
    after = factors[level + 1] if level + 1 < len(factors) else 1.0
    return low / factors[level] + (2 * low / after - low / factors[level]) * (num_bytes - low) / low
