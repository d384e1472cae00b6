"""One host as a networkx graph."""

import networkx as nx

from sim.nouns.cluster import HostTemplate, Link

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
