"""NCCL's own cost model: what each algorithm and protocol takes on a fabric, and which of them NCCL chooses.

NCCL chooses by its own figures. How long its choice then takes is said by two things more, which it does not
count: what links give of these figures, as other machines have shown, and what NVLS's pipeline takes to fill.
"""

from dataclasses import dataclass, replace

import numpy as np

from sim.clusters import nccl_tables as tables
from sim.clusters.fabric import Fabric, Hop, through_host
from sim.clusters.nccl_tables import PROTOCOLS, STEP_US, Algorithm, Protocol, Wire
from sim.nouns.checks import Legal
from sim.nouns.cluster import NVLINKS, Generation
from sim.nouns.hardware import CURVES

_GB = 1e9

# What links give of the figures that NCCL's model counts on: medians of machines that the predictions are not
# tested on. tests/clusters/published_fabrics.py has them all, with addresses, and how far they lie apart.

# A ring with Simple over NVLink, of 32, 64, ... MiB: the share of NCCL's bandwidth that is
# left after its latency. Three machines (eight A100 twice, four H100), each within 20 % of these. Smaller
# messages take the first, larger ones the last.
RING_OVER_NVLINK = (0.85, 0.91, 0.89, 0.94, 0.95, 0.97)
RING_FROM = 32 << 20

# What a step over a network whose plugin reports a latency takes beyond NCCL's table: 20 us over EFA by AWS's
# own model (TUNER_NET_LATENCY, include/nccl_ofi_param.h of aws/aws-ofi-nccl, "different from the network
# plugin's param for net latency by design"). The 75 us that are reported were tried for which choose best
# (aws/aws-ofi-nccl#93 and #901), and are no time: 8 bytes through two p6-b200 take 51 us in all
# (dstackai/dstack#3961).
REPORTED_NS = 20_000

# NVLS cuts a channel's part of a message into loops of one chunk for each head. A loop is copied into the
# buffers that the switch reads (scatter), reduced and sent to all (reduce, broadcast), and copied out
# (gather), each by warps of its own (RunWorkColl of NVLS and NVLS_TREE, src/device/all_reduce.h;
# reduce_scatter.h and all_gather.h have two of the three). Loops follow one another at the pace of the
# slowest stage, which is all that NCCL's cost model counts; the first takes the others too. That is much for
# small messages, which have few loops: 16 MiB on eight H100 are four loops, and two more stages make them
# take as long as six.
#
# A stage in a host is taken to be as slow as the switch. How much quicker the copies within a GPU are is not
# known; the range of a computed curve contains it (``computed``). Between hosts a loop goes up and down each
# level of a tree at all that ports carry: that a host in the middle has loops of two trees at once halves
# their pace, not the speed of one (as NCCL's later model counts it: pipelineModel of
# src/tuning/pipeline_model, commit 623aa029).
_KIB = 1 << 10
# On one host and on several: NVLS_NCHANNELS_SM90, _SM100_NVL and _SM100, src/transport/nvls.cc
_CHANNELS: dict[Generation, tuple[int, int]] = {"hopper": (16, 16), "blackwell": (24, 32)}
_MOST_CHUNK = 128 * _KIB  # NCCL_NVLS_CHUNKSIZE
# calcCollChunking, src/enqueue.cc: a message of fewer such loops than the first number has chunks of at most
# the second, in bytes.
_NVLS_CHUNKS = ((64, 64 * _KIB), (8, 32 * _KIB), (2, 16 * _KIB))
_TREE_CHUNKS = ((4, 64 * _KIB), (1, 32 * _KIB))
_MANY_HOSTS = 4  # from so many on a tree's chunks are 64 KiB at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """An algorithm with a protocol; in words "ring Simple"."""

    algorithm: Algorithm
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.algorithm} {self.protocol}"


RING = Method(algorithm="ring", protocol="Simple")


