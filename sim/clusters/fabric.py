"""A machine as NCCL's cost model sees it: two kinds of hop, and how many ranks and channels there are.

It comes from a cluster, and says what a job gets of its hosts and of the network. A job has as many rings as
its hosts have NICs for, one through a NIC. Hosts follow one another as the ranks first name them, as in NCCL,
and within a host a ring passes all of the job's GPUs (``HostKind.step``).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

import networkx as nx

from sim.clusters.nccl_tables import GENERATIONS, NVLS_SPEEDS, Protocol
from sim.errors import InputError
from sim.nouns.checks import Legal
from sim.nouns.cluster import (
    NVLINKS,
    Cluster,
    CpuVendor,
    Generation,
    HostKind,
    Network,
    Step,
    check_ranks,
    split_name,
)
from sim.nouns.hardware import MAX_RANKS

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
    flight, between hosts for no more GPUs than there are ``nics`` near those of the job on the host with the
    fewest (None: as many as ranks). ``protocols`` are those that may be used: LL128 needs writes of 128 bytes
    that stay whole, which PCIe and some networks do not give.
    """

    world_size: int
    hosts: int
    ranks_per_host: int
    generation: Generation
    intra: Hop
    inter: Hop | None
    channels: int
    nvls: bool = False
    nics: int | None = None
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
_ROUNDING = 1e-9  # rates are sums of a few floats, each to about 1e-16
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
    is_newer = bytes_per_s >= PCIE_5_FROM_BYTES_PER_S
    return bytes_per_s if is_newer else min(bytes_per_s, THROUGH_HOST_BYTES_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Where a job's ranks are, and what hosts and network let through.

    ``gpus``: by host, in the order of the rings, the numbers of the GPUs that hold ranks. ``bytes_per_s`` is
    the bus bandwidth of all ``rings`` together, 0 for one rank. ``spine_steps`` of the first ring leave their
    leaf switch.
    """

    gpus: dict[int, tuple[int, ...]]
    rings: int = 0
    bytes_per_s: float = 0.0
    spine_steps: int = 0

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.gpus.values()))


def job_of(cluster: Cluster, ranks: Sequence[str] | None = None) -> Job:
    """A job with its ranks on ``ranks``, such as ``host0.gpu3`` (None: the cluster's placement).

    Raises:
        InputError: ranks that are no GPUs of the cluster, too many of them, or on hosts that nothing joins.
    """
    if ranks is not None:
        check_ranks(cluster, ranks, "ranks")
    ranks = ranks if ranks is not None else cluster.placement
    world_size = cluster.gpu_count if ranks is None else len(ranks)
    Legal(least=1, most=MAX_RANKS).take("world_size", world_size)
    owners = cluster.owners()
    if ranks is None:
        gpus = {host: tuple(range(kind.gpus)) for host, kind in enumerate(owners)}
    else:
        placed: dict[int, list[int]] = {}
        for host, gpu in map(split_name, ranks):
            placed.setdefault(host, []).append(gpu)
        gpus = {host: tuple(sorted(numbers)) for host, numbers in placed.items()}
    if world_size == 1:
        return Job(gpus=gpus)
    if len(gpus) == 1:
        ((host, numbers),) = gpus.items()
        step = owners[host].step(len(numbers))
        return Job(gpus=gpus, rings=step.rings, bytes_per_s=step.bytes_per_s)
    if cluster.network is None:
        raise InputError("network: null is not legal with ranks on several hosts; give what joins them")
    ports = [group.port_bytes_per_s for group in cluster.hosts for _ in range(group.count)]
    usual = cluster.network.bytes_per_s
    alike = {(owners[host], numbers, ports[host] or usual) for host, numbers in gpus.items()}
    through = [_through(*each) for each in alike]
    rings = min(most for most, _, _ in through)
    near = cache(_nics)
    nics = {host: near(owners[host], numbers)[:rings] for host, numbers in gpus.items()}
    narrowest, spine_steps = _between_switches(cluster, cluster.network, nics)
    total = min(narrowest, *(min(rings * each, total) for _, each, total in through))
    return Job(gpus=gpus, rings=rings, bytes_per_s=total, spine_steps=spine_steps)


def _through(kind: HostKind, gpus: tuple[int, ...], port_bytes_per_s: float) -> tuple[int, float, float]:
    """Rings through GPUs of a host from NIC to NIC; bytes/s of one alone, and of all of them together.

    Of a part without such a GPU no NIC is used: NCCL searches no farther than over another GPU's NVLink
    (ncclTopoCompute, src/graph/search.cc: typeInter below PATH_PXN). A GPU that sends a ring's bytes to a NIC
    sends them to no neighbour, so that rings of which each ends at another GPU take less of NVLink; over PCIe
    one slot carries both.
    """
    slot, nic_slot = kind.gpu_slot_bytes_per_s, kind.nic_slot_bytes_per_s
    if slot is None or nic_slot is None or not kind.nics:
        raise InputError(f"kinds: {kind.name!r} has no nics, and ranks are on other hosts too; give it some")
    each = min(nic_slot, port_bytes_per_s)
    parts = Counter(gpu * kind.parts // kind.gpus for gpu in gpus)
    total = sum(min(kind.nics // kind.parts * each, held * slot) for held in parts.values())
    count = len(gpus)
    if count == 1:
        return math.ceil(total / each * (1 - _ROUNDING)), each, total
    step = kind.step(count)
    total = min(total, step.bytes_per_s * (count / (count - 1) if step.kind in NVLINKS else 1))
    rings = math.ceil(total / each * (1 - _ROUNDING))
    return rings, each, total if rings >= count else min(total, step.bytes_per_s)


def _nics(kind: HostKind, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """The NICs of the parts that GPUs are in, those of the same place first."""
    own = (gpu * kind.nics // kind.gpus for gpu in gpus)
    each = kind.nics // kind.parts
    parts = (gpu * kind.parts // kind.gpus for gpu in gpus)
    beside = (part * each + number for part in parts for number in range(each))
    return tuple(dict.fromkeys((*own, *beside)))


def _between_switches(
    cluster: Cluster, network: Network, nics: dict[int, tuple[int, ...]]
) -> tuple[float, int]:
    """What links between switches leave all rings together, in bytes/s, and how many steps of the first ring
    cross any.

    ``nics``: of each host those of the rings. NCCL cuts a message into equal parts, one for each ring, so
    that all go at one pace: that of the link which all of them together cross most often for what it
    carries. A port is crossed once each way.
    """
    most_nics = max(kind.nics for kind in cluster.kinds)
    ports = network.hosts_per_leaf * -(-most_nics // network.rails)
    switches: nx.DiGraph[tuple[int, int] | str] = nx.DiGraph()
    for group in range(-(-cluster.host_count // network.hosts_per_leaf)):
        for rail in range(min(most_nics, network.rails)):
            uplink = ports * network.bytes_per_s / network.oversubscription
            switches.add_edge((group, rail), "spine", bytes_per_s=uplink)
            switches.add_edge("spine", (group, rail), bytes_per_s=uplink)
    up = cache(lambda leaf: nx.shortest_path(switches, leaf, "spine"))

    def leaf(host: int, nic: int) -> tuple[int, int]:
        return host // network.hosts_per_leaf, nic % network.rails

    crossed: Counter[tuple[tuple[int, int] | str, tuple[int, int] | str]] = Counter()
    spine_steps, hosts = 0, list(nics)
    for host, after in pairwise((*hosts, hosts[0])):
        for ring, (nic, to_nic) in enumerate(zip(nics[host], nics[after], strict=True)):
            a, b = leaf(host, nic), leaf(after, to_nic)
            if a != b:
                spine_steps += ring == 0
                crossed.update(pairwise((*up(a), *up(b)[-2::-1])))
    rings = len(nics[hosts[0]])
    left = (switches.edges[link]["bytes_per_s"] / (times / rings) for link, times in crossed.items())
    return min(left, default=math.inf), spine_steps


def fabric_of(cluster: Cluster, ranks: Sequence[str] | None = None) -> Fabric:
    """The fabric of a job with its ranks on ``ranks``, such as ``host0.gpu3`` (None: the placement).

    Where hosts differ, NCCL takes one figure for all, and so does this: the fewest channels, the least
    bandwidths, the worst kind of step, the oldest GPU (src/init.cc, the loop over allGather3Data).

    Raises:
        InputError: as ``job_of``, or links that leave the job less than 1 byte/s.
    """
    job, owners = job_of(cluster, ranks), cluster.owners()
    alike = {(owners[host], gpus) for host, gpus in job.gpus.items()}
    hosts = {(kind, len(gpus)) for kind, gpus in alike}
    kinds, counts = {kind for kind, _ in hosts}, [count for _, count in hosts]
    generation = min((kind.generation for kind in kinds), key=GENERATIONS.index)
    intra, vendors = _intra(hosts, job.bytes_per_s), {kind.cpu for kind in kinds}
    across = len(job.gpus) > 1
    nvls = all(kind.nvls for kind in kinds) and intra.kind == "nvswitch" and min(counts) >= _LEAST_NVLS
    return Fabric(
        world_size=job.world_size,
        hosts=len(job.gpus),
        ranks_per_host=max(counts),
        fewest_ranks=min(counts) if min(counts) < max(counts) else None,
        generation=generation,
        intra=intra,
        inter=_inter(cluster, job, kinds) if across else None,
        channels=_channels(generation, job.rings, job.bytes_per_s, intra.kind, across_hosts=across),
        nvls=nvls,
        nics=min(len(_nics(*each)) for each in alike) if nvls and across else None,
        cpu=vendors.pop() if len(vendors) == 1 else "amd",  # llMaxBws, src/graph/tuning.cc
        protocols=_protocols(cluster, hosts, intra.kind, across_hosts=across),
    )


def _intra(hosts: set[tuple[HostKind, int]], bytes_per_s: float) -> Hop:
    """The step between GPUs of one host, where it is slowest, under the worst kind of all hosts.

    What a job sends to other hosts takes nothing of it. With one GPU a host there is none, and NCCL's NVLink.
    """
    alone = Step(kind="nvlink", bytes_per_s=max(1.0, bytes_per_s))
    steps = [alone if count == 1 else kind.step(count) for kind, count in hosts]
    worst = min((step.kind for step in steps), key=_WORST_FIRST.index)
    return Hop(kind=worst, bytes_per_s=min(step.bytes_per_s for step in steps))


def _inter(cluster: Cluster, job: Job, kinds: set[HostKind]) -> Hop:
    assert cluster.network is not None  # a job on several hosts has one
    Legal(kind=float, least=1).take("bytes_per_s", job.bytes_per_s)
    # NCCL's table has one switch already; a spine is two more, and the first ring stands for all.
    latency_ns = round(2 * job.spine_steps * cluster.network.switch_latency_ns / len(job.gpus))
    slots = [kind.gpu_slot_bytes_per_s for kind in kinds if kind.staged and kind.gpu_slot_bytes_per_s]
    staged = min(job.bytes_per_s, job.rings * through_host(min(slots))) if slots else None
    return Hop(
        kind="net",
        bytes_per_s=job.bytes_per_s,
        latency_ns=latency_ns or None,
        reported_ns=cluster.network.latency_ns or None,
        staged_bytes_per_s=staged,
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
    ll: tuple[Protocol, ...] = ("LL",) if network is None or network.ll else ()
    return (*ll, "LL128", "Simple") if whole else (*ll, "Simple")
