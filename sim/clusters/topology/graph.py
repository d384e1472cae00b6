"""The whole cluster, or one host, as a networkx graph."""

import networkx as nx

from sim.clusters.topology.network import network_links
from sim.nouns.cluster import Cluster, HostTemplate, Link

LinkEnds = tuple[str, str]


def host_graph(template: HostTemplate) -> "nx.DiGraph[str]":
    """One host: its devices as nodes, each link as two edges.

    Nodes have ``kind``; edges have ``kind``, ``bytes_per_s`` (in their direction, of all links side by side)
    and ``latency_ns``. Links of two kinds between the same two devices are added up under the wider's kind.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    for device in template.devices:
        graph.add_node(device.name, kind=device.kind)
    for link in template.links:
        add_link(graph, link)
    return graph


def cluster_graph(cluster: Cluster) -> "nx.DiGraph[str]":
    """All of it, node by node: ``host3.gpu0``, ``leaf0.1``, ``spine0``.

    Rings and shares do not need it: they use what the hosts have in common.
    """
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


def add_link(graph: "nx.DiGraph[str]", link: Link) -> None:
    """Both directions of ``link``, onto what is there already."""
    width = link.bytes_per_s * link.count
    for ends in ((link.a, link.b), (link.b, link.a)):
        known = graph.get_edge_data(*ends)
        if known is None:
            graph.add_edge(*ends, kind=link.kind, bytes_per_s=width, latency_ns=link.latency_ns)
            continue
        if width > known["bytes_per_s"]:
            known["kind"] = link.kind
        known["bytes_per_s"] += width
        known["latency_ns"] = max(known["latency_ns"], link.latency_ns)