def methods(fabric: Fabric, collective: str) -> tuple[Method, ...]:
    """What NCCL may choose from for ``collective`` on this fabric; none with one rank.

    PAT, which it uses for reduce-scatter and all-gather with one GPU a host, is not modelled.

    Raises:
        InputError: a collective that fills no curve.
    """
    Legal(words=CURVES).take("collective", collective)
    if fabric.world_size == 1:
        return ()
    allowed = [protocol for protocol in PROTOCOLS if protocol in fabric.protocols]
    if "LL128" in allowed and fabric.ranks_per_host > 1 and fabric.intra.kind not in NVLINKS:
        allowed.remove("LL128")
    found = [Method(algorithm="ring", protocol=protocol) for protocol in allowed]
    if collective == "all_reduce":
        found += [Method(algorithm="tree", protocol=protocol) for protocol in allowed]
    found += [Method(algorithm=algorithm, protocol="Simple") for algorithm in _in_network(fabric, collective)]
    return tuple(found)


def _in_network(fabric: Fabric, collective: str) -> list[Algorithm]:
    """Algorithms by which NVSwitches reduce in flight."""
    if not fabric.nvls or fabric.ranks_per_host == 1 or not nvls_speed(fabric):
        return []
    if collective == "all_reduce":
        return ["nvls" if fabric.hosts == 1 else "nvls_tree"]
    is_scattered = (
        collective in ("reduce_scatter", "all_gather") and fabric.ranks_per_host <= tables.MOST_NVLS
    )
    return ["nvls"] if is_scattered and fabric.hosts == 1 else []


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
        # Of other collectives a rank's own part need not travel; 0.9 is NCCL's.
        travels = min((fabric.mean_ranks - 1) / fabric.mean_ranks, 0.9)
        bus = _nvls_bus(fabric) * (5 / 6 if collective == "all_reduce" else travels)
    else:
        inter = _inter(fabric) if fabric.hosts == 2 else _inter(fabric) / 2
        bus = min(_nvls_bus(fabric), inter) * 5 / 6
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
        return min(bus * 0.92, fabric.channels * tables.RING_LL128_MOST[_row(fabric)][_column(fabric)])
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
    bus = min(bus * 0.92, fabric.channels * tables.TREE_MOST[_row(fabric)][_column(fabric)])
    if protocol == "LL":
        bus = min(bus / 3.8, _ll_most(fabric))
    elif protocol == "LL128":
        flags = 7 / 9 if fabric.hosts == 1 else 120 / 128
        bus = min(bus * flags, fabric.channels * tables.TREE_LL128_MOST[_row(fabric)][_column(fabric)])
    # With one GPU in a host all of a tree's traffic goes through it (NCCL_TOPO_PATTERN_TREE).
    return bus * 0.85 if fabric.least_ranks == 1 else bus


def _ll_most(fabric: Fabric) -> float:
    by = _row(fabric) if fabric.hosts == 1 else int(fabric.cpu == "amd")
    return tables.LL_MOST[by][_column(fabric)]


def nvls_speed(fabric: Fabric) -> float:
    """GB/s that NCCL's search finds for each head of NVLS; 0 if no speed of its list fits.

    A GPU's links carry this speed once for each head, and once more for itself if it is a head
    (ncclTopoSearchTryNvls, src/graph/search.cc).
    """
    most = fabric.intra.bytes_per_s / _GB / (nvls_heads(fabric) + 1)
    return next((speed for speed in tables.NVLS_SPEEDS[fabric.generation] if speed <= most), 0.0)


def nvls_heads(fabric: Fabric) -> int:
    """How many GPUs of a host are heads: each has its part of a message reduced for all, and with several
    hosts a NIC that it is nearest to (ncclTopoSearchRecNet, src/graph/search.cc)."""
    nics = fabric.nics if fabric.hosts > 1 and fabric.nics is not None else fabric.least_ranks
    return min(fabric.least_ranks, nics, tables.MOST_NVLS)


def _nvls_bus(fabric: Fabric) -> float:
    return nvls_heads(fabric) * nvls_speed(fabric) * tables.NVLS_LEFT[fabric.generation]


def corrected(num_bytes: int, protocol: Protocol) -> float:
    """The bytes that a tree at its full bandwidth would move in the time that it takes for ``num_bytes``.

    NCCL divides by a factor that jumps at powers of two, so that time would fall there as size grows. Here
    the factor holds at the powers of two, and between them time is linear.
    """
    factors = tables.TREE_CORRECTION[PROTOCOLS.index(protocol)]
    sizes = [tables.CORRECTED_FROM << level for level in range(len(factors) + 1)]
    if num_bytes >= sizes[-1]:
        return float(num_bytes)
    loads = [size / factor for size, factor in zip(sizes, (*factors, 1.0), strict=True)]
    return float(np.interp(num_bytes, [0, *sizes], [0, *loads]))


