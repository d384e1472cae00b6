"""A cluster as one graph of all its devices, to which rings and shares are held: they know kinds of hosts."""

import networkx as nx

from sim.clusters.topology.graph import add_link, host_graph
from sim.clusters.topology.network import network_links
from sim.nouns.cluster import Cluster


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
