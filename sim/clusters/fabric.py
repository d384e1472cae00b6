"""A machine as NCCL's cost model sees it: two kinds of hop, and how many ranks and channels there are.

It comes from a cluster: what a job gets of its hosts and of the network, and what other jobs leave it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sim.clusters.links import Job, Wires, job_of, shares
from sim.clusters.nccl_tables import GENERATIONS, NVLS_SPEEDS, Protocol
from sim.errors import InputError
from sim.nouns.cluster import NVLINKS, Cluster, CpuVendor, Generation, HostKind, Step

Kind = Literal["nvlink", "nvswitch", "pcie", "shm", "qpi", "net"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One kind of step between neighbours in a ring.

    ``bytes_per_s`` is the bus bandwidth that a ring over all channels gets through it, as NCCL's search would
    count it (src/graph/topo.h): within a host what one GPU sends and at the same time receives, between hosts
    what all the NICs of a host send together. ``latency_ns`` is what one step takes beyond NCCL's table, to
    which the links and switches of its kind already belong; null adds nothing. ``reported_ns`` is the latency
    of a step that a network plugin tells NCCL (``ncclNetProperties_t.latency``), set so that NCCL chooses
    well (NVIDIA/nccl#625): it counts for the choice, and ``nccl_model.as_delivered`` says how long a step
    takes. ``staged_bytes_per_s``: what is left of it where hosts have no GPUDirect RDMA, so that GPUs reach
    their NICs through host memory; null: all.
    """

    kind: Kind
    bytes_per_s: float
    latency_ns: int | None = None
    reported_ns: int | None = None
    staged_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Ranks on hosts, with hops within (``intra``) and between them (``inter``).

    A host has ``fewest_ranks`` to ``ranks_per_host`` of them (None: each has ``ranks_per_host``). ``intra``
    counts only where a host has two ranks or more, ``inter`` only with two hosts or more. ``channels`` are
    those that NCCL's search finds (it doubles them afterwards). ``nvls`` says whether NVSwitches reduce in
    flight. ``protocols`` are those that may be used: LL128 needs writes of 128
    bytes that stay whole, which PCIe and some networks do not give.
    """

    world_size: int
    hosts: int
    ranks_per_host: int
    generation: Generation
    intra: Hop
    inter: Hop | None
    channels: int
    nvls: bool = False
    cpu: CpuVendor = "intel"
    protocols: tuple[Protocol, ...] = ("LL", "LL128", "Simple")
    fewest_ranks: int | None = None

    @property
    def least_ranks(self) -> int:
        """Ranks of the host with the fewest."""
        return self.ranks_per_host if self.fewest_ranks is None else self.fewest_ranks

    @property
    def mean_ranks(self) -> float:
        """Ranks of a host on average: NCCL's ``ppn``."""
        return self.world_size / self.hosts


