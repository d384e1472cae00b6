"""What a sweep goes over: caps and what-ifs, checked before anything is simulated."""

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from numbers import Real
from typing import Any, TypeVar

from sim.costs.what_if import check_factor, check_precision, check_ranks, scale
from sim.errors import InputError
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.units import cap_bytes

Value = TypeVar("Value", bound=Hashable)

WHAT_IFS = ("world_size", "precision", "bandwidth", "latency", "backward")


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What-ifs that hold together: what ``scale`` is called with. None is what was recorded or measured."""

    world_size: int | None = None
    precision: str | None = None
    bandwidth: float = 1.0
    latency: float = 1.0
    backward: float = 1.0

    @property
    def of_workload(self) -> "Point":
        """What of it changes the workload alone."""
        return Point(precision=self.precision, backward=self.backward)

    @property
    def of_machine(self) -> "Point":
        """What of it changes the hardware alone."""
        return Point(world_size=self.world_size, bandwidth=self.bandwidth, latency=self.latency)

    def applied(self, workload: Workload, hardware: Hardware) -> tuple[Workload, Hardware]:
        """Workload and hardware under these what-ifs."""
        return scale(workload, hardware, **asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All candidates of a sweep: each of ``points`` with DDP's default (None) and each cap in MiB."""

    caps_mb: tuple[float | None, ...]
    points: tuple[Point, ...]


def make_grid(
    workload: Workload,
    hardware: Hardware,
    caps_mb: Sequence[float],
    *,
    bandwidth: Sequence[float],
    latency: Sequence[float],
    backward: Sequence[float],
    world_size: Sequence[int] | None,
    precision: Sequence[str | None] | None,
    max_rows: int,
) -> Grid:
    """The product of all axes, in their order; caps last.

    Raises:
        InputError: an axis that is empty, a value of it that is not legal or occurs twice, or more candidates
            than ``max_rows``.
    """
    caps = _axis("caps_mb", caps_mb, _cap, may_be_empty=True)

    def ranks(value: Any) -> int:
        try:
            number = operator.index(value)
        except TypeError:
            number = value
        check_ranks(hardware.world_size, number)
        return number

    def dtype(value: str | None) -> str | None:
        if value is not None:
            check_precision(workload, value)
        return value

    axes: dict[str, list[Any]] = {
        "world_size": [None] if world_size is None else _axis("world_size", world_size, ranks),
        "precision": [None] if precision is None else _axis("precision", precision, dtype),
        "bandwidth": _axis("bandwidth", bandwidth, _factor_of("bandwidth")),
        "latency": _axis("latency", latency, _factor_of("latency")),
        "backward": _axis("backward", backward, _factor_of("backward")),
    }
    lengths = {**{name: len(values) for name, values in axes.items()}, "caps and the default": len(caps) + 1}
    rows = 1
    for length in lengths.values():
        rows *= length
    if rows > max_rows:
        words = " x ".join(f"{length} {name}" for name, length in lengths.items() if length > 1)
        raise InputError(
            f"sweep: {rows} rows ({words}) are more than {max_rows}; give fewer, or max_rows={rows}"
        )
    return Grid(
        caps_mb=(None, *caps),
        points=tuple(Point(**dict(zip(axes, values, strict=True))) for values in product(*axes.values())),
    )


def _axis(
    name: str, values: Iterable[Any], read: Callable[[Any], Value], *, may_be_empty: bool = False
) -> list[Value]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{name}: {values!r} is not legal; give a sequence of values, such as [{values!r}]")
    made: list[Value] = []
    seen: set[Value] = set()
    for value in map(read, values):
        if value in seen:
            raise InputError(f"{name}: {value!r} occurs twice; each value may occur once")
        seen.add(value)
        made.append(value)
    if not made and not may_be_empty:
        raise InputError(f"{name}: an empty axis is not legal; give at least one value")
    return made


def _factor_of(name: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        check_factor(name, value)
        return float(value)

    return read


def _cap(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"caps_mb: {value!r} is not legal; give numbers of MiB")
    cap_bytes(float(value))
    return float(value)
