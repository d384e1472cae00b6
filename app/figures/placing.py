"""Where each part of a machine is drawn: tiers from the spines down to the GPUs, hosts from left to right."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.figures.machine import BUNDLE_COLUMNS, Box, Machine, Part, PartKind, columns
from app.figures.machine_words import KIND_WORDS

HEIGHT = 0.42  # of a part, where rows are 1 apart
WIDTH = 0.8  # of a part, where columns are 1 apart
ARC = 0.7  # how far an arc of links between GPUs goes below them at most
BOX_COLUMNS = 5.0  # of hosts that are only counted
_GAP = 1.0  # between hosts
Beside = dict[str, list[str]]  # the parts that a part is linked with
# From the bottom up; memory is in the row of the NICs.
_ROWS: tuple[PartKind, ...] = ("nvswitch", "gpu", "pcie_switch", "cpu", "nic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A rectangle by its centre."""

    x: float
    y: float
    width: float
    height: float = HEIGHT

    @property
    def left(self) -> float:
        """Where it begins."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Places by the name of a part; boxes around hosts by the number of their first; names of rows by y."""

    places: dict[str, Place]
    boxes: dict[int, Place]
    rows: dict[float, str]
    width: float
    top: float
    bottom: float


def plan_of(machine: Machine) -> Plan:
    """The places of all parts; the same machine is always drawn alike."""
    inside = [part for part in machine.parts if part.host is not None]
    beside: Beside = {}
    for wire in machine.wires:
        beside.setdefault(wire.a, []).append(wire.b)
        beside.setdefault(wire.b, []).append(wire.a)
    has_arcs = _has_arcs(machine, inside)
    rows = _rows(inside, has_arcs)
    floor = -HEIGHT - (ARC if has_arcs and "nvswitch" not in rows else 0.0)
    ceiling = max(rows.values()) + HEIGHT
    places: dict[str, Place] = {}
    boxes: dict[int, Place] = {}
    left = 0.0
    for box in machine.boxes:
        own = [part for part in inside if part.host == box.first] if box.is_detailed else []
        wide = _width(box, own)
        middle, height = (floor + ceiling) / 2, ceiling - floor
        boxes[box.first] = Place(x=left + wide / 2, y=middle, width=wide + 0.3, height=height + 0.1)
        if box.is_detailed:
            places |= _host(own, rows, beside, left, wide)
        else:
            places[box.name] = boxes[box.first]
        left += wide + _GAP
    kinds = {part.kind for part in inside}
    names = {y: KIND_WORDS[kind] for kind, y in rows.items()}
    if "memory" in kinds:
        names[rows["nic"]] = "NICs, memory" if "nic" in kinds else "memory"
    width = left - _GAP
    switches = [part for part in machine.parts if part.kind == "switch"]
    for level in sorted({part.level for part in switches}):
        y = ceiling + 0.35 + 1.15 * level
        tier = [part for part in switches if part.level == level]
        places |= _tier(tier, beside, places, y, width)
        names[y] = "switches" if machine.cluster.network is None else ("leaves", "spines")[level - 1]
    top = max((place.y for place in places.values()), default=ceiling) + 0.4
    return Plan(
        places=places, boxes=boxes, rows=names, width=width, top=max(top, ceiling + 0.2), bottom=floor - 0.5
    )


def _rows(inside: Sequence[Part], has_arcs: bool) -> dict[PartKind, float]:
    """The height of each kind's row, of those that there are."""
    kinds = {"nic" if part.kind == "memory" else part.kind for part in inside}
    rows: dict[PartKind, float] = {}
    y = 0.0
    for kind in _ROWS:
        if kind not in kinds:
            continue
        rows[kind] = y
        y += 1.0
        y += ARC if kind == "nvswitch" and has_arcs else 0.0
    return rows


def _has_arcs(machine: Machine, inside: Sequence[Part]) -> bool:
    """Whether GPUs are linked with each other: their links are drawn as arcs below them."""
    gpus = {part.name for part in inside if part.kind == "gpu"}
    return any(wire.a in gpus and wire.b in gpus for wire in machine.wires)


def _width(box: Box, own: Sequence[Part]) -> float:
    if not box.is_detailed:
        return BOX_COLUMNS
    if any(part.count > 1 for part in own):
        return BUNDLE_COLUMNS
    return max(2.0, columns(box.segments[0].template))


def _host(
    own: Sequence[Part], rows: dict[PartKind, float], beside: Beside, left: float, wide: float
) -> dict[str, Place]:
    """GPUs in their order; each other part above what it is linked with."""
    places: dict[str, Place] = {}
    flat: tuple[PartKind, ...] = ("gpu", "nvswitch")
    for kind in flat:
        row = [part for part in own if part.kind == kind]
        each = wide / max(len(row), 1)
        bar = WIDTH if kind == "gpu" and not _counted(row) else each - (1 - WIDTH)
        for number, part in enumerate(row):
            places[part.name] = Place(x=left + each * (number + 0.5), y=rows[kind], width=bar)
    above: tuple[PartKind, ...] = ("pcie_switch", "cpu", "nic")
    for kind in above:
        row = [part for part in own if part.kind == kind or (kind == "nic" and part.kind == "memory")]
        wished = {part.name: _wish(part, beside, places, left + wide / 2) for part in row}
        gap = max(1.0, wide / len(row)) if _counted(row) else 1.0
        middles = apart(list(wished.values()), gap, left + gap / 2, left + wide - gap / 2)
        for part, x in zip(row, middles, strict=True):
            below = [places[name].x for name in beside.get(part.name, ()) if name in places]
            span = max(below) - min(below) if below and kind == "pcie_switch" else 0.0
            places[part.name] = Place(x=x, y=rows[kind], width=gap - 1 + WIDTH + span)
    return places


def _counted(row: Sequence[Part]) -> bool:
    return any(part.count > 1 for part in row)


def _wish(part: Part, beside: Beside, places: dict[str, Place], otherwise: float) -> float:
    """The middle of the parts that it is linked with and that have their places."""
    found = [places[name].x for name in beside.get(part.name, ()) if name in places]
    return sum(found) / len(found) if found else otherwise


def _tier(
    tier: Sequence[Part], beside: Beside, places: dict[str, Place], y: float, width: float
) -> dict[str, Place]:
    """Switches as bars: each above what it is linked with, and as wide as the tier has room for."""
    wished = [_wish(part, beside, places, width / 2) for part in tier]
    each = width / len(tier)
    if len(tier) == 1:
        return {tier[0].name: Place(x=width / 2, y=y, width=width)}
    found = apart(wished, each, each / 2, width - each / 2)
    return {
        part.name: Place(x=x, y=y, width=max(each - 0.6, 0.86 * each))
        for part, x in zip(tier, found, strict=True)
    }


def apart(wished: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places at least ``gap`` apart, in the order given or by wish, nearest to the wished by least squares.

    They are kept from ``low`` to ``high`` where these leave room. The answer is in the order of ``wished``.
    """
    order = sorted(range(len(wished)), key=lambda number: (wished[number], number))
    blocks: list[tuple[float, int]] = []  # the sum of (wish - offset), and how many are in the block
    for offset, number in enumerate(order):
        total, count = wished[number] - offset * gap, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before = blocks.pop()
            total, count = total + before[0], count + before[1]
        blocks.append((total, count))
    most = max(low, high - (len(wished) - 1) * gap)
    starts = [min(max(total / count, low), most) for total, count in blocks for _ in range(count)]
    found = [0.0] * len(wished)
    for offset, number in enumerate(order):
        found[number] = starts[offset] + offset * gap
    return found
