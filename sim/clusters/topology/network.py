"""The network between hosts: which links lie between two NICs, and what each carries."""

from itertools import pairwise
from typing import Protocol

import networkx as nx

from sim.errors import InputError
from sim.nouns.cluster import Cluster, Network

LinkEnds = tuple[str, str]


class Wiring(Protocol):
    """What rings ask of a network. NICs and switches have full names: ``host3.nic0``, ``leaf0.1``."""

    def path(self, a: str, b: str) -> tuple[LinkEnds, ...]:
        """The links, in order and direction, from NIC ``a`` to NIC ``b``. Raises ``InputError``."""

    def bytes_per_s(self, link: LinkEnds) -> float:
        """What a link carries in that direction."""

    def port_bytes_per_s(self, nic: str) -> float:
        """What a NIC's own ports carry each way; 0 where it is plugged into nothing."""

    def latency_ns(self, path: tuple[LinkEnds, ...]) -> int:
        """ns that a path takes one way beyond what NCCL's own table already contains, which is one switch."""


def wiring_of(cluster: Cluster) -> Wiring:
    """The network of ``cluster``."""
    return FatTree(cluster, cluster.network) if cluster.network is not None else OwnNetwork(cluster)


class FatTree:
    """Leaves and spines. Paths are computed when they are asked for, without a graph of all hosts."""

    def __init__(self, cluster: Cluster, network: Network) -> None:
        self._network = network
        self._owners = cluster.owners()
        self._index = {
            template.name: {nic: number for number, nic in enumerate(template.of_kind("nic"))}
            for template in cluster.templates
        }
        nics = max(len(self._index[template.name]) for template in cluster.templates)
        ports = network.hosts_per_leaf * -(-nics // network.rails)
        self._uplink = ports * network.bytes_per_s / network.oversubscription / network.spines

    def _place(self, nic: str) -> tuple[int, int]:
        """Group of hosts and number within the host of a NIC."""
        host, _, device = nic.partition(".")
        number = int(host[4:])
        return number // self._network.hosts_per_leaf, self._index[self._owners[number].name][device]

    def _leaf(self, group: int, nic: int) -> str:
        return f"leaf{group}.{nic % self._network.rails}"

    def path(self, a: str, b: str) -> tuple[LinkEnds, ...]:
        """The path over one leaf, or up to the spine of the sender's NIC and down."""
        (group_a, nic_a), (group_b, nic_b) = self._place(a), self._place(b)
        leaf_a, leaf_b = self._leaf(group_a, nic_a), self._leaf(group_b, nic_b)
        if leaf_a == leaf_b:
            return (a, leaf_a), (leaf_b, b)
        spine = f"spine{nic_a % self._network.spines}"
        return (a, leaf_a), (leaf_a, spine), (spine, leaf_b), (leaf_b, b)

    def bytes_per_s(self, link: LinkEnds) -> float:
        """The rate of a port, or of an uplink between a leaf and one spine."""
        is_port = link[0].startswith("host") or link[1].startswith("host")
        return self._network.bytes_per_s if is_port else self._uplink

    def port_bytes_per_s(self, nic: str) -> float:
        """The rate of a port, the same for all NICs."""
        return self._network.bytes_per_s

    def latency_ns(self, path: tuple[LinkEnds, ...]) -> int:
        """The latency that the driver tells, plus that of each switch after the first."""
        return (self._network.latency_ns or 0) + (len(path) - 2) * self._network.switch_latency_ns


class OwnNetwork:
    """Switches and links as they are listed; the way with the least latency, then the fewest links."""

    def __init__(self, cluster: Cluster) -> None:
        self._graph: nx.DiGraph[str] = nx.DiGraph()
        self._switches = frozenset(cluster.switches)
        self._paths: dict[LinkEnds, tuple[LinkEnds, ...]] = {}
        for link in cluster.links:
            for ends in ((link.a, link.b), (link.b, link.a)):
                width = link.bytes_per_s * link.count
                if self._graph.has_edge(*ends):
                    self._graph.edges[ends]["bytes_per_s"] += width
                else:
                    # Each link adds 1, so that of ways with the same latency the one with fewest links wins.
                    weight = (link.latency_ns << 20) + 1
                    self._graph.add_edge(*ends, bytes_per_s=width, latency_ns=link.latency_ns, weight=weight)
        self._between_switches = self._graph.subgraph(self._switches).copy()
        self._ways: dict[LinkEnds, tuple[int, tuple[str, ...]]] = {}

    def path(self, a: str, b: str) -> tuple[LinkEnds, ...]:
        """The link between the two, or the best way over switches."""
        if (a, b) not in self._paths:
            self._paths[a, b] = self._search(a, b)
        return self._paths[a, b]

    def _search(self, a: str, b: str) -> tuple[LinkEnds, ...]:
        ways: list[tuple[int, tuple[str, ...]]] = []
        if self._graph.has_edge(a, b):
            ways.append((self._graph.edges[a, b]["weight"], (a, b)))
        for first in self._switches_at(a):
            for last in self._switches_at(b):
                weight, way = self._between(first, last)
                if way:
                    ends = self._graph.edges[a, first]["weight"] + self._graph.edges[last, b]["weight"]
                    ways.append((weight + ends, (a, *way, b)))
        if not ways:
            raise InputError(f"links: no way from {a!r} to {b!r}; link them over switches")
        return tuple(pairwise(min(ways, key=lambda each: each[0])[1]))

    def _switches_at(self, nic: str) -> list[str]:
        return [switch for switch in self._graph.adj.get(nic, ()) if switch in self._switches]

    def _between(self, first: str, last: str) -> tuple[int, tuple[str, ...]]:
        """The weight of the best way between two switches, and its switches; none where there is no way."""
        if (first, last) not in self._ways:
            try:
                weight, way = nx.bidirectional_dijkstra(self._between_switches, first, last)
                self._ways[first, last] = int(weight), tuple(way)
            except nx.NetworkXNoPath:
                self._ways[first, last] = 0, ()
        return self._ways[first, last]

    def bytes_per_s(self, link: LinkEnds) -> float:
        """The rate of all parallel links together."""
        return float(self._graph.edges[link]["bytes_per_s"])

    def port_bytes_per_s(self, nic: str) -> float:
        """The rate of all links of the NIC together."""
        if nic not in self._graph:
            return 0.0
        return float(sum(edge["bytes_per_s"] for _, _, edge in self._graph.out_edges(nic, data=True)))

    def latency_ns(self, path: tuple[LinkEnds, ...]) -> int:
        """The sum over the links of the path."""
        return sum(int(self._graph.edges[link]["latency_ns"]) for link in path)