def _column(fabric: Fabric) -> int:
    """Column of the tables of greatest bandwidths: one host, two, more."""
    return min(fabric.hosts, 3) - 1


def _row(fabric: Fabric) -> int:
    """Row of the tables by GPU; what is below compute capability 8, Turing too, is in the first."""
    return max(0, tables.GENERATIONS.index(fabric.generation) - 1)


def _wire(fabric: Fabric) -> Wire:
    """Which of NCCL's three kinds of wire joins the ranks of a host."""
    return "nvlink" if fabric.intra.kind in NVLINKS else "pci"


def latency_us(
    fabric: Fabric, collective: str, num_bytes: int, algorithm: Algorithm, protocol: Protocol
) -> float:
    """us that a collective takes besides the time of its bytes; large messages take longer steps on rings."""
    number = PROTOCOLS.index(protocol)
    base = tables.BASE_US[algorithm][number]
    intra = STEP_US[_wire(fabric)][algorithm][number] + _beyond_us(fabric.intra)
    net: Algorithm = "tree" if fabric.world_size == fabric.hosts else algorithm  # latencies are exposed
    inter = STEP_US["net"][net][number] + _beyond_us(fabric.inter) * (2 if protocol == "Simple" else 1)
    levels = fabric.hosts.bit_length() - 1
    others = fabric.world_size // fabric.hosts - 1  # NCCL divides integers
    if algorithm == "tree":
        return base + 2 * (others * intra + levels * inter)
    if algorithm != "ring":
        return intra if algorithm == "nvls" else intra + 2 * levels * inter
    steps = ring_steps(collective, fabric.world_size)
    if collective == "broadcast":
        wire: Wire = "net" if fabric.hosts > 1 else _wire(fabric)
        hop = fabric.inter if fabric.hosts > 1 else fabric.intra
        stepping: Algorithm = "tree" if protocol == "Simple" else "ring"
        return base + steps * (STEP_US[wire][stepping][number] + _beyond_us(hop))
    between = steps * (fabric.hosts - 1) // (fabric.world_size - 1)
    if fabric.hosts > 1:  # each step is also posted to the network's thread
        intra = max(intra, tables.NET_OVERHEAD_US[fabric.cpu] * (3 if protocol == "Simple" else 1))
    latency = base + ((steps - between) * intra + between * inter)
    # NCCL runs twice the channels that its search found (src/graph/connect.cc).
    each = num_bytes // (2 * fabric.channels * fabric.world_size)
    waits = protocol == "Simple" and fabric.hosts > 1 and collective == "all_reduce"
    return latency * (tables.PLATEAU[fabric.generation] if waits and each >= tables.PLATEAU_BYTES else 1)


def _beyond_us(hop: Hop | None) -> float:
    return 0.0 if hop is None else ((hop.latency_ns or 0) + (hop.reported_ns or 0)) / 1000


def loop_bytes(fabric: Fabric, num_bytes: int, algorithm: Algorithm) -> int:
    """What all channels take up in one loop of a message of ``num_bytes``."""
    at_once = _CHANNELS[fabric.generation][fabric.hosts > 1] * nvls_heads(fabric)
    is_tree = algorithm == "nvls_tree"
    chunk = 64 * _KIB if is_tree and fabric.hosts >= _MANY_HOSTS else _MOST_CHUNK
    for loops, smaller in _TREE_CHUNKS if is_tree else _NVLS_CHUNKS:
        if num_bytes < loops * at_once * chunk:
            chunk = min(chunk, smaller)
    return at_once * chunk


