"""What an all-reduce by NVLS puts on links: NVSwitches reduce, and trees of heads join hosts."""

from sim.clusters.topology.rings import Rings
from sim.clusters.topology.routes import LinkEnds, routes_of
from sim.clusters.topology.sends import Sends
from sim.clusters.topology.traffic import HostTraffic, Traffic, add, merged
from sim.clusters.topology.trees import TREES
from sim.errors import NotModelledError


def nvls_traffic(rings: Rings) -> Traffic:
    """NVLS on one host: every GPU is the head of an equal part (src/transport/nvls.cc of NCCL).

    The switch takes all of a part from every GPU and gives its head the sum; the head writes it once and the
    switch hands it to all. So a GPU sends the message and a part of it, and receives as much.
    """
    if len(rings.hosts) > 1:
        raise NotModelledError(
            f"algorithm: nvls is for one host, or with switches between them that reduce too; these are "
            f"{len(rings.hosts)}, so use nvls_tree"
        )
    return _within(rings)


def nvls_tree_traffic(rings: Rings) -> Traffic:
    """NVLS on several hosts: two binary trees, each with half of a part, join the heads of the same number
    (connectNvls, src/graph/connect.cc of NCCL)."""
    count = len(rings.hosts)
    if count == 1:
        raise NotModelledError("algorithm: nvls_tree is for several hosts; on one use nvls")
    inside = _within(rings)
    heads = min(len(gpus) for gpus in rings.gpus)
    sends = Sends(rings)
    for number in range(count):
        for tree in TREES:
            up = tree(count, number).up
            for head in range(heads if up is not None else 0):
                assert up is not None
                sends.send((number, head), (up, head), 1 / (2 * heads))
                sends.send((up, head), (number, head), 1 / (2 * heads))
    return merged([inside, sends.traffic()])


def _within(rings: Rings) -> Traffic:
    heads = min(len(gpus) for gpus in rings.gpus)
    within = []
    for number, kind in enumerate(rings.host_rings):
        routes = routes_of(kind.template)
        ways = [
            routes.needed(a, b)
            for a, b in zip(kind.gpus, kind.gpus[1:] + kind.gpus[:1], strict=True)
            if a != b
        ]
        if not kind.template.nvls or not ways or any(routes.kind(way) != "nvswitch" for way in ways):
            raise NotModelledError(
                f"algorithm: NVLS takes GPUs on NVSwitches that reduce in flight; template "
                f"{kind.template.name!r} has none between {', '.join(kind.gpus)}"
            )
        times: dict[LinkEnds, float] = {}
        for place, way in enumerate(ways):
            # The way to the next GPU is one up to the switches and one down from them.
            sent = 1 + (1 / heads if place < heads else 0)
            taken = 1 + (1 / heads if (place + 1) % len(ways) < heads else 0)
            add(times, way[:1], sent)
            add(times, way[1:], taken)
        hosts = tuple(host for host, which in zip(rings.hosts, rings.kinds, strict=True) if which == number)
        within.append(HostTraffic(hosts=hosts, template=kind.template, times=times))
    return Traffic(part=1.0, within=tuple(within), between={}, wiring=rings.wiring)
