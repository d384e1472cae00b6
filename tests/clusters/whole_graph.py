"""A cluster as one graph of all its devices, to which rings and shares are held: they know kinds of hosts."""

from collections.abc import Iterator, Sequence
from math import ceil

import networkx as nx

from sim.clusters.topology.loads import link_loads
from sim.clusters.topology.rings import rings_of
from sim.clusters.topology.routes import add_link, host_graph, routes_of
from sim.clusters.topology.traffic import TRAFFIC
from sim.nouns.cluster import Cluster, Link
from sim.nouns.link_load import LinkLoad


def network_links(cluster: Cluster) -> Iterator[Link]:
    """Every link of the network, once: ports by host, then each leaf's uplinks to all spines."""
    network = cluster.network
    if network is None:
        yield from cluster.links
        return
    leaves: dict[str, None] = {}
    nics = 0
    for host, template in enumerate(cluster.owners()):
        own = template.of_kind("nic")
        nics = max(nics, len(own))
        for number, nic in enumerate(own):
            leaf = f"leaf{host // network.hosts_per_leaf}.{number % network.rails}"
            leaves[leaf] = None
            yield Link(a=f"host{host}.{nic}", b=leaf, kind="net", bytes_per_s=network.bytes_per_s)
    ports = network.hosts_per_leaf * ceil(nics / network.rails)
    uplink = ports * network.bytes_per_s / network.oversubscription / network.spines
    for leaf in leaves if len(leaves) > 1 else ():
        for spine in range(network.spines):
            yield Link(a=leaf, b=f"spine{spine}", kind="net", bytes_per_s=uplink)


def cluster_graph(cluster: Cluster) -> "nx.DiGraph[str]":
    """All of it, node by node: ``host3.gpu0``, ``leaf0.1``, ``spine0``."""
    whole: nx.DiGraph[str] = nx.DiGraph()
    for host, template in enumerate(cluster.owners()):
        one = host_graph(template)
        names = {device: f"host{host}.{device}" for device in one}
        whole.add_nodes_from((names[device], kind) for device, kind in one.nodes(data=True))
        whole.add_edges_from((names[a], names[b], edge) for a, b, edge in one.edges(data=True))
    for link in network_links(cluster):
        for end in (link.a, link.b):
            if end not in whole:
                whole.add_node(end, kind="switch")
        add_link(whole, link)
    whole.add_nodes_from((switch for switch in cluster.switches if switch not in whole), kind="switch")
    return whole


def every_load(
    cluster: Cluster, ranks: Sequence[str] | None = None, algorithm: str = "ring"
) -> tuple[LinkLoad, ...]:
    """What an all-reduce puts on each link, those inside hosts too."""
    traffic = TRAFFIC[algorithm](rings_of(cluster, ranks))
    within = [
        LinkLoad(
            a=f"host{host}.{a}",
            b=f"host{host}.{b}",
            bytes_per_s=routes_of(kind.template).bytes_per_s((a, b)),
            share=traffic.part * crossed,
        )
        for kind in traffic.within
        for (a, b), crossed in kind.times.items()
        for host in kind.hosts
    ]
    return (*within, *link_loads(cluster, ranks, algorithm))
