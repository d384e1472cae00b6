"""The gates of a job's rings: the NICs through which a ring comes into a host and leaves it."""

from typing import Literal, get_args

from sim.clusters.topology.packing import Gate
from sim.clusters.topology.routes import Routes

Pattern = Literal["same", "crossed", "spread"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)


def gates_of(routes: Routes, gpus: tuple[str, ...], nics: list[str], pattern: Pattern) -> list[Gate]:
    """The gates of one pattern; empty if another pattern gives the same.

    ``same``: in and out by the same NIC. ``crossed``: of two neighbours, in by one and out by the other.
    ``spread``: like ``crossed``, with two NICs near different GPUs. It is for hosts in which only one GPU
    reaches a NIC: on a ring with other GPUs that one cannot be both the first and the last.
    """
    if pattern == "same":
        return [(nic, nic) for nic in nics]
    if len(nics) == 1:
        return []
    order = nics
    if pattern == "spread":
        if len(gpus) == 1 or all(sum(1 for gpu in gpus if routes.route(gpu, nic)) > 1 for nic in nics):
            return []
        order = _in_turn(routes, gpus, nics)
    gates = []
    for place in range(0, len(order) - 1, 2):
        one, other = order[place : place + 2]
        gates += [(one, other), (other, one)]
    return gates + [(nic, nic) for nic in order[len(order) // 2 * 2 :]]


def nearest_first(routes: Routes, gpus: tuple[str, ...], nics: list[str]) -> list[str]:
    """NICs that any of ``gpus`` reaches, by the number of links to the nearest."""
    hops = {
        nic: min((len(route) for gpu in gpus if (route := routes.route(gpu, nic))), default=0) for nic in nics
    }
    return sorted((nic for nic in nics if hops[nic]), key=hops.__getitem__)


def _in_turn(routes: Routes, gpus: tuple[str, ...], nics: list[str]) -> list[str]:
    """One NIC of each group of nearest GPUs, then the second of each, and so on."""
    turns: dict[str, int] = {}
    groups: dict[frozenset[str], int] = {}
    for nic in nics:
        hops = {gpu: len(route) for gpu in gpus if (route := routes.route(gpu, nic))}
        near = frozenset(gpu for gpu in hops if hops[gpu] == min(hops.values()))
        turns[nic] = groups.get(near, 0)
        groups[near] = turns[nic] + 1
    return sorted(nics, key=turns.__getitem__)
