"""What the machine carries: service-time curves and the second-order effects beside them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from sim.errors import InputError
from sim.nouns.checks import MAX_INT, Checked, Count, Factor, Legal, Rate, check, legal_fields, shown
from sim.nouns.collective import CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint(Checked):
    """Service time of one collective of ``num_bytes`` alone on its channel, back to back, warm."""

    num_bytes: Count
    duration_ns: Count


Curve = tuple[CurvePoint, ...]

MAX_CHANNELS = 65_536
GLOO_CHANNELS = 2  # worker threads per process group: two collectives at once (A3.8)
MOST_FACTOR = 1e6  # on a whole curve
MAX_RANKS = 1_000_000  # of one job, wherever one is described, computed or imported

CURVES: tuple[CollectiveKind, ...] = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One machine or cluster as a backward pass sees it.

    Copy bandwidths in bytes/s, None is free; ``accumulate_bytes_per_s`` is that at which a micro-batch's
    gradients are added to those of the ones before it (A3.12). ``queued_gather_factor`` is what an
    all-gather that begins as another one ends takes of its time alone (A10.8). Slow-downs are factors >= 1:
    ``compute_slowdown`` of the compute lane beside a collective, ``comm_slowdown`` of a collective beside
    the compute lane, ``channel_slowdown`` beside another collective, ``copy_in_slowdown`` and
    ``copy_out_slowdown`` of copies into and out of buckets beside a collective, ``comm_copy_out_slowdown``
    of a collective beside copies out of buckets, which come in one go. ``shared_connection`` says that all
    channels send through one connection, as gloo's do, so that small messages wait behind larger ones and do
    not slow them (``sim.clock.program.small_messages``). ``search_unused_ns`` and
    ``mark_used_ns`` are what ``find_unused_parameters`` adds per parameter, to a forward and to each hook;
    ``hook_cost_ns`` is what the hook of a gradient takes of the compute lane beside the bytes that it copies.
    ``spread`` keeps, for each measured quantity, what is known of its scatter: quantiles that rise, and of a
    curve's points, by size, none below 0. ``spread["ranges"]`` holds where what is not measured lies (95 %),
    ``spread["readings"]`` other machines that explain the same measured step; see CONTRACT.
    """

    KIND: ClassVar[str] = "hardware"
    name: str
    world_size: Annotated[int, Legal(least=1, most=MAX_RANKS)]
    all_reduce: Curve
    comm_channels: Annotated[int, Legal(least=1, most=MAX_CHANNELS)] = 1
    channel_slowdown: Factor = 1.0
    shared_connection: bool = False
    launch_cost_ns: Count = 0
    launch_blocks_compute: bool = False
    copy_in_bytes_per_s: Rate | None = None
    copy_out_bytes_per_s: Rate | None = None
    accumulate_bytes_per_s: Rate | None = None
    queued_gather_factor: Annotated[float, Legal(kind=float, is_open=True, most=1)] = 1.0
    compute_slowdown: Factor = 1.0
    comm_slowdown: Factor = 1.0
    copy_in_slowdown: Factor = 1.0
    copy_out_slowdown: Factor = 1.0
    comm_copy_out_slowdown: Factor = 1.0
    search_unused_ns: Count = 0
    mark_used_ns: Count = 0
    hook_cost_ns: Count = 0
    reduce_scatter: Curve | None = None
    all_gather: Curve | None = None
    broadcast: Curve | None = None
    spread: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    extensions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self)
        if self.spread:
            _check_spread(self.spread)
        for name in CURVES:
            curve = self.curve(name)
            if curve is None:
                continue
            if not curve:
                raise InputError(f"{name}: an empty list is not legal; give at least one point")
            for place, (before, after) in enumerate(pairwise(curve), start=1):
                if after.num_bytes <= before.num_bytes:
                    raise InputError(
                        f"{name}.{place}.num_bytes: {after.num_bytes} is not legal; sizes must "
                        f"ascend without repeats, and the point before has {before.num_bytes}"
                    )

    def curve(self, kind: CollectiveKind) -> Curve | None:
        """The curve of collectives of ``kind``; None where it was not measured."""
        curve: Curve | None = getattr(self, kind)
        return curve

    def retimed(self, moved: Callable[[CollectiveKind, int, int], int], *kinds: CollectiveKind) -> "Hardware":
        """With times of its curves of ``kinds`` (none: of all) and of their scatter as ``moved`` makes them
        of kind, bytes and ns."""
        curves, spread = dict[str, Any](), dict(self.spread)
        for kind in kinds or CURVES:
            points, scatter = self.curve(kind) or (), spread.get(kind, {})
            for size in [one.num_bytes for one in points if str(one.num_bytes) in scatter]:
                known = scatter[str(size)]
                times = {name: moved(kind, size, ns) for name, ns in known.items() if name.endswith("_ns")}
                scatter = scatter | {str(size): known | times}
            made = (replace(one, duration_ns=moved(kind, one.num_bytes, one.duration_ns)) for one in points)
            curves |= {kind: tuple(made)} if points else {}
            spread |= {kind: scatter} if scatter else {}
        return replace(self, **curves, spread=spread)


