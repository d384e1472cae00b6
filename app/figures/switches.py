"""The switches of a cluster as they are drawn: one by one where they are few, else so many as one."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from sim.nouns.cluster import Cluster, HostTemplate, Link, LinkKind, Network, split_name

MAX_LEAVES = 16  # of one group of hosts, drawn one by one
MAX_SPINES = 8
MAX_GROUPS = 4  # groups of hosts that share their leaves, drawn one by one
MAX_OWN = 24  # of one tier of a network of one's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Hosts ``first`` up to, not including, ``end`` of one template."""

    template: HostTemplate
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A switch that is drawn, ``count`` of them as one; ``level`` counts tiers from the NICs up."""

    name: str
    label: str
    count: int
    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """``alike`` links, each ``count`` side by side, between the parts or whatever stands for them."""

    a: str
    b: str
    kind: LinkKind = "net"
    bytes_per_s: float
    latency_ns: int
    count: int = 1
    alike: int = 1


class Switches(Protocol):
    """What a picture asks of a network."""

    drawn: tuple[Switch, ...]

    def cuts(self) -> set[int]:
        """Hosts before which a box of hosts must end, so that its links go to one place."""

    def drawn_as(self, name: str) -> str | None:
        """What stands for the switch of that name."""

    def ports(self, segment: Segment) -> Iterator[Cable]:
        """Links from the NICs of hosts of one template; ``a`` is the NIC in the first of them."""

    def uplinks(self) -> Iterator[Cable]:
        """Links between switches."""


def cable_of(link: Link, a: str, b: str) -> Cable:
    """A link between what its ends are called in the picture."""
    return Cable(
        a=a, b=b, kind=link.kind, bytes_per_s=link.bytes_per_s, latency_ns=link.latency_ns, count=link.count
    )


def segments_of(cluster: Cluster) -> list[Segment]:
    """The hosts of ``cluster`` by template, in order."""
    by_name = {template.name: template for template in cluster.templates}
    found, first = [], 0
    for group in cluster.hosts:
        found.append(Segment(template=by_name[group.template], first=first, end=first + group.count))
        first += group.count
    return found


def _joined(first: str, last: str, count: int) -> str:
    return first if count == 1 else f"{first} … {last}"


class Tree:
    """The regular network of two tiers; by arithmetic, so that any number of hosts costs the same."""

    def __init__(self, cluster: Cluster, network: Network, detailed: Iterable[int]) -> None:
        self._network = network
        self._segments = segments_of(cluster)
        self._share = network.hosts_per_leaf
        groups = -(-cluster.host_count // self._share)
        self._single = {host // self._share for host in detailed}
        if groups <= MAX_GROUPS:
            self._single |= set(range(groups))
        self._apart = {group for group in self._single if self._rails(group) <= MAX_LEAVES}
        most = max(len(template.of_kind("nic")) for template in cluster.templates)
        ports = self._share * -(-most // network.rails)
        self._uplink = ports * network.bytes_per_s / network.oversubscription / network.spines
        self._leaves = list(self._leaf_switches(groups))
        self.drawn = (*self._leaves, *self._spines())

    def _rails(self, group: int) -> int:
        """How many leaves a group of hosts has."""
        low, high = group * self._share, (group + 1) * self._share
        nics = [
            len(one.template.of_kind("nic")) for one in self._segments if one.first < high and one.end > low
        ]
        return min(self._network.rails, max(nics))

    def _leaf_switches(self, groups: int) -> Iterator[Switch]:
        for group in sorted(self._single):
            rails = self._rails(group)
            if group in self._apart:
                for rail in range(rails):
                    name = f"leaf{group}.{rail}"
                    yield Switch(name=name, label=name, count=1, level=1)
            else:
                label = _joined(f"leaf{group}.0", f"leaf{group}.{rails - 1}", rails)
                yield Switch(name=f"leaf{group}", label=label, count=rails, level=1)
        rest = sum(
            self._rails(group) if len(self._segments) > 1 else self._rails(0)
            for group in range(groups)
            if group not in self._single
        )
        if rest:
            yield Switch(name="leaves", label=f"{rest:,} more leaves", count=rest, level=1)

    def _spines(self) -> Iterator[Switch]:
        if sum(leaf.count for leaf in self._leaves) < 2:
            return
        spines = self._network.spines
        if spines <= MAX_SPINES:
            for spine in range(spines):
                yield Switch(name=f"spine{spine}", label=f"spine{spine}", count=1, level=2)
        else:
            yield Switch(name="spine", label=f"spine0 … spine{spines - 1}", count=spines, level=2)

    def cuts(self) -> set[int]:
        """Where the groups of hosts that are drawn by themselves begin and end."""
        return {edge * self._share for group in self._single for edge in (group, group + 1)}

    def _leaf(self, group: int, rail: int) -> str:
        if group in self._apart:
            return f"leaf{group}.{rail}"
        return f"leaf{group}" if group in self._single else "leaves"

    def drawn_as(self, name: str) -> str | None:
        """By the names that the network itself gives: ``leaf3.0``, ``spine1``."""
        if name.startswith("leaf"):
            group, _, rail = name[4:].partition(".")
            return self._leaf(int(group), int(rail)) if group.isdecimal() and rail.isdecimal() else None
        return name if self._network.spines <= MAX_SPINES else "spine"

    def ports(self, segment: Segment) -> Iterator[Cable]:
        """Each NIC of the template hangs on its rail."""
        group = segment.first // self._share
        for number, nic in enumerate(segment.template.of_kind("nic")):
            leaf = self._leaf(group, number % self._network.rails)
            yield Cable(
                a=f"host{segment.first}.{nic}",
                b=leaf,
                bytes_per_s=self._network.bytes_per_s,
                latency_ns=self._network.latency_ns or 0,
                alike=segment.end - segment.first,
            )

    def uplinks(self) -> Iterator[Cable]:
        """From each leaf to each spine."""
        for leaf in self._leaves:
            for spine in self.drawn[len(self._leaves) :]:
                yield Cable(
                    a=leaf.name,
                    b=spine.name,
                    bytes_per_s=self._uplink,
                    latency_ns=self._network.switch_latency_ns,
                    alike=leaf.count * spine.count,
                )


class Own:
    """A network of one's own: tiers by how many links a switch is from the nearest NIC."""

    def __init__(self, cluster: Cluster) -> None:
        self._links = cluster.links
        levels = _levels(cluster)
        by_level: dict[int, list[str]] = {}
        for name in cluster.switches:
            by_level.setdefault(levels[name], []).append(name)
        self._place: dict[str, str] = {}
        drawn = []
        for level, names in sorted(by_level.items()):
            if len(names) <= MAX_OWN:
                drawn += [Switch(name=name, label=name, count=1, level=level) for name in names]
                self._place |= {name: name for name in names}
            else:
                label = f"{names[0]} … {names[-1]}"
                drawn.append(Switch(name=f"tier.{level}", label=label, count=len(names), level=level))
                self._place |= dict.fromkeys(names, f"tier.{level}")
        self.drawn = tuple(drawn)

    def cuts(self) -> set[int]:
        """None: hosts may be plugged in anywhere."""
        return set()

    def drawn_as(self, name: str) -> str | None:
        """By the cluster's own names."""
        return self._place.get(name)

    def ports(self, segment: Segment) -> Iterator[Cable]:
        """Links between a NIC of these hosts and a switch, or the NIC of a host further on."""
        for link in self._links:
            for here, there in ((link.a, link.b), (link.b, link.a)):
                if here in self._place or (there not in self._place and here == link.b):
                    continue  # a link between two NICs is told by its first
                if segment.first <= split_name(here)[0] < segment.end:
                    yield cable_of(link, here, self._place.get(there, there))

    def uplinks(self) -> Iterator[Cable]:
        """Links between switches."""
        for link in self._links:
            if link.a in self._place and link.b in self._place:
                yield cable_of(link, self._place[link.a], self._place[link.b])


def switches_of(cluster: Cluster, detailed: Iterable[int]) -> Switches:
    """The switches of ``cluster``, with those of the detailed hosts one by one."""
    return Own(cluster) if cluster.network is None else Tree(cluster, cluster.network, detailed)


def _levels(cluster: Cluster) -> dict[str, int]:
    """The tier of each switch; that of what no NIC reaches is 1."""
    beside: dict[str, list[str]] = {name: [] for name in cluster.switches}
    levels: dict[str, int] = {}
    for link in cluster.links:
        for here, there in ((link.a, link.b), (link.b, link.a)):
            if here in beside and there in beside:
                beside[here].append(there)
            elif here in beside:
                levels[here] = 1
    queue = deque(levels)
    while queue:
        here = queue.popleft()
        for there in beside[here]:
            if there not in levels:
                levels[there] = levels[here] + 1
                queue.append(there)
    return {name: levels.get(name, 1) for name in cluster.switches}
