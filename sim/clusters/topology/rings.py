"""The rings of a job: which GPUs in which order, over which links, at any size of cluster.

Within a host the order is the one with the best bottleneck (``packing``). Hosts follow one another as the
ranks first name them, as in NCCL. Hosts of one template with ranks on the same GPUs and NICs plugged in
alike are of one kind, which is searched once. A ring leaves a host by a NIC and comes into the next by the
NIC of the same number: the step stays on one rail. If that gives more bandwidth, a ring comes into a host by
one NIC and leaves it by the NIC's neighbour, and every other host is passed backwards, so that each step
between hosts stays on its rail all the same (NCCL_CROSS_NIC=2 of NCCL's user guide). With an odd number of
hosts the last step leaves its rail, as in NCCL (ncclTopoPostset, src/graph/connect.cc: odd nodes swap their
rings, whatever the number of nodes).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sim.clusters.topology.gates import PATTERNS, Pattern, gates_of, nearest_first
from sim.clusters.topology.network import Wiring, wiring_of
from sim.clusters.topology.packing import LocalRing, best_rings, reverse, uses
from sim.clusters.topology.routes import LinkEnds, Route, routes_of
from sim.errors import InputError
from sim.nouns.cluster import Cluster, HostTemplate, check_ranks, split_name
from sim.nouns.hardware import MAX_RANKS

_MOST_KINDS = 64  # kinds up to which hosts are told apart by the bandwidth of their ports


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRings:
    """What the rings do in every host of one kind, ring by ring: ``forth`` in even hosts, ``back`` in odd."""

    template: HostTemplate
    gpus: tuple[str, ...]
    forth: tuple[LocalRing, ...]
    back: tuple[LocalRing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingStep:
    """One step of a ring: from a GPU to the next, over ``links`` by their full names."""

    a: str
    b: str
    links: tuple[LinkEnds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """A job's rings; none for one rank, which sends nothing.

    ``hosts``: numbers of the hosts in ring order. ``gpus``: by host, its GPUs that hold ranks. ``kinds``: by
    host, the index of its kind in ``host_rings``.
    """

    world_size: int
    hosts: tuple[int, ...]
    gpus: tuple[tuple[str, ...], ...]
    kinds: tuple[int, ...]
    host_rings: tuple[HostRings, ...]
    wiring: Wiring

    @property
    def channels(self) -> int:
        """How many rings there are."""
        return len(self.host_rings[0].forth) if self.host_rings else 0

    def local(self, ring: int, place: int) -> LocalRing:
        """What ring ``ring`` does in the host at ``place`` of ``hosts``."""
        kind = self.host_rings[self.kinds[place]]
        return (kind.back if place % 2 else kind.forth)[ring]

    def order(self, ring: int) -> Iterator[str]:
        """The GPUs of a ring by their full names."""
        for place, host in enumerate(self.hosts):
            for gpu in self.local(ring, place).gpus:
                yield f"host{host}.{gpu}"

    def steps(self, ring: int) -> Iterator[RingStep]:
        """Every step of a ring with the links that it crosses, the last one back to the first GPU."""
        for place, host in enumerate(self.hosts):
            local = self.local(ring, place)
            after = (place + 1) % len(self.hosts)
            inner = local.legs[1:-1] if local.gate else local.legs
            for number, leg in enumerate(inner):
                ends = local.gpus[number], local.gpus[(number + 1) % len(local.gpus)]
                yield RingStep(a=f"host{host}.{ends[0]}", b=f"host{host}.{ends[1]}", links=_full(host, leg))
            if local.gate:
                far, to = self.local(ring, after), self.hosts[after]
                links = (
                    *_full(host, local.legs[-1]),
                    *self.between(ring, place),
                    *_full(to, far.legs[0]),
                )
                yield RingStep(a=f"host{host}.{local.gpus[-1]}", b=f"host{to}.{far.gpus[0]}", links=links)

    def between(self, ring: int, place: int) -> tuple[LinkEnds, ...]:
        """The links of the network that a ring crosses from the host at ``place`` to the next."""
        after = (place + 1) % len(self.hosts)
        out, into = self.local(ring, place).gate, self.local(ring, after).gate
        assert out is not None
        assert into is not None
        return self.wiring.path(f"host{self.hosts[place]}.{out[1]}", f"host{self.hosts[after]}.{into[0]}")


def _full(host: int, route: Route) -> tuple[LinkEnds, ...]:
    return tuple((f"host{host}.{a}", f"host{host}.{b}") for a, b in route)


def rings_of(cluster: Cluster, ranks: Sequence[str] | None = None) -> Rings:
    """The rings of a job with its ranks on ``ranks`` (None: the cluster's placement).

    Raises:
        InputError: ranks that are no GPUs of the cluster, or that no way joins.
    """
    if not isinstance(cluster, Cluster):
        raise InputError(f"cluster: {type(cluster).__name__} is not legal; give a Cluster")
    if ranks is not None:
        check_ranks(cluster, ranks, "ranks")
    ranks = ranks if ranks is not None else cluster.placement
    world_size = cluster.gpu_count if ranks is None else len(ranks)
    if world_size > MAX_RANKS:
        raise InputError(f"world_size: {world_size} ranks are not legal; give {MAX_RANKS} at most")
    placed = by_host(cluster, ranks)
    wiring = wiring_of(cluster)
    hosts = tuple(placed)
    if world_size == 1:
        gpus_of = tuple(placed.values())
        return Rings(world_size=1, hosts=hosts, gpus=gpus_of, kinds=(0,), host_rings=(), wiring=wiring)
    kinds, first = _kinds(cluster, placed, wiring)

    def through(patterns: tuple[Pattern, ...]) -> Rings:
        found = [
            rings_in_host(
                template, gpus, host, wiring, alone=len(hosts) == 1, patterns=patterns, kinds=len(first)
            )
            for host, template, gpus in first
        ]
        if patterns != PATTERNS:
            found = _by_gate(found)
        fewest = min(len(kind.forth) for kind in found)
        return Rings(
            world_size=world_size,
            hosts=hosts,
            gpus=tuple(placed.values()),
            kinds=kinds,
            host_rings=tuple(
                replace(kind, forth=kind.forth[:fewest], back=kind.back[:fewest]) for kind in found
            ),
            wiring=wiring,
        )

    return _on_own_network(through) if cluster.network is None and len(hosts) > 1 else through(PATTERNS)


def _kinds(
    cluster: Cluster, placed: dict[int, tuple[str, ...]], wiring: Wiring
) -> tuple[tuple[int, ...], list[tuple[int, HostTemplate, tuple[str, ...]]]]:
    """Of each host the number of its kind; of each kind the first host, its template and its GPUs.

    With very many kinds, hosts whose NICs differ in width alone take the rings of the first of them.
    """
    owners = cluster.owners()
    keys = {
        host: (owners[host].name, gpus, _widths(owners[host], host, wiring)) for host, gpus in placed.items()
    }
    if len(set(keys.values())) > _MOST_KINDS:
        keys = {
            host: (name, gpus, tuple(min(1.0, width) for width in widths))
            for host, (name, gpus, widths) in keys.items()
        }
    first: dict[tuple[str, tuple[str, ...], tuple[float, ...]], int] = {}
    for host, key in keys.items():
        first.setdefault(key, host)
    numbers = {key: number for number, key in enumerate(first)}
    kinds = tuple(numbers[key] for key in keys.values())
    return kinds, [(host, owners[host], placed[host]) for host in first.values()]


def _on_own_network(through: Callable[[tuple[Pattern, ...]], Rings]) -> Rings:
    """The best rings; if they leave a rail and no link joins the rails, the best that stay on their rails.

    NCCL_CROSS_NIC=0 does so in NCCL, and the user guide asks for it on rails that are networks of their own.
    """
    refused = None
    ways: tuple[tuple[Pattern, ...], ...] = (PATTERNS, ("same",), ("crossed",))
    for patterns in ways:
        try:
            rings = through(patterns)
            for ring in range(rings.channels):
                for place in range(len(rings.hosts)):
                    rings.between(ring, place)
        except InputError as error:
            refused = refused or error
        else:
            return rings
    assert refused is not None
    raise refused


def by_host(cluster: Cluster, ranks: Sequence[str] | None) -> dict[int, tuple[str, ...]]:
    """The GPUs that hold ranks, by host as ``ranks`` first names it, each host's in its own order."""
    owners = cluster.owners()
    if ranks is None:
        return {host: owner.of_kind("gpu") for host, owner in enumerate(owners)}
    used: dict[int, set[str]] = {}
    for name in ranks:
        host, gpu = split_name(name)
        used.setdefault(host, set()).add(gpu)
    order = {template.name: template.of_kind("gpu") for template in cluster.templates}
    return {
        host: tuple(gpu for gpu in order[owners[host].name] if gpu in gpus) for host, gpus in used.items()
    }


def _by_gate(kinds: list[HostRings]) -> list[HostRings]:
    """Each kind with only its rings through gates that all kinds have, in one order; if none, unchanged."""
    counts = [Counter(ring.gate for ring in kind.forth) for kind in kinds]
    common = counts[0]
    for count in counts[1:]:
        common &= count
    if not common:
        return kinds
    sorted_kinds = []
    for kind in kinds:
        places = [
            place
            for gate in common
            for place in [n for n, ring in enumerate(kind.forth) if ring.gate == gate][: common[gate]]
        ]
        forth, back = (tuple(rings[place] for place in places) for rings in (kind.forth, kind.back))
        sorted_kinds.append(replace(kind, forth=forth, back=back))
    return sorted_kinds


def rings_in_host(
    template: HostTemplate,
    gpus: tuple[str, ...],
    host: int,
    wiring: Wiring,
    *,
    alone: bool,
    patterns: tuple[Pattern, ...] = PATTERNS,
    kinds: int = 1,
) -> HostRings:
    """The best rings through ``gpus`` of a host: closed in it if it is ``alone``, else from NIC to NIC.

    Raises ``InputError`` if no way joins them. The searches of all ``kinds`` of hosts share their work.
    """
    if alone:
        closed = _closed(template, gpus)
        if not closed:
            raise InputError(
                f"links: no ring joins {_some(gpus)} of template {template.name!r}; link them, "
                f"directly or over switches and sockets"
            )
        return HostRings(template=template, gpus=gpus, forth=closed, back=closed)
    routes, widths = routes_of(template), _widths(template, host, wiring)
    nics = [nic for nic, width in zip(template.of_kind("nic"), widths, strict=True) if width]
    if not nearest_first(routes, gpus, nics):
        raise InputError(
            f"hosts: host{host} has no NIC in the network that its GPUs reach, and ranks are on other hosts "
            f"too; give its template NICs, and the cluster a network"
        )
    rings = _from_nic_to_nic(template, gpus, widths, patterns, kinds)
    if not rings:
        raise InputError(
            f"links: no way through host{host} joins its NICs and {_some(gpus)}; link them, directly "
            f"or over switches and sockets"
        )
    back = tuple(reverse(routes, ring) for ring in rings)
    return HostRings(template=template, gpus=gpus, forth=rings, back=back)


def _widths(template: HostTemplate, host: int, wiring: Wiring) -> tuple[float, ...]:
    """Bytes/s of each NIC's ports, rounded to three digits, which suffice to choose rings."""
    widths = (wiring.port_bytes_per_s(f"host{host}.{nic}") for nic in template.of_kind("nic"))
    return tuple(float(f"{width:.2e}") for width in widths)


@lru_cache(maxsize=256)
def _closed(template: HostTemplate, gpus: tuple[str, ...]) -> tuple[LocalRing, ...]:
    routes = routes_of(template)
    return tuple(ring for ring, _ in best_rings(routes, gpus, routes.capacity()))


@lru_cache(maxsize=256)
def _from_nic_to_nic(
    template: HostTemplate,
    gpus: tuple[str, ...],
    widths: tuple[float, ...],
    patterns: tuple[Pattern, ...],
    kinds: int,
) -> tuple[LocalRing, ...]:
    """The rings of the best of ``patterns`` (see ``gates_of``), of equals the first."""
    routes = routes_of(template)
    capacity, nics = routes.capacity(), template.of_kind("nic")
    for nic, width in zip(nics, widths, strict=True):
        capacity["", nic] = capacity[nic, ""] = width
    near = nearest_first(routes, gpus, [nic for nic, width in zip(nics, widths, strict=True) if width])
    gates = [gates_of(routes, gpus, near, pattern) for pattern in patterns]
    found = [best_rings(routes, gpus, capacity, each, share=1 / kinds) for each in gates if each]
    best = max((rings for rings in found if rings), key=_worth, default=[])
    return tuple(ring for ring, _ in best)


def _worth(rings: list[tuple[LocalRing, float]]) -> tuple[float, float]:
    """A key for ``max``: bytes/s of all rings together; of equals, fewer links a ring are better."""
    links = sum(sum(uses(ring).values()) for ring, _ in rings)
    return round(sum(speed for _, speed in rings), -3), -links / max(1, len(rings))


def _some(gpus: tuple[str, ...]) -> str:
    """Names of GPUs, the first few of many."""
    few = ", ".join(gpus[:8])
    return f"{few} and {len(gpus) - 8} more" if len(gpus) > 8 else few
