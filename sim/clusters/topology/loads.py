"""How many bytes one all-reduce puts on each link, in each direction."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import cast

from sim.clusters.topology.nvls_traffic import nvls_traffic, nvls_tree_traffic
from sim.clusters.topology.rings import Rings, rings_of
from sim.clusters.topology.routes import routes_of
from sim.clusters.topology.textbook_traffic import TEXTBOOK
from sim.clusters.topology.traffic import TRAFFIC, Traffic, merged
from sim.nouns.checks import one_of
from sim.nouns.cluster import Cluster, LinkKind
from sim.nouns.link_load import LinkLoad

NVLS: dict[str, Callable[[Rings], Traffic]] = {"nvls": nvls_traffic, "nvls_tree": nvls_tree_traffic}
LOADS = (*TRAFFIC, *NVLS, *TEXTBOOK)
NAMED_HOSTS = 64  # with more, links alike are one with a count


def link_loads(
    cluster: Cluster, ranks: Sequence[str] | None = None, algorithm: str = "ring"
) -> tuple[LinkLoad, ...]:
    """Bytes over each link, in each direction, per byte of the message of one all-reduce.

    The link that is busy longest comes first. Up to 64 hosts each link has its own name; beyond, links alike
    are one with a count.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank (None: the cluster's placement).
        algorithm: ``ring``, ``tree``, ``nvls``, ``nvls_tree``, ``hierarchical`` or ``halving_doubling``.

    Raises:
        InputError: ranks that are no GPUs or that no way joins, or an algorithm that is not known.
        NotModelledError: an algorithm that is not for these ranks.
    """
    one_of("algorithm", algorithm, LOADS)
    rings = rings_of(cluster, ranks)
    if not rings.channels:
        return ()
    named = len(rings.hosts) <= NAMED_HOSTS
    found = _each(_traffic(rings, algorithm), named)
    return tuple(
        sorted(found if named else _together(found), key=lambda load: (-load.s_per_byte, load.a, load.b))
    )


def _traffic(rings: Rings, algorithm: str) -> Traffic:
    if algorithm in TEXTBOOK:
        return merged([phase.traffic for phase in TEXTBOOK[algorithm](rings)])
    return {**TRAFFIC, **NVLS}[algorithm](rings)


def _each(traffic: Traffic, named: bool) -> Iterable[LinkLoad]:
    for kind in traffic.within:
        graph = routes_of(kind.template).graph
        for (a, b), crossed in kind.times.items():
            edge = graph.edges[a, b]
            for host in kind.hosts if named else kind.hosts[:1]:
                yield LinkLoad(
                    a=f"host{host}.{a}",
                    b=f"host{host}.{b}",
                    kind=cast(LinkKind, edge["kind"]),
                    bytes_per_s=float(edge["bytes_per_s"]),
                    share=traffic.part * crossed,
                    count=1 if named else len(kind.hosts),
                )
    for (a, b), crossed in traffic.between.items():
        width = traffic.wiring.bytes_per_s((a, b))
        yield LinkLoad(a=a, b=b, kind="net", bytes_per_s=width, share=traffic.part * crossed)


def _together(loads: Iterable[LinkLoad]) -> list[LinkLoad]:
    """Links of one kind, rate and load merged into one with a count, under the name of the first."""
    alike: dict[tuple[str, str, float, float], LinkLoad] = {}
    for load in loads:
        key = _kind_of(load.a), _kind_of(load.b), load.bytes_per_s, load.share
        first = alike.get(key)
        alike[key] = load if first is None else replace(first, count=first.count + load.count)
    return list(alike.values())


def _kind_of(name: str) -> str:
    return re.sub(r"\d+", "#", name)
