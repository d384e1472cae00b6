"""Messages from rank to rank, added up by link."""

from sim.clusters.topology.rings import Rings
from sim.clusters.topology.routes import LinkEnds, Route, Routes, routes_of
from sim.clusters.topology.traffic import HostTraffic, Traffic, add
from sim.clusters.topology.trees import by_proxy
from sim.errors import InputError

Door = tuple[str, Route, Route]  # the NIC of a GPU, the way out to it and the way in from it


class Sends:
    """A rank is the place of its host and its number there; to other hosts each goes by its nearest NIC."""

    def __init__(self, rings: Rings) -> None:
        self._rings = rings
        self._routes = [routes_of(kind.template) for kind in rings.host_rings]
        self._doors = [
            _doors(routes, kind.gpus) if len(rings.hosts) > 1 else []
            for routes, kind in zip(self._routes, rings.host_rings, strict=True)
        ]
        self._within: dict[int, dict[LinkEnds, float]] = {}
        self._between: dict[LinkEnds, float] = {}

    @property
    def across(self) -> bool:
        """Whether any went to another host."""
        return bool(self._between)

    def send(self, a: tuple[int, int], b: tuple[int, int], share: float) -> None:
        """``share`` bytes for each byte of the message."""
        rings, (here, number), (there, far) = self._rings, a, b
        within = self._within.setdefault(here, {})
        if here == there:
            gpus = rings.gpus[here]
            add(within, self._routes[rings.kinds[here]].needed(gpus[number], gpus[far]), share)
            return
        nic, out, _ = self._doors[rings.kinds[here]][number]
        other, _, into = self._doors[rings.kinds[there]][far]
        add(within, out, share)
        add(self._within.setdefault(there, {}), into, share)
        path = rings.wiring.path(f"host{rings.hosts[here]}.{nic}", f"host{rings.hosts[there]}.{other}")
        add(self._between, path, share)

    def traffic(self) -> Traffic:
        """All of them; hosts of one kind with the same loads together."""
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, times in self._within.items():
            groups.setdefault((self._rings.kinds[place], *sorted(times.items())), []).append(place)
        within = tuple(
            HostTraffic(
                hosts=tuple(self._rings.hosts[place] for place in places),
                template=self._rings.host_rings[self._rings.kinds[places[0]]].template,
                times=self._within[places[0]],
            )
            for places in groups.values()
        )
        return Traffic(part=1.0, within=within, between=self._between, wiring=self._rings.wiring)


def _doors(routes: Routes, gpus: tuple[str, ...]) -> list[Door]:
    """For each GPU its nearest NIC; GPUs take equals in turn. Raises ``InputError`` if one reaches none."""
    doors, taken = [], dict[str, int]()
    for gpu in gpus:
        found = []
        for nic in routes.template.of_kind("nic"):
            out = by_proxy(routes, gpus, nic, gpu, to=False)
            into = by_proxy(routes, gpus, nic, gpu, to=True)
            if out and into:
                found.append((len(out), taken.get(nic, 0), nic, out, into))
        if not found:
            raise InputError(
                f"hosts: {gpu} of template {routes.template.name!r} reaches no NIC; link it to one"
            )
        _, _, nic, out, into = min(found)
        taken[nic] = taken.get(nic, 0) + 1
        doors.append((nic, out, into))
    return doors
