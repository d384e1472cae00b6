"""The links between hosts: what a job's rings put on each, and what every job gets where jobs meet.

A job has as many rings as its hosts have NICs for, one through a NIC. Hosts follow one another as the ranks
first name them, as in NCCL, and within a host a ring passes all of the job's GPUs (``HostKind.step``).

Hardware that was measured or computed for a job alone is carried to where it gets less of the links, or to
other links: a collective takes the time of its ring's bytes on the wire, which changes, and a latency, all
time beyond that, which stays.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import networkx as nx
import numpy as np

from sim.errors import InputError
from sim.nouns.cluster import NVLINKS, Cluster, HostKind, check_ranks, split_name
from sim.nouns.hardware import CURVES, MAX_RANKS, Hardware
from sim.units import NS_PER_S

LinkEnds = tuple[str, str]
LinkName = TypeVar("LinkName", bound=Hashable)

_SPINE = "spine"
_ROUNDING = 1e-9  # rates are sums of a few floats, each to about 1e-16


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """``share`` bytes cross the link from ``a`` to ``b`` for each byte of the message.

    It carries ``bytes_per_s`` in that direction.
    """

    a: str
    b: str
    bytes_per_s: float
    share: float

    @property
    def s_per_byte(self) -> float:
        """How long the link is busy for each byte of the message: the greatest of all holds them up."""
        return self.share / self.bytes_per_s


class Wires:
    """The ports of a cluster's hosts by their names (``host3.nic0``), and its switches as a graph."""

    def __init__(self, cluster: Cluster) -> None:
        if not isinstance(cluster, Cluster):
            raise InputError(f"cluster: {type(cluster).__name__} is not legal; give a Cluster")
        self.graph: nx.DiGraph[str] = nx.DiGraph()
        self._ports: list[float] = []
        if cluster.network is None:
            return
        network, most_nics = cluster.network, max(kind.nics for kind in cluster.kinds)
        for group in cluster.hosts:
            self._ports += [group.port_bytes_per_s or network.bytes_per_s] * group.count
        self._per_leaf, self._rails = network.hosts_per_leaf, network.rails
        ports = network.hosts_per_leaf * -(-most_nics // network.rails)
        uplink = ports * network.bytes_per_s / network.oversubscription
        for host in range(0, cluster.host_count, network.hosts_per_leaf):
            for rail in range(min(most_nics, network.rails)):
                leaf = self._leaf(host, rail)
                self.graph.add_edge(leaf, _SPINE, bytes_per_s=uplink)
                self.graph.add_edge(_SPINE, leaf, bytes_per_s=uplink)
        self._up = cache(lambda leaf: nx.shortest_path(self.graph, leaf, _SPINE))

    def _leaf(self, host: int, nic: int) -> str:
        return f"leaf{host // self._per_leaf}.{nic % self._rails}"

    def _between(self, a: str, b: str) -> Iterator[LinkEnds]:
        """From one leaf to another: up to the spine, and down."""
        return pairwise((*self._up(a), *self._up(b)[-2::-1])) if a != b else iter(())

    def way(self, host: int, nic: int, to_host: int, to_nic: int) -> tuple[LinkEnds, ...]:
        """The links, in order and direction, from a NIC of one host to a NIC of another."""
        a, b = self._leaf(host, nic), self._leaf(to_host, to_nic)
        return (f"host{host}.nic{nic}", a), *self._between(a, b), (b, f"host{to_host}.nic{to_nic}")

    def port_bytes_per_s(self, host: int) -> float:
        """What each port of a host carries each way."""
        return self._ports[host]

    def bytes_per_s(self, link: LinkEnds) -> float:
        """What a link carries in its direction."""
        for end in link:
            if end.startswith("host"):
                return self._ports[int(end[4 : end.index(".")])]
        return float(self.graph.edges[link]["bytes_per_s"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Where a job's ranks are, and what its hosts let through.

    ``gpus`` and ``nics`` are numbers by host, in the order of the rings: the GPUs that hold ranks, and the
    NIC of each ring. ``bytes_per_s`` is the bus bandwidth of all ``rings`` together before any network.
    """

    gpus: dict[int, tuple[int, ...]]
    nics: dict[int, tuple[int, ...]]
    rings: int
    bytes_per_s: float

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(map(len, self.gpus.values()))

    def steps(self) -> Iterator[tuple[int, int]]:
        """Hosts that follow each other, the last of them and the first too."""
        hosts = list(self.nics)
        return zip(hosts, (*hosts[1:], *hosts[:1]), strict=True)


def job_of(cluster: Cluster, wires: Wires, ranks: Sequence[str] | None = None) -> Job:
    """A job with its ranks on ``ranks`` (None: the cluster's placement).

    Raises:
        InputError: ranks that are no GPUs of the cluster, or on hosts that nothing joins.
    """
    if ranks is not None:
        check_ranks(cluster, ranks, "ranks")
    ranks = ranks if ranks is not None else cluster.placement
    world_size = cluster.gpu_count if ranks is None else len(ranks)
    if world_size > MAX_RANKS:
        raise InputError(f"world_size: {world_size} ranks are not legal; give {MAX_RANKS} at most")
    owners = cluster.owners()
    placed: dict[int, list[int]] = {}
    for host, gpu in map(split_name, ranks or ()):
        placed.setdefault(host, []).append(gpu)
    gpus = {host: tuple(sorted(numbers)) for host, numbers in placed.items()}
    if ranks is None:
        gpus = {host: tuple(range(kind.gpus)) for host, kind in enumerate(owners)}
    if world_size == 1:
        return Job(gpus=gpus, nics={}, rings=0, bytes_per_s=0.0)
    if len(gpus) == 1:
        ((host, numbers),) = gpus.items()
        step = owners[host].step(len(numbers))
        return Job(gpus=gpus, nics={}, rings=step.rings, bytes_per_s=step.bytes_per_s)
    if cluster.network is None:
        raise InputError("network: null is not legal with ranks on several hosts; give what joins them")
    alike = {(owners[host], numbers, wires.port_bytes_per_s(host)) for host, numbers in gpus.items()}
    through = [_through(*each) for each in alike]
    rings = min(most for most, _, _ in through)
    near = cache(_nics)
    return Job(
        gpus=gpus,
        nics={host: near(owners[host], numbers)[:rings] for host, numbers in gpus.items()},
        rings=rings,
        bytes_per_s=min(min(rings * each, total) for _, each, total in through),
    )


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
    parts = Counter(_part(kind, gpu) for gpu in gpus)
    total = sum(min(kind.nics // kind.parts * each, held * slot) for held in parts.values())
    count = len(gpus)
    if count == 1:
        return math.ceil(total / each * (1 - _ROUNDING)), each, total
    step = kind.step(count)
    total = min(total, step.bytes_per_s * (count / (count - 1) if step.kind in NVLINKS else 1))
    rings = math.ceil(total / each * (1 - _ROUNDING))
    return rings, each, total if rings >= count else min(total, step.bytes_per_s)


def _part(kind: HostKind, gpu: int) -> int:
    return gpu * kind.parts // kind.gpus


def _nics(kind: HostKind, gpus: tuple[int, ...]) -> tuple[int, ...]:
    """The NICs of the parts that GPUs are in, those of the same place first."""
    own = (gpu * kind.nics // kind.gpus for gpu in gpus)
    each = kind.nics // kind.parts
    beside = (_part(kind, gpu) * each + number for gpu in gpus for number in range(each))
    return tuple(dict.fromkeys((*own, *beside)))


def ring_crossings(wires: Wires, job: Job) -> Counter[LinkEnds]:
    """How often all rings of a job together cross each link between hosts."""
    crossed: Counter[LinkEnds] = Counter()
    for host, after in job.steps():
        for nic, to_nic in zip(job.nics[host], job.nics[after], strict=True):
            crossed.update(wires.way(host, nic, after, to_nic))
    return crossed


def link_loads(cluster: Cluster, ranks: Sequence[str] | None = None) -> tuple[LinkLoad, ...]:
    """Bytes over each link between hosts, in each direction, per byte of the message of one all-reduce.

    By rings, whose every step carries 2 (n - 1) / n of a ring's part of the message. The link that is busy
    longest comes first; on one host there is none.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank (None: the cluster's placement).

    Raises:
        InputError: ranks that are no GPUs or that nothing joins.
    """
    wires = Wires(cluster)
    job = job_of(cluster, wires, ranks)
    part = wire_bytes("all_reduce", 1, job.world_size)
    loads = [
        LinkLoad(a=a, b=b, bytes_per_s=wires.bytes_per_s((a, b)), share=times * part / job.rings)
        for (a, b), times in ring_crossings(wires, job).items()
    ]
    return tuple(sorted(loads, key=lambda load: (-load.s_per_byte, load.a, load.b)))


def shares(wires: Wires, jobs: Sequence[Job]) -> list[float]:
    """The bus bandwidth of each job in bytes/s while all of them run; 0 for one rank, which sends nothing.

    NCCL cuts a message into equal parts, one for each ring, so that all rings of a job, and all steps of
    each, go at one pace: that of the step that gets least. Where jobs meet on a port or an uplink, each
    crossing gets as much as any other. What jobs on one host take of its own links is not counted.

    Raises:
        InputError: two jobs on one GPU.
    """
    taken: set[tuple[int, int]] = set()
    flows: list[dict[Hashable, float]] = []
    capacity: dict[Hashable, float] = {}
    for number, job in enumerate(jobs):
        own = {(host, gpu) for host, gpus in job.gpus.items() for gpu in gpus} if len(jobs) > 1 else set()
        if both := taken & own:
            raise InputError(
                "jobs: host{}.gpu{} holds ranks of two jobs; each GPU holds one rank".format(*min(both))
            )
        taken |= own
        flow: dict[Hashable, float] = {number: 1.0}
        capacity[number] = job.bytes_per_s
        for link, times in ring_crossings(wires, job).items():
            flow[link] = times / job.rings
            capacity[link] = wires.bytes_per_s(link)
        flows.append(flow)
    return max_min_shares(flows, capacity)


def job_bandwidths(cluster: Cluster, jobs: Sequence[Sequence[str]]) -> list[float]:
    """``shares`` of jobs by the GPUs of their ranks, such as ``host0.gpu0``. Raises as ``job_of``."""
    wires = Wires(cluster)
    return shares(wires, [job_of(cluster, wires, ranks) for ranks in jobs])


def max_min_shares(
    flows: Sequence[Mapping[LinkName, float]], capacity: Mapping[LinkName, float]
) -> list[float]:
    """The max-min fair rate of each flow, in bytes/s.

    A flow is what it takes of each link for each byte/s of its rate: 1 where it crosses the link once, 2
    where a ring passes it twice. All rates grow together; where a link is full, the flows on it stop
    (Bertsekas and Gallager, Data Networks, 6.5.2). So no link is over its capacity, and every flow crosses a
    full link on which no other flow has a higher rate. A flow that crosses nothing is unbounded (``inf``);
    one that crosses a link of no bandwidth gets 0.

    Args:
        flows: for each flow, its use of each link.
        capacity: bytes/s of each link, in the direction that is used.
    """
    links = list(dict.fromkeys(link for flow in flows for link, times in flow.items() if times))
    uses = np.array([[flow.get(link, 0.0) for link in links] for flow in flows]).reshape(
        len(flows), len(links)
    )
    left = np.array([capacity[link] for link in links], dtype=np.float64)
    rates = np.full(len(flows), math.inf)
    growing, level = uses.any(axis=1), 0.0
    while growing.any():
        grown = growing @ uses
        full_at = np.divide(left, grown, out=np.full(len(links), math.inf), where=grown > 0)
        level = max(level, float(full_at.min()))
        stopped = growing & uses[:, full_at <= level * (1 + _ROUNDING)].any(axis=1)
        rates[stopped] = level
        left -= level * (stopped @ uses)
        growing &= ~stopped
    return [float(rate) for rate in rates]


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
    alone, shared = job_bandwidths(cluster, [ranks])[0], job_bandwidths(cluster, [ranks, *beside])[0]
    said = {"beside": [list(others) for others in beside], "cluster": cluster.name}
    others = f"{len(beside)} other job{'s' if len(beside) != 1 else ''}"
    return _carried(hardware, ranks, alone, shared, f"beside {others}", said)


def hardware_on(
    hardware: Hardware, cluster: Cluster, ranks: Sequence[str], other: Cluster, other_ranks: Sequence[str]
) -> Hardware:
    """``hardware``, of ``ranks`` on ``cluster``, as it is for as many ranks on another cluster.

    As in ``hardware_beside`` the time on the wire changes with the bandwidth of the job's rings, and
    latencies stay. An example is a cluster of four equal hosts of which one gets a slower port. Raises as
    that does.
    """
    (here,), (there,) = job_bandwidths(cluster, [ranks]), job_bandwidths(other, [other_ranks])
    given = ranks if len(ranks) != hardware.world_size else other_ranks
    return _carried(hardware, given, here, there, f"on {other.name}", {"cluster": other.name})


def _carried(
    hardware: Hardware,
    ranks: Sequence[str],
    measured: float,
    bytes_per_s: float,
    where: str,
    said: dict[str, Any],
) -> Hardware:
    """``hardware`` with each time of its curves, and of their scatter, as ``stretched_ns`` has it."""
    if len(ranks) != hardware.world_size:
        raise InputError(
            f"ranks: {len(ranks)} GPUs are not legal; hardware {hardware.name!r} has "
            f"world_size={hardware.world_size}, so give {hardware.world_size}"
        )
    curves: dict[str, Any] = {}
    spread = dict(hardware.spread)
    for collective in CURVES:
        curve, known = hardware.curve(collective), spread.get(collective)
        scatter = dict(known) if isinstance(known, dict) else {}

        def stretched(ns: int, size: int, collective: str = collective) -> int:
            return stretched_ns(ns, collective, size, hardware.world_size, measured, bytes_per_s)

        if curve is not None:
            curves[collective] = tuple(
                replace(point, duration_ns=stretched(point.duration_ns, point.num_bytes)) for point in curve
            )
        for size in {str(point.num_bytes) for point in curve or ()} & {*scatter}:
            scatter[size] = {
                key: stretched(value, int(size)) if key.endswith("_ns") and type(value) is int else value
                for key, value in scatter[size].items()
            }
        if scatter:
            spread[collective] = scatter
    said = {**said, "measured_bytes_per_s": measured, "bytes_per_s": bytes_per_s}
    provenance = {**hardware.provenance, "carried": said}
    return replace(hardware, name=f"{hardware.name}, {where}", **curves, spread=spread, provenance=provenance)
