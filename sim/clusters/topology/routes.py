"""Ways between the GPUs and NICs of one host: the widest, of those the one with the least latency."""

import heapq
import math
from functools import lru_cache
from typing import Literal

import networkx as nx

from sim.errors import InputError
from sim.nouns.cluster import HostTemplate, Link

LinkEnds = tuple[str, str]
Route = tuple[LinkEnds, ...]
StepKind = Literal["nvlink", "nvswitch", "pcie", "shm", "qpi"]

_TRANSIT = ("nvswitch", "pcie_switch", "cpu")  # a way leads through these; GPUs, NICs and memory end it


@lru_cache(maxsize=256)
def routes_of(template: HostTemplate) -> "Routes":
    """The routes of a template, made once."""
    return Routes(template)


class Routes:
    """Ways within one kind of host, found on demand and kept."""

    def __init__(self, template: HostTemplate) -> None:
        self.template = template
        self.graph = host_graph(template)
        self._from: dict[str, dict[str, Route]] = {}
        self._found: dict[LinkEnds, Route | None] = {}
        self._near: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {}
        self._memories = template.of_kind("memory")
        self._nics = frozenset(template.of_kind("nic"))

    def bytes_per_s(self, link: LinkEnds) -> float:
        """What a link of the host carries in that direction."""
        return float(self.graph.edges[link]["bytes_per_s"])

    def capacity(self) -> dict[LinkEnds, float]:
        """Bytes/s of every link of the host, by direction."""
        return {(a, b): float(edge["bytes_per_s"]) for a, b, edge in self.graph.edges(data=True)}

    def route(self, a: str, b: str) -> Route | None:
        """Links from ``a`` to ``b``, None where there is no way.

        Where the host has no peer_to_peer (GPUs) or no gpu_direct (NICs), anything but NVLink goes through
        the memory nearest to the receiver, which is where NCCL's shared buffers are (NCCL_SHM_LOCALITY's
        default, NCCL src/transport/shm.cc).
        """
        if (a, b) not in self._found:
            self._found[a, b] = self._search(a, b)
        return self._found[a, b]

    def _search(self, a: str, b: str) -> Route | None:
        direct = self._direct(a).get(b)
        network = a in self._nics or b in self._nics
        allowed = self.template.gpu_direct if network else self.template.peer_to_peer
        if direct is None or allowed or all(self._kind(link) == "nvlink" for link in direct):
            return direct
        staged = [
            (len(down), first + down)
            for memory in self._memories
            if (first := self._direct(a).get(memory)) and (down := self._direct(memory).get(b))
        ]
        return min(staged)[1] if staged else None

    def needed(self, a: str, b: str) -> Route:
        """As ``route``. Raises ``InputError`` where there is no way."""
        route = self.route(a, b)
        if route is None:
            raise InputError(
                f"links: template {self.template.name!r} has no way from {a!r} to {b!r}; link them, directly "
                f"or over switches and sockets"
            )
        return route

    def nearest(self, here: str, gpus: tuple[str, ...]) -> tuple[str, ...]:
        """``gpus`` by the number of links from ``here``; of equals, the next in a circle."""
        key = here, gpus
        if key not in self._near:
            start = gpus.index(here) if here in gpus else 0
            circle = gpus[start:] + gpus[:start]
            hops = {gpu: len(self.route(here, gpu) or ()) or math.inf for gpu in circle}
            self._near[key] = tuple(sorted(circle, key=hops.__getitem__))
        return self._near[key]

    def kind(self, route: Route) -> StepKind:
        """What NCCL would call a way between GPUs: ``shm``, ``qpi``, ``pcie``, ``nvswitch`` or ``nvlink``."""
        kinds = [self._kind(link) for link in route]
        if "memory" in kinds:
            return "shm"
        if "qpi" in kinds:
            return "qpi"
        if any(kind != "nvlink" for kind in kinds):
            return "pcie"
        return "nvswitch" if len(route) > 1 else "nvlink"

    def latency_ns(self, route: Route) -> int:
        """The sum over the links of the route."""
        return sum(int(self.graph.edges[link]["latency_ns"]) for link in route)

    def _kind(self, link: LinkEnds) -> str:
        return str(self.graph.edges[link]["kind"])

    def _direct(self, source: str) -> dict[str, Route]:
        if source not in self._from:
            self._from[source] = widest_shortest(self.graph, source)
        return self._from[source]


def widest_shortest(graph: "nx.DiGraph[str]", source: str) -> dict[str, Route]:
    """From ``source`` to all that can be reached: widest, then least latency, then fewest links."""
    widths = _widths(graph, source)
    # If the quickest way of all is as wide as the widest, it is the answer; the others are searched below.
    routes = {
        target: route
        for target, route in _shortest(graph, source, 0.0).items()
        if min(graph.edges[link]["bytes_per_s"] for link in route) == widths[target]
    }
    for width in sorted({widths[target] for target in widths if target not in routes}, reverse=True):
        for target, route in _shortest(graph, source, width).items():
            if widths[target] == width:
                routes[target] = route
    return routes


def _goes_on(graph: "nx.DiGraph[str]", node: str, source: str) -> bool:
    return node == source or graph.nodes[node]["kind"] in _TRANSIT


def _widths(graph: "nx.DiGraph[str]", source: str) -> dict[str, float]:
    """The width of the widest way to each node (Dijkstra with the narrowest link in place of the sum)."""
    widths: dict[str, float] = {}
    heap = [(-math.inf, source)]
    while heap:
        width, node = heapq.heappop(heap)
        if node in widths:
            continue
        widths[node] = -width
        if _goes_on(graph, node, source):
            for after, edge in graph.adj[node].items():
                if after not in widths:
                    heapq.heappush(heap, (max(width, -edge["bytes_per_s"]), after))
    del widths[source]
    return widths


def _shortest(graph: "nx.DiGraph[str]", source: str, width: float) -> dict[str, Route]:
    """The quickest way to each node over links of at least ``width``."""
    found: dict[str, Route] = {}
    heap: list[tuple[int, int, str, Route]] = [(0, 0, source, ())]
    while heap:
        latency, hops, node, route = heapq.heappop(heap)
        if node in found:
            continue
        found[node] = route
        if _goes_on(graph, node, source):
            for after, edge in graph.adj[node].items():
                if after not in found and edge["bytes_per_s"] >= width:
                    step = (latency + edge["latency_ns"], hops + 1, after, (*route, (node, after)))
                    heapq.heappush(heap, step)
    del found[source]
    return found


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