# Speeds that NCCL's search tries for a channel within a host, in GB/s (src/graph/search.cc, speedArrayIntra,
# sm90SpeedArrayIntra and sm100SpeedArrayIntra, since it knows Blackwell), and the most channels it finds.
_SPEEDS: dict[Generation, tuple[float, ...]] = {
    **dict.fromkeys(("volta", "turing", "ampere"), (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),
    **NVLS_SPEEDS,
}
_MOST_FOUND = 32  # MAXCHANNELS / 2
_LEAST_NVLS = 3  # GPUs of a host (ncclNvlsInit, src/transport/nvls.cc)
_WORST_FIRST: tuple[Kind, ...] = ("shm", "qpi", "pcie", "nvswitch", "nvlink")

# Through host memory: what a GPU sends and receives at once, in bytes/s, on hosts of PCIe 3
# and 4. So goes what has no peer-to-peer, and without GPUDirect RDMA all that goes to a NIC: in both cases
# kernels store to host memory and load from it (src/transport/shm.cc; NCCL_NET_MAP_HOSTMEM, net.cc). Seven
# figures of six machines lie between 1.4 and 14.9 GB/s: the processor decides, and no data sheet
# says it. On PCIe 5 two machines have 28 to 35 of the 48 GB/s that NCCL counts, too few for a number.
THROUGH_HOST_BYTES_PER_S = 4e9
PCIE_5_FROM_BYTES_PER_S = 36e9  # between 24 and 48, which NCCL counts for x16 of PCIe 4 and 5


def through_host(bytes_per_s: float) -> float:
    """What a GPU sends and receives at once through host memory, where slots carry ``bytes_per_s``."""
    return (
        bytes_per_s if bytes_per_s >= PCIE_5_FROM_BYTES_PER_S else min(bytes_per_s, THROUGH_HOST_BYTES_PER_S)
    )


def fabric_of(
    cluster: Cluster, ranks: Sequence[str] | None = None, *, beside: Sequence[Sequence[str]] = ()
) -> Fabric:
    """The fabric of a job with its ranks on ``ranks`` (None: the cluster's placement).

    Where hosts differ, NCCL takes one figure for all, and so does this: the fewest channels, the least
    bandwidths, the worst kind of step, the oldest GPU (src/init.cc, the loop over allGather3Data).

    Args:
        cluster: the machine.
        ranks: full names of GPUs, such as ``host0.gpu3``.
        beside: the ranks of other jobs, which run at the same time and take their fair share of the network.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or on hosts that nothing joins.
    """
    wires = Wires(cluster)
    job = job_of(cluster, wires, ranks)
    shared = shares(wires, [job, *(job_of(cluster, wires, each) for each in beside)])[0]
    if job.rings and shared < 1:
        raise InputError(
            f"bytes_per_s: links that leave the job {shared} bytes/s are not legal; give each 1 byte/s for "
            f"every ring that crosses it"
        )
    owners = cluster.owners()
    hosts = {(owners[host], len(gpus)) for host, gpus in job.gpus.items()}
    kinds, counts = {kind for kind, _ in hosts}, [count for _, count in hosts]
    generations = {kind.generation for kind in kinds}
    generation = min(generations, key=GENERATIONS.index)
    intra = _intra(hosts, shared)
    across = len(job.gpus) > 1
    vendors = {kind.cpu for kind in kinds}
    return Fabric(
        world_size=job.world_size,
        hosts=len(job.gpus),
        ranks_per_host=max(counts),
        fewest_ranks=min(counts) if min(counts) < max(counts) else None,
        generation=generation,
        intra=intra,
        inter=_inter(cluster, wires, job, kinds, shared) if across else None,
        channels=_channels(generation, job.rings, shared, intra.kind, across_hosts=across),
        nvls=all(kind.nvls for kind in kinds) and intra.kind == "nvswitch" and min(counts) >= _LEAST_NVLS,
        cpu=vendors.pop() if len(vendors) == 1 else "amd",  # llMaxBws, src/graph/tuning.cc
        protocols=_protocols(cluster, hosts, intra.kind, across_hosts=across),
    )


def _intra(hosts: set[tuple[HostKind, int]], shared: float) -> Hop:
    """The step between GPUs of one host, where it is slowest, under the worst kind of all hosts.

    What a job sends to other hosts takes nothing of it. With one GPU a host there is none, and NCCL's NVLink.
    """
    alone = Step(kind="nvlink", bytes_per_s=max(1.0, shared))
    steps = [alone if count == 1 else kind.step(count) for kind, count in hosts]
    worst = min((step.kind for step in steps), key=_WORST_FIRST.index)
    return Hop(kind=worst, bytes_per_s=min(step.bytes_per_s for step in steps))


def _inter(cluster: Cluster, wires: Wires, job: Job, kinds: set[HostKind], shared: float) -> Hop:
    assert cluster.network is not None  # a job on several hosts has one
    reported, latency_ns = cluster.network.latency_ns, cluster.network.switch_latency_ns
    if latency_ns:  # NCCL's table has one switch already; the first ring stands for all
        ways = [wires.way(a, job.nics[a][0], b, job.nics[b][0]) for a, b in job.steps()]
        latency_ns = round(sum(len(way) - 2 for way in ways) * latency_ns / len(ways))
    slots = [kind.gpu_slot_bytes_per_s for kind in kinds if kind.staged and kind.gpu_slot_bytes_per_s]
    return Hop(
        kind="net",
        bytes_per_s=shared,
        latency_ns=latency_ns or None,
        reported_ns=reported or None,
        staged_bytes_per_s=min(shared, job.rings * through_host(min(slots))) if slots else None,
    )


def _channels(
    generation: Generation, rings: int, bytes_per_s: float, kind: Kind, *, across_hosts: bool
) -> int:
    """How many channels NCCL's search finds (ncclTopoCompute and ncclTopoDupChannels, src/graph/search.cc).

    Between hosts there is one for each ring. Within a host NCCL takes the speed of its list whose channels
    carry most together, of equals the fastest, and none below 0.49 of the first that fits. A speed of 25 GB/s
    or more is halved for twice the channels; on Hopper and later not one below 50 with more than 4 channels.
    """
    if not rings:
        return 1
    speed, found = bytes_per_s / rings / 1e9, rings
    if not across_hosts:
        fitting = [each for each in _SPEEDS[generation] if each <= speed]
        counts = {
            each: min(rings * int(speed / each), _MOST_FOUND) for each in fitting if each > 0.49 * fitting[0]
        }
        if counts:
            speed = max(counts, key=lambda each: (counts[each] * each, each))
            found = counts[speed]
        else:
            speed = 0.0
    newer = generation in ("hopper", "blackwell")
    halved = kind in NVLINKS and speed >= 25 and not (newer and speed < 50 and found > 4)
    return min(found * 2 if halved else found, _MOST_FOUND)


def _protocols(
    cluster: Cluster, hosts: set[tuple[HostKind, int]], kind: Kind, *, across_hosts: bool
) -> tuple[Protocol, ...]:
    """LL where the network has it; LL128 over NVLink between GPUs of one generation, and to NICs to which
    writes stay whole (isLL128Enabled of src/graph/tuning.cc: typeIntra, minCompCap == maxCompCap, typeInter).

    Rings go in by the NIC of one GPU and out by that of another, so that an odd one out sends over another
    GPU's NVLink (PXN), where NCCL has LL128 from Hopper on.
    """
    network = cluster.network if across_hosts else None
    generations = {each.generation for each, _ in hosts}
    whole = kind in NVLINKS and len(generations) == 1
    if network is not None:
        is_odd = any(count > 1 and count % 2 for _, count in hosts)
        whole = whole and network.ll128 and all(each.ll128 for each, _ in hosts)
        whole = whole and (not is_odd or generations <= {"hopper", "blackwell"})
    allowed: dict[Protocol, bool] = {"LL": network is None or network.ll, "LL128": whole, "Simple": True}
    return tuple(protocol for protocol, is_allowed in allowed.items() if is_allowed)
