"""The rings of a job: which GPUs in which order, over which links, at any size of cluster.

Within a host the order is the one with the best bottleneck (``packing``). Hosts follow one another as the
ranks first name them, as in NCCL. Hosts of one template with ranks on the same GPUs and NICs plugged in
alike are of one kind, which is searched once. A ring leaves a host by a NIC and comes into the next by the
NIC of the same number. Where that serves better it comes in by one and leaves by its neighbour, and every
other host runs backwards, so that each step between hosts stays on its rail (NCCL_CROSS_NIC=2 of NCCL's user
guide).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sim.costs.topology.network import Wiring, wiring_of
from sim.costs.topology.packing import Gate, LocalRing, best_rings, reverse, uses
from sim.costs.topology.routes import LinkEnds, Route, Routes, routes_of
from sim.errors import InputError
from sim.nouns.cluster import Cluster, HostTemplate, check_ranks, split_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRings:
    """What the rings do in every host of one kind, ring by ring: ``forth`` in even hosts, ``back`` in odd."""

    template: HostTemplate
    gpus: tuple[str, ...]
    forth: tuple[LocalRing, ...]
    back: tuple[LocalRing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a ring: from a GPU to the next, over ``links`` by their full names."""

    a: str
    b: str
    links: tuple[LinkEnds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """A job's rings. ``hosts`` in ring order, of ``kinds`` the number in ``host_rings``.

    One rank has no rings: there is nothing to send.
    """

    world_size: int
    hosts: tuple[int, ...]
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

    def steps(self, ring: int) -> Iterator[Step]:
        """Every step of a ring with the links that it crosses, the last one back to the first GPU."""
        for place, host in enumerate(self.hosts):
            local = self.local(ring, place)
            after = (place + 1) % len(self.hosts)
            inner = local.legs[1:-1] if local.gate else local.legs
            for number, leg in enumerate(inner):
                ends = local.gpus[number], local.gpus[(number + 1) % len(local.gpus)]
                yield Step(a=f"host{host}.{ends[0]}", b=f"host{host}.{ends[1]}", links=_full(host, leg))
            if local.gate:
                far, to = self.local(ring, after), self.hosts[after]
                links = (
                    *_full(host, local.legs[-1]),
                    *self.between(ring, place),
                    *_full(to, far.legs[0]),
                )
                yield Step(a=f"host{host}.{local.gpus[-1]}", b=f"host{to}.{far.gpus[0]}", links=links)

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
    if ranks is not None:
        check_ranks(cluster, tuple(ranks), "ranks")
    placed = by_host(cluster, ranks if ranks is not None else cluster.placement)
    world_size = sum(map(len, placed.values()))
    wiring = wiring_of(cluster)
    hosts = tuple(placed)
    if world_size == 1:
        return Rings(world_size=1, hosts=hosts, kinds=(0,), host_rings=(), wiring=wiring)
    owners = cluster.owners()
    nics = {template.name: template.of_kind("nic") for template in cluster.templates}
    numbers: dict[tuple[str, tuple[str, ...], tuple[float, ...]], int] = {}
    found: list[HostRings] = []
    kinds = []
    for host, gpus in placed.items():
        ports = tuple(wiring.port_bytes_per_s(f"host{host}.{nic}") for nic in nics[owners[host].name])
        key = owners[host].name, gpus, ports
        if key not in numbers:
            numbers[key] = len(found)
            found.append(_host_rings(owners[host], gpus, host, wiring, alone=len(hosts) == 1))
        kinds.append(numbers[key])
    fewest = min(len(kind.forth) for kind in found)
    return Rings(
        world_size=world_size,
        hosts=hosts,
        kinds=tuple(kinds),
        host_rings=tuple(_only(kind, fewest) for kind in found),
        wiring=wiring,
    )


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


def _only(kind: HostRings, count: int) -> HostRings:
    return HostRings(template=kind.template, gpus=kind.gpus, forth=kind.forth[:count], back=kind.back[:count])


def _host_rings(
    template: HostTemplate, gpus: tuple[str, ...], host: int, wiring: Wiring, *, alone: bool
) -> HostRings:
    routes = routes_of(template)
    capacity = {(a, b): float(edge["bytes_per_s"]) for a, b, edge in routes.graph.edges(data=True)}
    if alone:
        rings = [ring for ring, _ in best_rings(routes, gpus, capacity)]
        if not rings:
            raise InputError(
                f"links: no ring joins {', '.join(gpus)} of template {template.name!r}; link them, "
                f"directly or over switches and sockets"
            )
        return HostRings(template=template, gpus=gpus, forth=tuple(rings), back=tuple(rings))
    for nic in template.of_kind("nic"):
        width = wiring.port_bytes_per_s(f"host{host}.{nic}")
        capacity["", nic] = capacity[nic, ""] = width
    nics = _nearest_first(routes, gpus, [nic for nic in template.of_kind("nic") if capacity[nic, ""]])
    if not nics:
        raise InputError(
            f"hosts: host{host} has no NIC in the network that its GPUs reach, and ranks are on other hosts "
            f"too; give its template NICs, and the cluster a network"
        )
    best = max((best_rings(routes, gpus, capacity, gates) for gates in _gates(nics)), key=_worth)
    if not best:
        raise InputError(
            f"links: no way through host{host} joins its NICs and {', '.join(gpus)}; link them, directly "
            f"or over switches and sockets"
        )
    rings = [ring for ring, _ in best]
    return HostRings(
        template=template,
        gpus=gpus,
        forth=tuple(rings),
        back=tuple(reverse(routes, ring) for ring in rings),
    )


def _worth(rings: list[tuple[LocalRing, float]]) -> tuple[float, float]:
    """More bytes/s in all; of equals, fewer links for each."""
    links = sum(sum(uses(ring).values()) for ring, _ in rings)
    return round(sum(speed for _, speed in rings), -3), -links / max(1, len(rings))


def _gates(nics: list[str]) -> list[list[Gate]]:
    """In and out by the same NIC; or, of two neighbours, in by one and out by the other."""
    same = [(nic, nic) for nic in nics]
    if len(nics) == 1:
        return [same]
    crossed = []
    for place in range(0, len(nics) - 1, 2):
        one, other = nics[place : place + 2]
        crossed += [(one, other), (other, one)]
    return [same, crossed + same[len(nics) // 2 * 2 :]]


def _nearest_first(routes: Routes, gpus: tuple[str, ...], nics: list[str]) -> list[str]:
    """NICs that any of ``gpus`` reaches, by the number of links to the nearest."""
    hops = {
        nic: min((len(route) for gpu in gpus if (route := routes.route(gpu, nic))), default=0) for nic in nics
    }
    return sorted((nic for nic in nics if hops[nic]), key=hops.__getitem__)
