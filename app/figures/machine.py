"""What a picture of a cluster shows: its parts and links and, where they are too many, how many are alike."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from app.figures.switches import Cable, Segment, Switches, cable_of, segments_of, switches_of
from sim.nouns.cluster import Cluster, DeviceKind, HostTemplate, LinkKind, split_name
from sim.nouns.link_load import LinkLoad

PartKind = DeviceKind | Literal["switch", "hosts"]

MAX_COLUMNS = 81  # side by side, so that 72 GPUs can still be told apart
MAX_INSIDE = 250  # parts of hosts
MAX_BOXES = 24
BUNDLE_COLUMNS = 8  # room for a host whose parts are only counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One thing that is drawn; ``count`` things where it stands for several.

    ``host`` is the number of the host that it is in; None: a switch of the network, or hosts as one.
    ``level`` counts tiers of switches from the NICs up. ``rank`` is that of a GPU; None: it has none.
    """

    name: str
    label: str
    kind: PartKind
    count: int = 1
    host: int | None = None
    level: int = 0
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """``alike`` links between parts ``a`` and ``b``, each ``count`` side by side.

    ``low_bytes_per_s`` to ``high_bytes_per_s`` is what the slowest and the fastest of them carry each way,
    all side by side together. ``s_per_byte`` is how long the busiest is busy for each byte of a message, and
    ``share`` how many bytes cross it; None where no load is known.
    """

    a: str
    b: str
    kind: LinkKind
    count: int
    low_bytes_per_s: float
    high_bytes_per_s: float
    latency_ns: int
    alike: int = 1
    s_per_byte: float | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Hosts drawn as one: a single one with its parts, or several that are only counted."""

    segments: tuple[Segment, ...]
    is_detailed: bool

    @property
    def first(self) -> int:
        """Number of its first host."""
        return self.segments[0].first

    @property
    def count(self) -> int:
        """How many hosts it stands for."""
        return sum(one.end - one.first for one in self.segments)

    @property
    def name(self) -> str:
        """``host3``, or ``host3 … host9``."""
        last = self.segments[-1].end - 1
        return f"host{self.first}" if last == self.first else f"host{self.first} … host{last}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A cluster as it is drawn; boxes stand from left to right."""

    cluster: Cluster
    boxes: tuple[Box, ...]
    parts: tuple[Part, ...]
    wires: tuple[Wire, ...]


def machine_of(cluster: Cluster, loads: Sequence[LinkLoad] | None = None) -> Machine:
    """What is drawn of ``cluster``: all of it, or the first host of each kind and counts of the rest."""
    segments = segments_of(cluster)
    bundled = frozenset(
        one.name
        for one in cluster.templates
        if columns(one) > MAX_COLUMNS - 1 or len(one.devices) > MAX_INSIDE
    )
    detailed = _detailed(segments, bundled)
    switches = switches_of(cluster, detailed)
    boxes = _boxes(segments, detailed, switches.cuts())
    parts: list[Part] = []
    cables: list[Cable] = []
    ranks = _ranks(cluster, segments, detailed)
    stands = _Stands(boxes, bundled, switches)
    for box in boxes:
        if box.is_detailed:
            parts += _inside(box, ranks, bundled)
            template, prefix = box.segments[0].template, f"host{box.first}"
            cables += [cable_of(link, f"{prefix}.{link.a}", f"{prefix}.{link.b}") for link in template.links]
        else:
            parts.append(Part(name=box.name, label=box.name, kind="hosts", count=box.count))
        for segment in box.segments:
            cables += switches.ports(segment)
    parts += [
        Part(name=one.name, label=one.label, kind="switch", count=one.count, level=one.level)
        for one in switches.drawn
    ]
    wires = _merged([*cables, *switches.uplinks()], stands)
    return Machine(
        cluster=cluster,
        boxes=tuple(boxes),
        parts=tuple(parts),
        wires=tuple(wires if loads is None else _loaded(wires, loads, stands, parts)),
    )


def columns(template: HostTemplate) -> int:
    """How many parts of one host stand side by side at most."""
    top = len(template.of_kind("nic")) + len(template.of_kind("memory"))
    return max(top, *(len(template.of_kind(kind)) for kind in ("gpu", "cpu", "nvswitch", "pcie_switch")))


class _Stands:
    """Which part stands for a GPU, NIC or switch."""

    def __init__(self, boxes: Sequence[Box], bundled: frozenset[str], switches: Switches) -> None:
        self._boxes, self._bundled, self._switches = boxes, bundled, switches
        self._firsts = [box.first for box in boxes]
        self._drawn = {one.name for one in switches.drawn}
        self._kinds = {
            box.first: {device.name: device.kind for device in box.segments[0].template.devices}
            for box in boxes
            if box.is_detailed and box.segments[0].template.name in bundled
        }

    def of(self, name: str) -> str | None:
        """By its full name; None: nothing does."""
        if name in self._drawn:
            return name
        if "." in name and name.startswith("host"):
            host, device = split_name(name)
            box = self._boxes[bisect_right(self._firsts, host) - 1]
            if not box.is_detailed:
                return box.name
            return f"host{host}.{self._kinds[host][device] if host in self._kinds else device}"
        return self._switches.drawn_as(name)


