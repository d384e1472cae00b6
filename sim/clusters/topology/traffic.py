"""How often one all-reduce crosses links: within hosts, which are grouped where alike, and between them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sim.clusters.topology.network import Wiring
from sim.clusters.topology.rings import Rings
from sim.clusters.topology.routes import LinkEnds, Route, routes_of
from sim.clusters.topology.trees import TREES, Chain, TreePlace, chain_of
from sim.nouns.cluster import HostTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """Hosts in which the same links are crossed equally often; ``times``: how often each link is crossed."""

    hosts: tuple[int, ...]
    template: HostTemplate
    times: dict[LinkEnds, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """``part`` bytes cross a link for each byte of the message, as many times as ``within`` and ``between``
    say."""

    part: float
    within: tuple[HostTraffic, ...]
    between: dict[LinkEnds, float]
    wiring: Wiring


def ring_traffic(rings: Rings) -> Traffic:
    """Rings: each channel has an equal part of the message; a step of a ring carries 2 (n - 1) / n of it."""
    places: dict[tuple[int, int], list[int]] = {}
    for place, kind in enumerate(rings.kinds):
        places.setdefault((kind, place % 2), []).append(place)
    within = []
    for (kind, _), alike in places.items() if rings.channels else ():
        times: dict[LinkEnds, float] = {}
        for ring in range(rings.channels):
            for leg in rings.local(ring, alike[0]).legs:
                add(times, leg)
        hosts = tuple(rings.hosts[place] for place in alike)
        within.append(HostTraffic(hosts=hosts, template=rings.host_rings[kind].template, times=times))
    between: dict[LinkEnds, float] = {}
    for ring in range(rings.channels):
        for place in range(len(rings.hosts) if len(rings.hosts) > 1 else 0):
            add(between, rings.between(ring, place))
    part = 2 * (rings.world_size - 1) / rings.world_size / max(1, rings.channels)
    return Traffic(part=part, within=tuple(within), between=between, wiring=rings.wiring)


def tree_traffic(rings: Rings) -> Traffic:
    """Trees: each channel has two; every edge carries half of the channel's part up, and again down."""
    chains = [[chain_of(routes_of(kind.template), ring) for ring in kind.forth] for kind in rings.host_rings]
    count = len(rings.hosts)
    places = [tuple(tree(count, number) for tree in TREES) for number in range(count)]
    alike: dict[tuple[int, tuple[tuple[bool, bool, bool], ...]], list[int]] = {}
    for number, kind in enumerate(rings.kinds if rings.channels else ()):
        alike.setdefault((kind, tuple(place.role for place in places[number])), []).append(number)
    within = []
    for (kind, roles), numbers in alike.items():
        times: dict[LinkEnds, float] = {}
        for chain in chains[kind]:
            for role in roles:
                for way in chain.edges(role):
                    add(times, way)
        hosts = tuple(rings.hosts[number] for number in numbers)
        within.append(HostTraffic(hosts=hosts, template=rings.host_rings[kind].template, times=times))
    between = _tree_edges(rings, chains, places) if rings.channels else {}
    part = 1 / (2 * max(1, rings.channels))
    return Traffic(part=part, within=tuple(within), between=between, wiring=rings.wiring)


def _tree_edges(
    rings: Rings, chains: list[list[Chain]], places: list[tuple[TreePlace, ...]]
) -> dict[LinkEnds, float]:
    between: dict[LinkEnds, float] = {}
    for number, both in enumerate(places):
        for place in both:
            if place.up is None:
                continue
            mine, theirs = chains[rings.kinds[number]], chains[rings.kinds[place.up]]
            for one, other in zip(mine, theirs, strict=True):
                a, b = f"host{rings.hosts[number]}.{one.nic}", f"host{rings.hosts[place.up]}.{other.nic}"
                add(between, rings.wiring.path(a, b))
                add(between, rings.wiring.path(b, a))
    return between


def add(times: dict[LinkEnds, float], way: Route | Sequence[LinkEnds]) -> None:
    """Add a crossing of every link of ``way`` to ``times``."""
    for link in way:
        times[link] = times.get(link, 0) + 1


def hosts_alike(traffic: Sequence[Traffic]) -> dict[tuple[tuple[int, int], ...], list[int]]:
    """Hosts that are used alike, by their uses: pairs of a place in ``traffic`` and one in its ``within``."""
    used: dict[int, list[tuple[int, int]]] = {}
    for number, each in enumerate(traffic):
        for kind, alike in enumerate(each.within):
            for host in alike.hosts:
                used.setdefault(host, []).append((number, kind))
    alike_hosts: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for host, uses_of_host in used.items():
        alike_hosts.setdefault(tuple(uses_of_host), []).append(host)
    return alike_hosts


def busiest_s_per_byte(traffic: Traffic) -> float:
    """How long the busiest link is busy for each byte of the message."""
    longest = 0.0
    for kind in traffic.within:
        routes = routes_of(kind.template)
        for link, times in kind.times.items():
            longest = max(longest, times / routes.bytes_per_s(link))
    for link, times in traffic.between.items():
        longest = max(longest, times / traffic.wiring.bytes_per_s(link))
    return longest * traffic.part


TRAFFIC: dict[str, Callable[[Rings], Traffic]] = {"ring": ring_traffic, "tree": tree_traffic}
