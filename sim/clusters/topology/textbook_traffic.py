"""What textbook all-reduces put on links: hierarchical, and recursive halving and doubling."""

from collections.abc import Callable
from dataclasses import dataclass

from sim.clusters.topology.packing import uses
from sim.clusters.topology.rings import Rings, rings_in_host
from sim.clusters.topology.routes import LinkEnds
from sim.clusters.topology.sends import Sends
from sim.clusters.topology.traffic import HostTraffic, Traffic
from sim.errors import NotModelledError


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Steps one after the other, ``across`` hosts or within them; ``traffic`` is that of all of them."""

    steps: int
    across: bool
    traffic: Traffic


def hierarchical(rings: Rings) -> list[Phase]:
    """Reduce-scatter and all-gather in each host, and between them rings of the parts between hosts.

    Rank k of a host sends its part to rank k of the next (Cho et al. 2019, BlueConnect,
    proceedings.mlsys.org/paper_files/paper/2019). Raises ``NotModelledError`` for hosts with different
    numbers of ranks.
    """
    local, hosts = len(rings.gpus[0]), len(rings.hosts)
    counts = sorted({len(gpus) for gpus in rings.gpus})
    if len(counts) > 1:
        raise NotModelledError(
            f"algorithm: hierarchical is not modelled on hosts with {counts[0]} to {counts[-1]} ranks; put "
            f"as many on each, or use ring or tree"
        )
    phases = []
    if local > 1:
        within = []
        for number, kind in enumerate(rings.host_rings):
            places = [place for place, which in enumerate(rings.kinds) if which == number]
            closed = rings_in_host(kind.template, kind.gpus, rings.hosts[places[0]], rings.wiring, alone=True)
            times: dict[LinkEnds, float] = {}
            for ring in closed.forth:
                for link, crossed in uses(ring).items():
                    times[link] = times.get(link, 0) + crossed / len(closed.forth)
            hosts_alike = tuple(rings.hosts[place] for place in places)
            within.append(HostTraffic(hosts=hosts_alike, template=kind.template, times=times))
        part = 2 * (local - 1) / local
        traffic = Traffic(part=part, within=tuple(within), between={}, wiring=rings.wiring)
        phases.append(Phase(steps=2 * (local - 1), across=False, traffic=traffic))
    if hosts > 1:
        sends = Sends(rings)
        for place in range(hosts):
            for number in range(local):
                sends.send((place, number), ((place + 1) % hosts, number), 2 * (hosts - 1) / hosts / local)
        phases.append(Phase(steps=2 * (hosts - 1), across=True, traffic=sends.traffic()))
    return phases


def halving_doubling(rings: Rings) -> list[Phase]:
    """Partners at distance 1 exchange half, at distance 2 a quarter, and so on; then the same back.

    Ranks beyond a power of two give all to a neighbour first and get the result last (Thakur, Rabenseifner,
    Gropp 2005, 3.1, doi:10.1177/1094342005051521). Ranks are numbered host by host.
    """
    ranks = [(place, number) for place, gpus in enumerate(rings.gpus) for number in range(len(gpus))]
    core = 1 << (len(ranks).bit_length() - 1)
    beyond = len(ranks) - core
    rounds: list[list[tuple[int, int, float]]] = []
    if beyond:
        evens = range(0, 2 * beyond, 2)
        rounds.append([(a, b, 1.0) for even in evens for a, b in ((even, even + 1), (even + 1, even))])
    real = [2 * number + 1 if number < beyond else number + beyond for number in range(core)]
    distance = 1
    while distance < core:
        # Once on the way to halves and once on the way back.
        rounds.append([(real[number], real[number ^ distance], 1 / distance) for number in range(core)])
        distance *= 2
    phases = []
    for each in rounds:
        sends = Sends(rings)
        for a, b, share in each:
            sends.send(ranks[a], ranks[b], share)
        phases.append(Phase(steps=2, across=sends.across, traffic=sends.traffic()))
    return phases


TEXTBOOK: dict[str, Callable[[Rings], list[Phase]]] = {
    "hierarchical": hierarchical,
    "halving_doubling": halving_doubling,
}
