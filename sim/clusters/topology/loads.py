"""How many bytes one all-reduce puts on each link between hosts, in each direction."""

import re
from collections.abc import Sequence
from dataclasses import replace

from sim.clusters.topology.rings import rings_of
from sim.clusters.topology.traffic import TRAFFIC
from sim.nouns.checks import one_of
from sim.nouns.cluster import Cluster
from sim.nouns.link_load import LinkLoad

NAMED_HOSTS = 64  # with more, links alike are one with a count


def link_loads(
    cluster: Cluster, ranks: Sequence[str] | None = None, algorithm: str = "ring"
) -> tuple[LinkLoad, ...]:
    """Bytes over each link between hosts, in each direction, per byte of the message of one all-reduce.

    The link that is busy longest comes first; on one host there is none. Up to 64 hosts each link has its own
    name; beyond, links alike are one with a count.

    Args:
        cluster: the machine.
        ranks: the GPU of each rank (None: the cluster's placement).
        algorithm: ``ring`` or ``tree``.

    Raises:
        InputError: ranks that are no GPUs or that no way joins, or an algorithm that has no loads.
    """
    one_of("algorithm", algorithm, TRAFFIC)
    rings = rings_of(cluster, ranks)
    traffic = TRAFFIC[algorithm](rings)
    found = [
        LinkLoad(a=a, b=b, bytes_per_s=traffic.wiring.bytes_per_s((a, b)), share=traffic.part * crossed)
        for (a, b), crossed in traffic.between.items()
    ]
    if len(rings.hosts) > NAMED_HOSTS:
        found = _together(found)
    return tuple(sorted(found, key=lambda load: (-load.s_per_byte, load.a, load.b)))


def _together(loads: Sequence[LinkLoad]) -> list[LinkLoad]:
    """Links of one kind, rate and load merged into one with a count, under the name of the first."""
    alike: dict[tuple[str, str, float, float], LinkLoad] = {}
    for load in loads:
        key = re.sub(r"\d+", "#", load.a), re.sub(r"\d+", "#", load.b), load.bytes_per_s, load.share
        first = alike.get(key)
        alike[key] = load if first is None else replace(first, count=first.count + load.count)
    return list(alike.values())
