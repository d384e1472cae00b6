"""Rings through the GPUs of one host: the order with the best bottleneck, and how many fit side by side.

The search is NCCL's (src/graph/search.cc, ncclTopoCompute). Speeds are tried, the highest first. At each a
depth-first search looks for an order in which every link can carry the ring as often as it is crossed, then
for a further ring in what is left. Up to eight GPUs the search for one ring is complete; beyond, it gives up
after a number of steps. Of many speeds only some are tried, and the work of all searches together is bounded.
If that work is spent, rings run at a speed at which any order fits, from each GPU to the nearest not yet
passed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import networkx as nx

from sim.clusters.topology.routes import LinkEnds, Route, Routes

MAX_RINGS = 64  # MAXCHANNELS of NCCL 2.23 (src/include/device.h)
_STEPS = 20_000  # more than the 13,700 ways into which orders of eight GPUs branch
_MOST_CROSSINGS = 16  # of one link by one ring, in the speeds that are tried
_MOST_SORTED = 16  # GPUs up to which the search looks at what is left before each step
_MOST_SPEEDS = 64  # speeds that are tried; NCCL has lists of 13
_MOST_LOOKS = 6_000_000  # GPUs that one search for rings looks at: that takes seconds
_SORTING = 10  # a look at a GPU counts so many times if it also looks at what is left of links
_ROUNDING = 1e-9

Gate = tuple[str, str]  # the NICs through which a ring comes into a host and leaves it


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRing:
    """One ring's way through one host: ``gpus`` in order, between ``gate`` (None: the ring closes here).

    ``legs`` are the links of each step: from GPU to GPU and, with a gate, from the first NIC to the first GPU
    and from the last GPU to the last NIC.
    """

    gpus: tuple[str, ...]
    gate: Gate | None
    legs: tuple[Route, ...]


def local_ring(routes: Routes, gpus: Sequence[str], gate: Gate | None) -> LocalRing:
    """A ring in the order given. Raises ``InputError`` where a step has no way."""
    stops = [gate[0], *gpus, gate[1]] if gate else [*gpus, gpus[0]]
    legs = tuple(routes.needed(a, b) for a, b in pairwise(stops))
    return LocalRing(gpus=tuple(gpus), gate=gate, legs=legs)


def reverse(routes: Routes, ring: LocalRing) -> LocalRing:
    """The ring in the opposite direction, its gate too."""
    gate = (ring.gate[1], ring.gate[0]) if ring.gate else None
    return local_ring(routes, ring.gpus[::-1], gate)


def bottleneck(ring: LocalRing, capacity: dict[LinkEnds, float]) -> float:
    """Bytes/s that a ring gets alone: the least, over its links, of capacity over times crossed."""
    return min(capacity[link] / times for link, times in uses(ring).items())


def uses(ring: LocalRing) -> dict[LinkEnds, int]:
    """How often a ring crosses each link."""
    return Counter(chain.from_iterable(ring.legs))


def ports(gate: Gate) -> Route:
    """The ports of a gate as links: from "", which stands for the network, to a NIC, and from a NIC to ""."""
    return ("", gate[0]), (gate[1], "")


def best_rings(
    routes: Routes,
    gpus: Sequence[str],
    capacity: dict[LinkEnds, float],
    gates: Sequence[Gate] = (),
    *,
    share: float = 1.0,
) -> list[tuple[LocalRing, float]]:
    """Rings side by side, each with its bytes/s, whose speeds have the greatest sum; of equals, the fewest.

    Args:
        routes: those of the host.
        gpus: the GPUs that every ring passes; without gates at least two.
        capacity: bytes/s of each link of the host, and of each NIC's ports under ``ports``.
        gates: the gates through which rings may come in and leave; empty: they close within the host.
        share: the share of ``_MOST_LOOKS`` that this search may use.
    """
    ways = _ways(routes, gpus, gates)
    limit = _cut(routes, gpus, gates, capacity, ways)
    budget = _Budget(share)
    best: list[tuple[LocalRing, float]] = []
    for speed in _thinned(
        [each for each in _speeds(gpus, capacity, ways) if each <= limit * (1 + _ROUNDING)]
    ):
        rings = _pack(routes, gpus, gates, capacity, speed, budget)
        best = _better(best, rings, capacity)
        full = sum(each for _, each in best) >= limit * (1 - _ROUNDING)
        if full or len(rings) >= MAX_RINGS or budget.looks < 0:
            break
    if budget.looks < 0 or not best:
        # A link is in each step once at most: at this speed any order fits.
        slowest = min((capacity[link] for link in ways), default=0.0) / (len(gpus) + 1)
        best = _better(best, _pack(routes, gpus, gates, capacity, slowest, _Budget(share)), capacity)
    return best


def _better(
    best: list[tuple[LocalRing, float]], rings: list[LocalRing], capacity: dict[LinkEnds, float]
) -> list[tuple[LocalRing, float]]:
    """Of two packings the one that carries more, of equals ``best``; all ``rings`` get the same bytes/s."""
    if not rings:
        return best
    times: Counter[LinkEnds] = Counter()
    for ring in rings:
        times.update(chain(*ring.legs, ports(ring.gate) if ring.gate else ()))
    pace = min(capacity[link] / crossed for link, crossed in times.items())
    if len(rings) * pace > sum(each for _, each in best) * (1 + _ROUNDING):
        return [(ring, pace) for ring in rings]
    return best


def _ways(routes: Routes, gpus: Sequence[str], gates: Sequence[Gate]) -> set[LinkEnds]:
    """All links that a ring may cross, ports among them."""
    pairs = [(a, b) for a in gpus for b in gpus if a != b]
    for came, leaves in gates:
        pairs += [(came, gpu) for gpu in gpus]
        pairs += [(gpu, leaves) for gpu in gpus]
    links = {link for pair in pairs for link in routes.route(*pair) or ()}
    return links | {port for gate in gates for port in ports(gate)}


def _speeds(gpus: Sequence[str], capacity: dict[LinkEnds, float], ways: set[LinkEnds]) -> list[float]:
    """All bytes/s that a bottleneck can have: a link's over a number of crossings; the highest first."""
    most = min(len(gpus) + 1, _MOST_CROSSINGS)
    widths = {capacity[link] for link in ways}
    return sorted({width / times for width in widths for times in range(1, most + 1)}, reverse=True)