_NAMES = [one.name for one in fields(Hardware)]
COSTS = tuple(name for name in _NAMES if name.endswith("_ns"))
RATES = tuple(name for name in _NAMES if name.endswith("_bytes_per_s"))
SLOWDOWNS = tuple(name for name in _NAMES if name.endswith("_slowdown"))
SCALARS = (*COSTS, *RATES, *SLOWDOWNS, "queued_gather_factor")

_NUMBER, _COUNT = Legal(kind=float, least=-MAX_INT), Legal()
_TEXT, _FLAG = Legal(kind=str), Legal(kind=bool)
_SCALE = Legal(kind=float, is_open=True, most=MOST_FACTOR)  # on a whole curve
_READING = {"what": _TEXT, "weight": Legal(kind=float, is_open=True, most=1), "curve": _SCALE}
_HELD_TO = {  # what a measured step of the job said of the link: whether it fits, and which link would
    **{"fits": _FLAG, "why": _TEXT, "factor": _TEXT},
    **dict.fromkeys(("explained_by", "value", "low", "high"), _NUMBER),
}
_ENDS = ("low", "high")
_RISING = ("min_ns", "p10_ns", "median_ns", "p90_ns", "max_ns"), ("low_ns", "high_ns"), _ENDS


def _check_spread(spread: dict[str, Any]) -> None:
    """Raise ``InputError`` unless ``spread`` is what CONTRACT says."""
    scalars = {name: legal_fields(Hardware)[name] for name in SCALARS}
    within, settable = scalars | dict.fromkeys(CURVES, _SCALE), {**scalars, "launch_blocks_compute": _FLAG}
    for name, known in _object("spread.ranges", spread.get("ranges", {}), only=within).items():
        _object(f"spread.ranges.{name}", known, dict.fromkeys(_ENDS, within[name]), needs=_ENDS)
    for name in ("own_step", "anchor"):
        if spread.get(name) is not None:
            _object(f"spread.{name}", spread[name], _HELD_TO, or_null=("explained_by",))
    readings = spread.get("readings", [])
    if not isinstance(readings, list | tuple):
        raise InputError(f"spread.readings: {shown(readings)} is not legal; give a list of objects")
    for place, reading in enumerate(readings):
        field = f"spread.readings.{place}"
        _object(field, reading, _READING, needs=("what", "weight"), only=(*_READING, "set"))
        changed = _object(f"{field}.set", reading.get("set", {}), settable, or_null=RATES, only=settable)
        if not place and (changed or reading.get("curve", 1) != 1):
            raise InputError(f"{field}: the first reading is the hardware itself; it changes nothing")
    total = sum(reading["weight"] for reading in readings)
    if readings and abs(total - 1) > 1e-6:
        raise InputError(f"spread.readings: weights of {total:.6g} in all are not legal; they sum to 1")
    for name in CURVES:
        for size, point in _object(f"spread.{name}", spread.get(name, {})).items():
            times = [key for key in _object(f"spread.{name}.{size}", point) if key.endswith("_ns")]
            _object(f"spread.{name}.{size}", point, dict.fromkeys((*times, "count"), _COUNT))
    _check_quantiles("spread", spread)


def _object(
    field: str,
    said: Any,
    legal: Mapping[str, Legal] = MappingProxyType({}),
    *,
    needs: Collection[str] = (),
    or_null: Collection[str] = (),
    only: Collection[str] = (),
) -> dict[str, Any]:
    """An object that has what it ``needs``, and ``only`` such members, where that is given; those that
    ``legal`` names are so."""
    if not isinstance(said, dict) or not set(needs) <= set(said):
        more = f" with {' and '.join(needs)}" if needs else ""
        raise InputError(f"{field}: {shown(said)} is not legal; give an object{more}")
    for name, value in said.items():
        if only and name not in only:
            raise InputError(f"{field}.{name}: not a field; give {', '.join(only)}")
        if name in legal and (value is not None or name not in or_null):
            legal[name].take(f"{field}.{name}", value)
    return said


def _check_quantiles(field: str, known: Any) -> None:
    """Quantiles in ``known``, and in the objects in it, are numbers that do not fall."""
    if not isinstance(known, dict):
        return
    for names in _RISING:
        _object(field, known, dict.fromkeys(names, _NUMBER))
        for below, above in pairwise(name for name in names if name in known):
            if known[below] > known[above]:
                most = f"{above}, {known[above]}"
                raise InputError(f"{field}.{below}: {known[below]} is not legal; give at most {most}")
    for name, value in known.items():
        _check_quantiles(f"{field}.{name}", value)
