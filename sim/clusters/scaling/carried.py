"""A machine's hardware with the fabric of its curves, and its all-reduces at either end of their range."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from sim.clusters.nccl.fabric import Fabric
from sim.clusters.nccl.model import choose
from sim.nouns.hardware import CURVES, SCALARS, Curve, CurvePoint, Hardware
from sim.units import divide_half_even

Source = Literal["computed", "measured"]
End = Literal["min_ns", "max_ns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The hardware of a machine, and whether its curves were computed from ``fabric`` or measured."""

    fabric: Fabric
    hardware: Hardware
    source: Source

    def method(self, num_bytes: int) -> str | None:
        """What NCCL chooses for an all-reduce of so many bytes ("ring Simple").

        None with one rank, and where the curve was measured, which does not say.
        """
        chosen = None if self.source != "computed" else choose(self.fabric, "all_reduce", num_bytes)
        return None if chosen is None else str(chosen)


def at_end(hardware: Hardware, end: End) -> Hardware:
    """``hardware`` with its whole all-reduce curve at one end of its range (``spread``).

    Points without a range are sure and stay. Of a point beyond the last sure one, only the time by which it
    exceeds that one is scaled, so that the curve does not jump there.
    """
    known = hardware.spread.get("all_reduce") or {}
    ends: list[int | None] = [known.get(str(point.num_bytes), {}).get(end) for point in hardware.all_reduce]
    last_sure = max((at for at, end_ns in enumerate(ends) if end_ns is None), default=-1)
    sure_ns = 0 if last_sure < 0 else hardware.all_reduce[last_sure].duration_ns
    made = []
    for at, (point, end_ns) in enumerate(zip(hardware.all_reduce, ends, strict=True)):
        rise = point.duration_ns - sure_ns
        if end_ns is not None and at > last_sure and rise >= 0 < point.duration_ns:
            end_ns = sure_ns + divide_half_even(rise * end_ns, point.duration_ns)
        made.append(point if end_ns is None else replace(point, duration_ns=end_ns))
    return with_curve(hardware, tuple(made))


def with_curve(hardware: Hardware, curve: Curve) -> Hardware:
    """``hardware`` with another all-reduce curve, of which no range is known."""
    spread = {
        name: known
        for name, known in hardware.spread.items()
        if name not in ("all_reduce", "readings", "ranges")
    }
    return replace(hardware, all_reduce=curve, spread=spread | _ranges(hardware, without=("all_reduce",)))


def _ranges(hardware: Hardware, without: Sequence[str]) -> dict[str, Any]:
    kept = {name: ends for name, ends in hardware.spread.get("ranges", {}).items() if name not in without}
    return {"ranges": kept} if kept else {}


def with_local(hardware: Hardware, local: Hardware | None) -> Hardware:
    """``hardware`` with all that is no curve (copies, launches, slow-downs) as in ``local``."""
    if local is None:
        return hardware
    curves: dict[str, Any] = {name: hardware.curve(name) for name in CURVES}
    spread = {name: known for name, known in local.spread.items() if name not in (*CURVES, "readings")}
    own, others = _ranges(local, without=CURVES), _ranges(hardware, without=SCALARS)
    ranges = own.get("ranges", {}) | others.get("ranges", {})
    return replace(
        local,
        name=hardware.name,
        world_size=hardware.world_size,
        **curves,
        spread={**spread, **hardware.spread, **({"ranges": ranges} if ranges else {})},
        provenance={**hardware.provenance, "local": local.name},
        extensions={},
    )


def shifted(curve: Curve, by_ns: int) -> Curve:
    """``curve`` with every all-reduce so much longer; none below 0."""
    return tuple(
        CurvePoint(num_bytes=point.num_bytes, duration_ns=max(0, point.duration_ns + by_ns))
        for point in curve
    )
