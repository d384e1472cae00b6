"""A fabric from a cluster: what its best rings get of the links, beside other jobs where there are any."""

from collections.abc import Iterable, Sequence

from sim.clusters.nccl.constants import GENERATIONS, NVLS_SPEEDS
from sim.clusters.nccl.fabric import NVLINKS, Fabric, Hop, Kind, Protocol
from sim.clusters.topology.job_shares import ring_shares
from sim.clusters.topology.rings import HostRings, Rings, rings_of
from sim.clusters.topology.routes import routes_of
from sim.errors import InputError
from sim.nouns.cluster import Cluster, CpuVendor, Generation

# Speeds that NCCL's search tries for a channel within a host, in GB/s (src/graph/search.cc, speedArrayIntra,
# sm90SpeedArrayIntra and sm100SpeedArrayIntra, since it knows Blackwell), and the most channels it finds.
_SPEEDS: dict[Generation, tuple[float, ...]] = {
    **dict.fromkeys(("volta", "turing", "ampere"), (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),
    **NVLS_SPEEDS,
}
_MOST_FOUND = 32  # MAXCHANNELS / 2
_LEAST_NVLS = 3  # GPUs of a host (ncclNvlsInit, src/transport/nvls.cc)
_WORST_FIRST: tuple[Kind, ...] = ("shm", "qpi", "pcie", "nvswitch", "nvlink")


def fabric_of(
    cluster: Cluster, ranks: Sequence[str] | None = None, *, beside: Sequence[Sequence[str]] = ()
) -> Fabric:
    """The fabric of a job with its ranks on ``ranks`` (None: the cluster's placement).

    Where hosts differ, NCCL takes one figure for all, and so does this: the fewest channels, the least
    bandwidths, the worst kind of step, the oldest GPU (src/init.cc, the loop over allGather3Data).

    Args:
        cluster: the machine.
        ranks: full names of GPUs, such as ``host0.gpu3``.
        beside: the ranks of other jobs, whose rings run at the same time and take their fair share.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or that no way joins.
    """
    rings = rings_of(cluster, ranks)
    others = [rings_of(cluster, each) for each in beside]
    counts = [len(gpus) for gpus in rings.gpus]
    owners = cluster.owners()
    templates = {owners[host].name: owners[host] for host in rings.hosts}.values()
    generations = {each.generation for each in templates}
    generation = min(generations, key=GENERATIONS.index)
    share = ring_shares(rings, *others)[0]
    if rings.channels and share.bytes_per_s < 1:
        raise InputError(
            f"bytes_per_s: links that leave the job {share.bytes_per_s} bytes/s are not legal; give each 1 "
            f"byte/s for every ring that crosses it"
        )
    inter = None
    if len(rings.hosts) > 1:
        reported = None if cluster.network is None else cluster.network.latency_ns
        inter = Hop(
            kind="net",
            bytes_per_s=share.bytes_per_s,
            latency_ns=_network_latency_ns(rings, reported or 0),
            reported_ns=reported or None,
            staged_by=_staged_by(rings),
        )
    intra = _intra(cluster, rings, share.bytes_per_s, others)
    return Fabric(
        world_size=rings.world_size,
        hosts=len(rings.hosts),
        ranks_per_host=max(counts),
        fewest_ranks=min(counts) if min(counts) < max(counts) else None,
        generation=generation,
        intra=intra,
        inter=inter,
        channels=_channels(generation, share.rings, intra.kind, across_hosts=inter is not None),
        nvls=all(each.nvls for each in templates) and intra.kind == "nvswitch" and min(counts) >= _LEAST_NVLS,
        sharp=inter is not None and cluster.network is not None and cluster.network.sharp,
        cpu=_cpu({each.cpu for each in templates}),
        protocols=_protocols(cluster, rings, intra.kind, generations),
    )


def _cpu(vendors: set[CpuVendor]) -> CpuVendor:
    """Sockets of several vendors count as AMD's (llMaxBws, src/graph/tuning.cc)."""
    return vendors.pop() if len(vendors) == 1 else "amd"


def _intra(cluster: Cluster, rings: Rings, shared: float, others: Sequence[Rings]) -> Hop:
    """The step between GPUs of one host, where it is slowest, under the worst kind of step of all hosts.

    If the job has several hosts, this is by rings within each host alone: what the job sends to other hosts
    takes nothing of the links. Other jobs on the host take their share.
    """
    if rings.world_size == 1:
        # Nothing is sent; a Fabric of one rank has a hop all the same.
        return Hop(kind="nvlink", bytes_per_s=1.0)
    if len(rings.hosts) == 1:
        return _hop(rings.host_rings[0], shared)
    hops = []
    for place in _different(rings, others):
        kind, host = rings.host_rings[rings.kinds[place]], rings.hosts[place]
        if len(kind.gpus) == 1:
            hops.append(Hop(kind="nvlink", bytes_per_s=shared))
            continue
        closed = rings_of(cluster, [f"host{host}.{gpu}" for gpu in kind.gpus])
        neighbours = [each for each in others if host in each.hosts]
        hops.append(_hop(closed.host_rings[0], ring_shares(closed, *neighbours)[0].bytes_per_s))
    slowest = min(hops, key=lambda hop: hop.bytes_per_s)
    worst = min((hop.kind for hop in hops), key=_WORST_FIRST.index)
    return Hop(kind=worst, bytes_per_s=slowest.bytes_per_s, latency_ns=slowest.latency_ns)


def _different(rings: Rings, others: Sequence[Rings]) -> Iterable[int]:
    """Places of hosts, one for each kind of host and each way in which other jobs use it."""
    beside: dict[int, list[tuple[int, int, int]]] = {}
    for job, each in enumerate(others):
        for place, host in enumerate(each.hosts):
            beside.setdefault(host, []).append((job, each.kinds[place], place % 2))
    places: dict[tuple[int, tuple[tuple[int, int, int], ...]], int] = {}
    for place, host in enumerate(rings.hosts):
        places.setdefault((rings.kinds[place], tuple(beside.get(host, ()))), place)
    return places.values()


def _hop(kind: HostRings, bytes_per_s: float) -> Hop:
    routes = routes_of(kind.template)
    legs = [leg for ring in kind.forth for leg in ring.legs]
    kinds: list[Kind] = [routes.kind(leg) for leg in legs]
    latency = round(sum(routes.latency_ns(leg) for leg in legs) / len(legs))
    return Hop(kind=min(kinds, key=_WORST_FIRST.index), bytes_per_s=bytes_per_s, latency_ns=latency or None)


def _staged_by(rings: Rings) -> tuple[float, ...]:
    """Bytes/s of the slots of GPUs that reach NICs through host memory, of the host where their sum is least;
    empty if NICs read from GPUs."""
    slots = []
    for host in rings.host_rings:
        routes = routes_of(host.template)
        ends = {ring.gpus[-1]: ring.legs[-1] for ring in host.forth}
        staged = [leg for leg in ends.values() if routes.kind(leg) == "shm"]
        slots.append(tuple(routes.bytes_per_s(leg[0]) for leg in staged))
    return min(slots, key=lambda each: (not each, sum(each)))


def _network_latency_ns(rings: Rings, reported: int) -> int | None:
    """The mean latency of the first ring's steps between hosts, minus the ``reported`` one; None if that
    leaves 0."""
    steps = [rings.between(0, place) for place in range(len(rings.hosts))]
    return round(sum(rings.wiring.latency_ns(path) for path in steps) / len(steps)) - reported or None


def _channels(generation: Generation, rings: Sequence[float], kind: Kind, *, across_hosts: bool) -> int:
    """How many channels NCCL's search finds (ncclTopoCompute and ncclTopoDupChannels, src/graph/search.cc).

    Between hosts there is one for each ring. Within a host NCCL takes the speed of its list whose channels
    carry most together, of equals the fastest, and none below 0.49 of the first that fits. A speed of 25 GB/s
    or more is halved for twice the channels; on Hopper and later not one below 50 with more than 4 channels.
    """
    if not rings:
        return 1
    if across_hosts:
        speed, found = max(rings) / 1e9, len(rings)
    else:
        fitting = [speed for speed in _SPEEDS[generation] if speed * 1e9 <= max(rings)]
        tried = [speed for speed in fitting if speed > 0.49 * fitting[0]]
        counts = {speed: sum(int(rate / (speed * 1e9)) for rate in rings) for speed in tried}
        counts = {speed: min(count, _MOST_FOUND) for speed, count in counts.items()}
        best = max(counts, key=lambda each: (counts[each] * each, each)) if counts else None
        speed, found = (best, counts[best]) if best is not None else (0.0, len(rings))
    newer = generation in ("hopper", "blackwell")
    halved = kind in NVLINKS and speed >= 25 and not (newer and speed < 50 and found > 4)
    return min(found * 2 if halved else found, _MOST_FOUND)


def _protocols(
    cluster: Cluster, rings: Rings, kind: Kind, generations: set[Generation]
) -> tuple[Protocol, ...]:
    """LL where the network has it; LL128 over NVLink between GPUs of one generation, and to NICs that are not
    beyond a socket.

    From Hopper on a NIC may be on a socket that its GPU reaches over C2C (ncclTopoTuneModel of
    src/graph/tuning.cc: typeIntra, minCompCap == maxCompCap, typeInter up to PATH_P2C).
    """
    whole = kind in NVLINKS and len(generations) == 1
    if len(rings.hosts) > 1:
        whole = whole and (cluster.network is None or cluster.network.ll128)
        newer = generations <= {"hopper", "blackwell"}
        for host in rings.host_rings:
            sockets = set(host.template.of_kind("cpu"))
            graph = routes_of(host.template).graph
            for leg in (leg for ring in host.forth for leg in (ring.legs[0], ring.legs[-1])):
                over_c2c = newer and any(graph.edges[link]["kind"] == "c2c" for link in leg)
                whole = whole and (over_c2c or not any(a in sockets for a, _ in leg))
    low = len(rings.hosts) == 1 or cluster.network is None or cluster.network.ll
    allowed: dict[Protocol, bool] = {"LL": low, "LL128": whole, "Simple": True}
    return tuple(protocol for protocol, is_allowed in allowed.items() if is_allowed)