def _thinned(speeds: list[float]) -> list[float]:
    """At most ``_MOST_SPEEDS`` of the speeds, evenly by their logarithm, with the first and the last."""
    if len(speeds) <= _MOST_SPEEDS:
        return speeds
    step = (speeds[-1] / speeds[0]) ** (1 / (_MOST_SPEEDS - 1))
    kept: list[float] = []
    for speed in speeds:
        if speed <= speeds[0] * step ** len(kept) * (1 + _ROUNDING):
            kept.append(speed)
    return kept


def _cut(
    routes: Routes,
    gpus: Sequence[str],
    gates: Sequence[Gate],
    capacity: dict[LinkEnds, float],
    ways: set[LinkEnds],
) -> float:
    """Bytes/s that all rings together cannot exceed.

    It is the least of what each GPU can send, and of each link that alone joins two parts of the host.
    """
    sends = dict.fromkeys(gpus, 0.0)
    for a, b in ways:
        if a in sends:  # routes do not lead through GPUs: what leaves one is its own
            sends[a] += capacity[a, b]
    limit = min(sends.values())
    if gates:
        limit = min(limit, sum(capacity[port] for port in {ports(gate)[1] for gate in gates}))
    joined: nx.Graph[str] = nx.Graph(link for link in ways if "" not in link)
    for bridge in list(nx.bridges(joined)):
        a, b = tuple(bridge)
        joined.remove_edge(a, b)
        side = nx.node_connected_component(joined, a)
        joined.add_edge(a, b)
        if any(gpu in side for gpu in gpus) and any(gpu not in side for gpu in gpus):
            limit = min(limit, capacity[a, b], capacity[b, a])
    return limit