def as_delivered(fabric: Fabric, method: Method, num_bytes: int) -> Fabric:
    """The fabric with what its links give where NCCL's model has what they could carry.

    A path gives the same wherever a job's other hosts are. What the network carries is left as it is, since
    no machine with a network is among those measured; what is staged in host memory on its way to a NIC is
    no faster than through host memory. Of the latency that a plugin reports a step takes ``REPORTED_NS`` at
    most (``as_stepped``).
    """
    fabric = as_stepped(fabric)
    intra, inter = fabric.intra, fabric.inter
    if intra.kind == "shm":
        intra = replace(intra, bytes_per_s=through_host(intra.bytes_per_s))
    elif intra.kind in NVLINKS and method == RING:
        intra = replace(intra, bytes_per_s=intra.bytes_per_s * ring_over_nvlink(num_bytes))
    if inter is not None and inter.staged_bytes_per_s is not None:
        inter = replace(inter, bytes_per_s=inter.staged_bytes_per_s)
    return replace(fabric, intra=intra, inter=inter)


def as_stepped(fabric: Fabric) -> Fabric:
    """The fabric with what a step takes where a plugin reports more."""
    inter = fabric.inter
    if inter is None or inter.reported_ns is None or inter.reported_ns <= REPORTED_NS:
        return fabric
    return replace(fabric, inter=replace(inter, reported_ns=REPORTED_NS))


def ring_over_nvlink(num_bytes: int) -> float:
    """``RING_OVER_NVLINK`` at ``num_bytes``: time is linear between the sizes of the table."""
    sizes = [RING_FROM << level for level in range(len(RING_OVER_NVLINK))]
    times = [size / share for size, share in zip(sizes, RING_OVER_NVLINK, strict=True)]
    within = min(max(num_bytes, sizes[0]), sizes[-1])
    return within / float(np.interp(within, sizes, times))


def nccl_us(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> float:
    """The time that NCCL itself counts, by which it chooses."""
    algorithm, protocol = method.algorithm, method.protocol
    loaded = corrected(num_bytes, protocol) if algorithm == "tree" else float(num_bytes)
    bandwidth = bytes_per_us(fabric, collective, algorithm, protocol)
    return latency_us(fabric, collective, num_bytes, algorithm, protocol) + loaded / bandwidth


def choose(fabric: Fabric, collective: str, num_bytes: int) -> Method | None:
    """What takes least by NCCL's own model; None with one rank."""
    known = methods(fabric, collective)
    return min(known, key=lambda method: nccl_us(fabric, collective, num_bytes, method), default=None)


def filling_us(fabric: Fabric, collective: str, num_bytes: int, method: Method) -> float:
    """What a message's first loop takes through all stages but the slowest, in us; 0 for what is not NVLS."""
    algorithm, protocol = method.algorithm, method.protocol
    if algorithm not in ("nvls", "nvls_tree"):
        return 0.0
    loop = min(num_bytes, loop_bytes(fabric, num_bytes, algorithm))
    # Groups of warps that a loop passes within hosts; each level of a tree is crossed up and down.
    through = (3 if collective == "all_reduce" else 2) / bytes_per_us(fabric, collective, "nvls", protocol)
    if algorithm == "nvls_tree":
        through += 2 * (fabric.hosts.bit_length() - 1) / (_inter(fabric) * 1000)
    return max(0.0, loop * (through - 1 / bytes_per_us(fabric, collective, algorithm, protocol)))


def time_ns(
    fabric: Fabric, collective: str, num_bytes: int, method: Method, *, is_delivered: bool = True
) -> int:
    """Time of one collective of ``num_bytes`` (the whole tensor) by one of ``methods``, in ns, half to even.

    NCCL's own time at what links give (``as_delivered``), and what its pipeline takes to fill. Not
    ``is_delivered``: at what NCCL counts that links carry, the shape between measured points and beyond them.
    """
    fabric = as_delivered(fabric, method, num_bytes) if is_delivered else as_stepped(fabric)
    took_us = nccl_us(fabric, collective, num_bytes, method)
    return round((took_us + filling_us(fabric, collective, num_bytes, method)) * 1000)


def collective_ns(fabric: Fabric, collective: str, num_bytes: int, *, is_delivered: bool = True) -> int:
    """``time_ns`` by the method that NCCL chooses; 0 with one rank."""
    method = choose(fabric, collective, num_bytes)
    return 0 if method is None else time_ns(fabric, collective, num_bytes, method, is_delivered=is_delivered)