def _detailed(segments: Sequence[Segment], bundled: frozenset[str]) -> set[int]:
    """Hosts drawn in detail: all where they fit, else the first of each template while there is room."""

    def room(template: HostTemplate) -> tuple[int, int]:
        wide = BUNDLE_COLUMNS if template.name in bundled else columns(template)
        return wide + 1, 6 if template.name in bundled else len(template.devices)

    rooms = [(room(one.template), one.end - one.first) for one in segments]
    wide, many = (sum(room[axis] * count for room, count in rooms) for axis in (0, 1))
    if wide <= MAX_COLUMNS and many <= MAX_INSIDE:
        return {host for one in segments for host in range(one.first, one.end)}
    chosen: dict[str, int] = {}
    wide = many = 0
    for one in segments:
        more = room(one.template)
        fits = wide + more[0] <= MAX_COLUMNS and many + more[1] <= MAX_INSIDE
        if one.template.name not in chosen and (fits or not chosen):
            chosen[one.template.name] = one.first
            wide, many = wide + more[0], many + more[1]
    return set(chosen.values())


def _boxes(segments: Sequence[Segment], detailed: set[int], cuts: set[int]) -> list[Box]:
    """Detailed hosts one by one, those between them together, cut where their switches are others."""
    edges = cuts | detailed | {host + 1 for host in detailed}
    boxes = []
    for one in segments:
        marks = sorted({one.first, one.end, *(edge for edge in edges if one.first < edge < one.end)})
        for first, end in pairwise(marks):
            boxes.append(Box(segments=(replace(one, first=first, end=end),), is_detailed=first in detailed))
    if len(boxes) - len(detailed) <= MAX_BOXES:
        return boxes
    together: list[Box] = []  # very many kinds in turn: all between two detailed hosts are one box
    for box in boxes:
        if together and not (box.is_detailed or together[-1].is_detailed):
            together[-1] = replace(together[-1], segments=together[-1].segments + box.segments)
        else:
            together.append(box)
    return together


def _ranks(cluster: Cluster, segments: Sequence[Segment], detailed: set[int]) -> dict[str, int]:
    """The rank of each GPU that is drawn and has one."""
    if cluster.placement is not None:
        return {gpu: rank for rank, gpu in enumerate(cluster.placement)}
    ranks: dict[str, int] = {}
    first = 0
    for one in segments:
        gpus = one.template.of_kind("gpu")
        for host in detailed:
            if one.first <= host < one.end:
                start = first + (host - one.first) * len(gpus)
                ranks |= {f"host{host}.{gpu}": start + number for number, gpu in enumerate(gpus)}
        first += (one.end - one.first) * len(gpus)
    return ranks


def _inside(box: Box, ranks: dict[str, int], bundled: frozenset[str]) -> Iterator[Part]:
    """The parts of one host, or one of each kind where they are too many."""
    template, host = box.segments[0].template, box.first
    if template.name not in bundled:
        for device in template.devices:
            name = f"host{host}.{device.name}"
            yield Part(name=name, label=device.name, kind=device.kind, host=host, rank=ranks.get(name))
        return
    for kind in dict.fromkeys(device.kind for device in template.devices):
        names = template.of_kind(kind)
        label = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
        yield Part(name=f"host{host}.{kind}", label=label, kind=kind, count=len(names), host=host)


def _merged(cables: Iterable[Cable], stands: _Stands) -> list[Wire]:
    """One wire for all links of a kind between the same two parts."""
    wires: dict[tuple[str, str, str], Wire] = {}
    for link in cables:
        a, b = stands.of(link.a), stands.of(link.b)
        if a is None or b is None or a == b:
            continue
        width = link.bytes_per_s * link.count
        before = wires.get((a, b, link.kind)) or wires.get((b, a, link.kind))
        if before is None:
            before = Wire(
                a=a,
                b=b,
                kind=link.kind,
                count=link.count,
                low_bytes_per_s=width,
                high_bytes_per_s=width,
                latency_ns=link.latency_ns,
                alike=0,
            )
        wires[before.a, before.b, link.kind] = replace(
            before,
            low_bytes_per_s=min(before.low_bytes_per_s, width),
            high_bytes_per_s=max(before.high_bytes_per_s, width),
            latency_ns=max(before.latency_ns, link.latency_ns),
            alike=before.alike + link.alike,
        )
    return list(wires.values())


def _loaded(
    wires: Sequence[Wire], loads: Iterable[LinkLoad], stands: _Stands, parts: Sequence[Part]
) -> Iterator[Wire]:
    """Each wire with its busiest direction; what is not loaded is busy for no time at all.

    A load that stands for several links is that of every wire between parts of the same kinds that carries as
    much.
    """
    kinds = {part.name: ("nic" if part.kind == "hosts" else part.kind, part.level) for part in parts}
    single: dict[frozenset[str], LinkLoad] = {}
    several: dict[tuple[object, ...], LinkLoad] = {}
    for load in loads:
        a, b = stands.of(load.a), stands.of(load.b)
        if a is None or b is None or a == b:
            continue
        if load.count == 1:
            ends = frozenset((a, b))
            single[ends] = max(single.get(ends, load), load, key=_s_per_byte)
        else:
            sort = frozenset((kinds[a], kinds[b])), load.kind, load.bytes_per_s
            several[sort] = max(several.get(sort, load), load, key=_s_per_byte)
    for wire in wires:
        sort = frozenset((kinds[wire.a], kinds[wire.b])), wire.kind, wire.high_bytes_per_s
        found = single.get(frozenset((wire.a, wire.b))) or several.get(sort)
        if found is None:
            yield replace(wire, s_per_byte=0.0, share=0.0)
        else:
            yield replace(wire, s_per_byte=found.s_per_byte, share=found.share)


def _s_per_byte(load: LinkLoad) -> float:
    return load.s_per_byte
