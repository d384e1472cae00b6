"""Where each link of a machine runs, how wide and in which colour."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log10

from app.figures.machine import Machine, Wire
from app.figures.placing import ARC, HEIGHT, Place, Plan
from app.figures.style import ALARM, NEUTRAL
from sim.nouns.cluster import LinkKind

# The same hue for a link and for the switches of its kind; dashes tell apart what stays inside a board.
LINK_COLOURS: dict[LinkKind, str] = {
    "nvlink": "#009E73",
    "pcie": "#CC79A7",
    "c2c": "#E69F00",
    "qpi": "#56B4E9",
    "memory": NEUTRAL,
    "net": "#0072B2",
}
NOT_LOADED = "rgba(128,128,128,0.95)"
_FULL = 0.999  # of the busiest link's time: what is as busy holds the collective up as much
_MANY = 100  # links, which are then drawn thinner


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """A wire as it is drawn: where it runs, how wide, in which colour; ``busy`` of the busiest, 0 to 1."""

    wire: Wire
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    width: float
    colour: str
    busy: float | None


def strands_of(machine: Machine, plan: Plan) -> Iterator[Strand]:
    """Where each wire runs; links of one bar leave it side by side, those within a row go round in an arc."""
    busiest = max((wire.s_per_byte or 0.0 for wire in machine.wires), default=0.0)
    ends = _ends(machine, plan)
    for number, wire in enumerate(machine.wires):
        busy = None if wire.s_per_byte is None else wire.s_per_byte / busiest if busiest else 0.0
        xs, ys = _way(wire, ends[number, wire.a], ends[number, wire.b], plan.places)
        colour = LINK_COLOURS[wire.kind]
        width = width_of(wire.high_bytes_per_s) if busy is None else 1.0 + 5.0 * busy
        width *= 1.0 if len(machine.wires) < _MANY else 0.7
        if busy is not None:
            colour = NOT_LOADED if not busy else ALARM if busy >= _FULL else colour
        yield Strand(wire=wire, xs=xs, ys=ys, width=round(2 * width) / 2, colour=colour, busy=busy)


def width_of(bytes_per_s: float) -> float:
    """Pixels for a bandwidth: 1.5 more for each ten times as much, from 1 at 1 GB/s."""
    return 1.0 + 1.5 * max(0.0, log10(bytes_per_s / 1e9))


def _ends(machine: Machine, plan: Plan) -> dict[tuple[int, str], float]:
    """Where on its two parts each wire ends: on a bar straight above a narrower part, else spread evenly."""
    touching: dict[tuple[str, bool], list[tuple[float, int, float]]] = {}
    for number, wire in enumerate(machine.wires):
        a, b = plan.places[wire.a], plan.places[wire.b]
        touching.setdefault((wire.a, b.y > a.y), []).append((b.x, number, b.width))
        touching.setdefault((wire.b, a.y > b.y), []).append((a.x, number, a.width))
    found: dict[tuple[int, str], float] = {}
    for (name, _), others in touching.items():
        place = plan.places[name]
        slack = 1.0 if place.width > 1.5 else 0.0
        fits = all(
            width <= place.width and place.left - slack <= x <= place.right + slack for x, _, width in others
        )
        for rank, (x, number, _) in enumerate(sorted(others)):
            spread = place.left + place.width * (rank + 0.5) / len(others)
            straight = min(max(x, place.left + 0.1), place.right - 0.1)
            found[number, name] = straight if fits else spread
    return found


def _way(
    wire: Wire, from_x: float, to_x: float, places: dict[str, Place]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    a, b = places[wire.a], places[wire.b]
    if a.y != b.y:
        up = 1 if b.y > a.y else -1
        return (from_x, to_x), (a.y + up * a.height / 2, b.y - up * b.height / 2)
    left, right = (a, b) if a.x < b.x else (b, a)
    if (
        not any(one.y == a.y and left.x < one.x < right.x for one in places.values())
        and wire.kind != "nvlink"
    ):
        return (left.right, right.left), (a.y, a.y)
    side = -1 if wire.kind == "nvlink" else 1
    deep = min(ARC - 0.05, 0.16 * (right.x - left.x)) if side < 0 else 0.3
    steps = [step / 12 for step in range(13)]
    xs = tuple(left.x + (right.x - left.x) * step for step in steps)
    return xs, tuple(a.y + side * (HEIGHT / 2 + deep * 4 * step * (1 - step)) for step in steps)
