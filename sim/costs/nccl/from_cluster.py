"""A fabric from a cluster: what its best rings get of the links, beside other jobs where there are any."""

from collections.abc import Sequence

from sim.costs.nccl.fabric import NVLINKS, Fabric, Generation, Hop, Kind, Protocol
from sim.costs.topology.rings import HostRings, Rings, by_host, rings_of
from sim.costs.topology.routes import routes_of
from sim.costs.topology.sharing import ring_shares
from sim.errors import NotModelledError
from sim.nouns.cluster import Cluster

# Speeds that NCCL's search tries for a channel within a host, in GB/s (src/graph/search.cc, speedArrayIntra,
# sm90SpeedArrayIntra and sm100SpeedArrayIntra, since it knows Blackwell), and the most channels it finds.
_SPEEDS = {
    "volta": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "ampere": (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3),
    "hopper": (60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3),
    "blackwell": (90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18),
}
_MOST_FOUND = 32  # MAXCHANNELS / 2
_WORST_FIRST: tuple[Kind, ...] = ("shm", "qpi", "pcie", "nvswitch", "nvlink")
_OLDEST_FIRST: tuple[Generation, ...] = ("volta", "ampere", "hopper", "blackwell")


def fabric_of(
    cluster: Cluster, ranks: Sequence[str] | None = None, *, beside: Sequence[Sequence[str]] = ()
) -> Fabric:
    """The fabric of a job with its ranks on ``ranks`` (None: the cluster's placement).

    Args:
        cluster: the machine.
        ranks: full names of GPUs, such as ``host0.gpu3``.
        beside: the ranks of other jobs, whose rings run at the same time and take their fair share.

    Raises:
        InputError: ranks that are no GPUs, that two jobs have, or that no way joins.
        NotModelledError: hosts with different numbers of ranks.
    """
    rings = rings_of(cluster, ranks)
    placed = by_host(cluster, ranks if ranks is not None else cluster.placement)
    counts = sorted({len(gpus) for gpus in placed.values()})
    if len(counts) > 1:
        raise NotModelledError(
            f"placement: hosts with {counts[0]} to {counts[-1]} ranks are not modelled; put as many on each"
        )
    owners = cluster.owners()
    templates = {owners[host].name: owners[host] for host in placed}.values()
    generation = min((each.generation for each in templates), key=_OLDEST_FIRST.index)
    share = ring_shares(rings, *(rings_of(cluster, others) for others in beside))[0]
    inter = None
    if len(placed) > 1:
        inter = Hop(kind="net", bytes_per_s=share.bytes_per_s, latency_ns=_network_latency_ns(rings))
    intra = _intra(cluster, rings, share.bytes_per_s)
    return Fabric(
        world_size=rings.world_size,
        hosts=len(placed),
        ranks_per_host=counts[0],
        generation=generation,
        intra=intra,
        inter=inter,
        channels=_channels(generation, share.rings, intra.kind, across_hosts=inter is not None),
        nvls=all(each.nvls for each in templates) and intra.kind == "nvswitch",
        sharp=inter is not None and cluster.network is not None and cluster.network.sharp,
        cpu=next(iter(templates)).cpu,
        protocols=_protocols(cluster, rings, intra.kind),
    )


def _intra(cluster: Cluster, rings: Rings, shared: float) -> Hop:
    """The step within a host: of the kinds of host the slowest, by rings that close there.

    Those of a job on several hosts are taken alone: between hosts is where jobs meet.
    """
    if rings.world_size == 1:
        # Nothing is sent; a Fabric of one rank has a hop all the same.
        return Hop(kind="nvlink", bytes_per_s=1.0)
    if len(rings.hosts) == 1:
        return _hop(rings.host_rings[0], shared)
    hops = []
    for number, kind in enumerate(rings.host_rings):
        host = rings.hosts[rings.kinds.index(number)]
        if len(kind.gpus) == 1:
            hops.append(Hop(kind="nvlink", bytes_per_s=shared))
            continue
        closed = rings_of(cluster, [f"host{host}.{gpu}" for gpu in kind.gpus])
        hops.append(_hop(closed.host_rings[0], ring_shares(closed)[0].bytes_per_s))
    slowest = min(hops, key=lambda hop: hop.bytes_per_s)
    worst = min((hop.kind for hop in hops), key=_WORST_FIRST.index)
    return Hop(kind=worst, bytes_per_s=slowest.bytes_per_s, latency_ns=slowest.latency_ns)


def _hop(kind: HostRings, bytes_per_s: float) -> Hop:
    routes = routes_of(kind.template)
    legs = [leg for ring in kind.forth for leg in ring.legs]
    kinds: list[Kind] = [routes.kind(leg) for leg in legs]
    latency = round(sum(routes.latency_ns(leg) for leg in legs) / len(legs))
    return Hop(kind=min(kinds, key=_WORST_FIRST.index), bytes_per_s=bytes_per_s, latency_ns=latency or None)


def _network_latency_ns(rings: Rings) -> int | None:
    """The mean over the steps of the first ring between hosts; None where NCCL's table says it all."""
    steps = [rings.between(0, place) for place in range(len(rings.hosts))]
    return round(sum(rings.wiring.latency_ns(path) for path in steps) / len(steps)) or None


def _channels(generation: Generation, rings: Sequence[float], kind: Kind, *, across_hosts: bool) -> int:
    """How many channels NCCL's search finds (ncclTopoCompute and ncclTopoDupChannels, src/graph/search.cc).

    Between hosts one for each ring. Within a host so many at that speed of its list which carries most in
    all, of equals the fastest, as long as it is not below 0.49 of the first that fits. Speeds of 25 GB/s and
    more are halved for twice the channels; on Hopper and later not below 50 with more than four channels.
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


def _protocols(cluster: Cluster, rings: Rings, kind: Kind) -> tuple[Protocol, ...]:
    """LL128 over NVLink, and to NICs not beyond a socket (ncclTopoTuneModel, src/graph/tuning.cc)."""
    whole = kind in NVLINKS
    if len(rings.hosts) > 1:
        whole = whole and (cluster.network is None or cluster.network.ll128)
        for host in rings.host_rings:
            sockets = set(host.template.of_kind("cpu"))
            legs = [leg for ring in host.forth for leg in (ring.legs[0], ring.legs[-1])]
            whole = whole and not any(a in sockets for leg in legs for a, _ in leg)
    return ("LL", "LL128", "Simple") if whole else ("LL", "Simple")