def _pack(
    routes: Routes,
    gpus: Sequence[str],
    gates: Sequence[Gate],
    capacity: dict[LinkEnds, float],
    speed: float,
    budget: "_Budget",
) -> list[LocalRing]:
    """As many rings of one speed as are found, gate after gate."""
    left = dict(capacity)
    rings: list[LocalRing] = []
    open_gates: list[Gate | None] = list(gates) or [None]
    while open_gates and len(rings) < MAX_RINGS and budget.looks >= 0:
        for gate in tuple(open_gates):
            order = _Search(routes, gpus, left, speed, budget).order(gate)
            if order is None:
                open_gates.remove(gate)
                continue
            ring = local_ring(routes, order, gate)
            for link, times in uses(ring).items():
                left[link] -= speed * times
            for port in ports(gate) if gate else ():
                left[port] -= speed
            rings.append(ring)
    return rings


class _Budget:
    """The work that is left for all searches together, in GPUs that they may still look at."""

    def __init__(self, share: float) -> None:
        self.looks = int(_MOST_LOOKS * share)


class _Search:
    """One depth-first search for an order at one speed, in what is left of the links."""

    def __init__(
        self,
        routes: Routes,
        gpus: Sequence[str],
        left: dict[LinkEnds, float],
        speed: float,
        budget: _Budget,
    ) -> None:
        self._routes = routes
        self._gpus = tuple(gpus)
        self._left = left
        self._need = speed * (1 - _ROUNDING)
        self._speed = speed
        self._steps = _STEPS
        self._budget = budget

    def order(self, gate: Gate | None) -> tuple[str, ...] | None:
        """GPUs in the order of a ring that fits, None where none was found; ``left`` is as it was."""
        if gate is None:
            return self._on(self._gpus[:1], frozenset(self._gpus[1:]), self._gpus[0])
        if not self._fits(ports(gate)):
            return None
        near = self._routes.nearest
        firsts = [gpu for gpu in near(gate[0], self._gpus) if self._fits(self._routes.route(gate[0], gpu))]
        lasts = [gpu for gpu in near(gate[1], self._gpus) if self._fits(self._routes.route(gpu, gate[1]))]
        for first in firsts:
            for last in lasts:
                if self._is_spent():
                    return None
                if (first == last) == (len(self._gpus) == 1):
                    found = self._between(first, last, gate)
                    if found is not None:
                        return found
        return None

    def _between(self, first: str, last: str, gate: Gate) -> tuple[str, ...] | None:
        """An order from GPU ``first`` to ``last``, which take the steps to and from the NICs."""
        into, out = self._routes.needed(gate[0], first), self._routes.needed(last, gate[1])
        if first == last:
            return (first,)
        self._take(into + out, self._speed)
        found = self._on((first,), frozenset(self._gpus) - {first, last}, last)
        self._take(into + out, -self._speed)
        return (*found, last) if found else None

    def _on(self, done: tuple[str, ...], todo: frozenset[str], end: str) -> tuple[str, ...] | None:
        here = done[-1]
        if not todo:
            return done if self._fits(self._routes.route(here, end)) else None
        self._budget.looks -= len(self._gpus) if len(self._gpus) > _MOST_SORTED else _SORTING * len(todo)
        for after in self._next(here, todo):
            self._steps -= 1
            if self._is_spent():
                return None
            route = self._routes.route(here, after)
            if route is None or not self._fits(route):
                continue
            self._take(route, self._speed)
            found = self._on((*done, after), todo - {after}, end)
            self._take(route, -self._speed)
            if found is not None:
                return found
        return None

    def _is_spent(self) -> bool:
        return self._steps < 0 or self._budget.looks < 0

    def _next(self, here: str, todo: frozenset[str]) -> list[str]:
        """``todo``: those nearest to ``here`` first, then by bandwidth left, then in the host's order."""
        if len(self._gpus) > _MOST_SORTED:
            return [gpu for gpu in self._routes.nearest(here, self._gpus) if gpu in todo]

        def rank(gpu: str) -> tuple[int, float]:
            route = self._routes.route(here, gpu)
            return (len(route), -min(self._left[link] for link in route)) if route else (1 << 30, 0.0)

        return sorted((gpu for gpu in self._gpus if gpu in todo), key=rank)

    def _fits(self, route: Route | None) -> bool:
        if route is None:
            return False
        for link in route:  # noqa: SIM110 - all() takes twice as long, and this is most of a search
            if self._left[link] < self._need:
                return False
        return True

    def _take(self, route: Route, speed: float) -> None:
        for link in route:
            self._left[link] -= speed
