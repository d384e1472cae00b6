"""What links give of the figures that NCCL's model counts on, as other machines have shown.

NCCL chooses by its own figures and does not know these; they say how long its choice then takes. Each is the
median of machines that the predictions are not tested on: tests/clusters/measured_paths.py has them all, with
their addresses, and how far they lie apart.
"""

from dataclasses import replace

from sim.clusters.nccl.constants import Algorithm
from sim.clusters.nccl.fabric import NVLINKS, Fabric, Protocol

_MIB = 1 << 20

# A ring with Simple over NVLink, of 32, 64, ... MiB: the share of NCCL's bandwidth that is
# left after its latency. Three machines (eight A100 twice, four H100), each within 20 % of these. Smaller
# messages take the first, larger ones the last.
RING_OVER_NVLINK = (0.85, 0.91, 0.89, 0.94, 0.95, 0.97)
RING_FROM = 32 * _MIB

# What a step over a network whose plugin reports a latency takes beyond NCCL's table: 20 us over EFA by AWS's
# own model (TUNER_NET_LATENCY, include/nccl_ofi_param.h of aws/aws-ofi-nccl, "different from the network
# plugin's param for net latency by design"). The 75 us that are reported were tried for which choose best
# (aws/aws-ofi-nccl#93 and #901), and are no time: 8 bytes through two p6-b200 take 51 us in all
# (dstackai/dstack#3961).
REPORTED_NS = 20_000

# Through host memory: what a GPU sends and receives at once, in bytes/s, on hosts of PCIe 3
# and 4. So goes what has no peer-to-peer, and without GPUDirect RDMA all that goes to a NIC: in both cases
# kernels store to host memory and load from it (src/transport/shm.cc; NCCL_NET_MAP_HOSTMEM, net.cc). Seven
# figures of six machines lie between 1.4 and 14.9 GB/s: the processor decides, and no data sheet
# says it. On PCIe 5 two machines have 28 to 35 of the 48 GB/s that NCCL counts, too few for a number.
THROUGH_HOST_BYTES_PER_S = 4e9
PCIE_5_FROM_BYTES_PER_S = 36e9  # between 24 and 48, which NCCL counts for x16 of PCIe 4 and 5


def as_reached(fabric: Fabric, algorithm: Algorithm, protocol: Protocol, num_bytes: int) -> Fabric:
    """The fabric with what its links reach where NCCL's model has what they could carry.

    A path gives the same wherever a job's other hosts are. What the network carries is left as it is, since
    no machine with a network is among those measured; what is staged in host memory on its way to a NIC is
    no faster than through host memory. Of the latency that a plugin reports a step takes ``REPORTED_NS`` at
    most.
    """
    intra = fabric.intra
    if intra.kind == "shm":
        intra = replace(intra, bytes_per_s=through_host(intra.bytes_per_s))
    elif intra.kind in NVLINKS and algorithm == "ring" and protocol == "Simple":
        intra = replace(intra, bytes_per_s=intra.bytes_per_s * ring_over_nvlink(num_bytes))
    stepped = as_staged(as_stepped(fabric))
    return stepped if intra is fabric.intra else replace(stepped, intra=intra)


def as_staged(fabric: Fabric) -> Fabric:
    """The fabric with what a host's GPUs get to its NICs where that goes through host memory."""
    inter = fabric.inter
    if inter is None or not inter.staged_by:
        return fabric
    through = sum(through_host(slot) for slot in inter.staged_by)
    return replace(fabric, inter=replace(inter, bytes_per_s=min(inter.bytes_per_s, through)))


def as_stepped(fabric: Fabric) -> Fabric:
    """The fabric with what a step takes where a plugin reports more."""
    inter = fabric.inter
    if inter is None or inter.reported_ns is None or inter.reported_ns <= REPORTED_NS:
        return fabric
    return replace(fabric, inter=replace(inter, reported_ns=REPORTED_NS))


def through_host(bytes_per_s: float) -> float:
    """What a GPU sends and receives at once through host memory, where slots carry ``bytes_per_s``."""
    if bytes_per_s >= PCIE_5_FROM_BYTES_PER_S:
        return bytes_per_s
    return min(bytes_per_s, THROUGH_HOST_BYTES_PER_S)


def ring_over_nvlink(num_bytes: int) -> float:
    """``RING_OVER_NVLINK`` at ``num_bytes``: time is linear between the sizes of the table."""
    if num_bytes <= RING_FROM:
        return RING_OVER_NVLINK[0]
    level = (num_bytes // RING_FROM).bit_length() - 1
    if level >= len(RING_OVER_NVLINK) - 1:
        return RING_OVER_NVLINK[-1]
    low = RING_FROM << level
    first, second = low / RING_OVER_NVLINK[level], 2 * low / RING_OVER_NVLINK[level + 1]
    return num_bytes / (first + (second - first) * (num_bytes - low) / low)
