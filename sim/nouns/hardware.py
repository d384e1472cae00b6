"""What the machine carries: service-time curves and the second-order effects beside them."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le

from sim.errors import InputError
from sim.nouns.checks import MAX_INT, Checked, Count, Factor, Legal, Rate, check, legal_fields, shown
from sim.nouns.collective import CollectiveKind
from sim.units import format_number


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

SLOWDOWNS = (
    "channel_slowdown",
    "compute_slowdown",
    "comm_slowdown",
    "copy_in_slowdown",
    "copy_out_slowdown",
    "comm_copy_out_slowdown",
)

COSTS = ("launch_cost_ns", "search_unused_ns", "mark_used_ns", "hook_cost_ns")
RATES = ("copy_in_bytes_per_s", "copy_out_bytes_per_s", "accumulate_bytes_per_s")
SCALARS = (*COSTS, *RATES, *SLOWDOWNS, "queued_gather_factor")
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
    not slow them (``sim.clock.small_messages``). ``search_unused_ns`` and
    ``mark_used_ns`` are what ``find_unused_parameters`` adds per parameter, to a forward and to each hook;
    ``hook_cost_ns`` is what the hook of a gradient takes of the compute lane beside the bytes that it copies.
    ``spread`` keeps, for each measured quantity, what is known of its scatter: quantiles that rise, and of a
    curve's points, by size, none below 0. ``spread["ranges"]`` holds where what is not measured lies (95 %),
    ``spread["readings"]`` other machines that explain the same measured step; see CONTRACT.
    """

    KIND: ClassVar[str] = "hardware"
    name: str
    world_size: Annotated[int, Ge(1), Le(MAX_RANKS)]
    all_reduce: Curve
    comm_channels: Annotated[int, Ge(1), Le(MAX_CHANNELS)] = 1
    channel_slowdown: Factor = 1.0
    shared_connection: bool = False
    launch_cost_ns: Count = 0
    launch_blocks_compute: bool = False
    copy_in_bytes_per_s: Rate | None = None
    copy_out_bytes_per_s: Rate | None = None
    accumulate_bytes_per_s: Rate | None = None
    queued_gather_factor: Annotated[float, Gt(0), Le(1)] = 1.0
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
        _ranges(self.spread.get("ranges", {}))
        _readings(self.spread.get("readings", []))
        for name in ("own_step", "anchor"):
            _held_to(f"spread.{name}", self.spread.get(name))
        for name, known in self.spread.items():
            if name in CURVES:
                _curve_scatter(f"spread.{name}", known)
            _scatter(f"spread.{name}", known)
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


_NUMBER = Legal(kind=float, least=-MAX_INT)
_SCALE = Legal(kind=float, is_open=True, most=MOST_FACTOR)  # on a whole curve


def _ranges(said: Any) -> None:
    """``spread.ranges``: for a field its least and greatest value, for a curve such factors on all of it."""
    if not isinstance(said, dict):
        raise InputError(f"spread.ranges: {shown(said)} is not legal; give an object, one member a field")
    for name, known in said.items():
        field = f"spread.ranges.{name}"
        if name not in (*SCALARS, *CURVES):
            raise InputError(f"{field}: not a field with a range; give {', '.join((*SCALARS, *CURVES))}")
        if not isinstance(known, dict) or not {"low", "high"} <= set(known):
            raise InputError(f"{field}: {shown(known)} is not legal; give an object with low and high")
        legal = legal_fields(Hardware)[name] if name in SCALARS else _SCALE
        low, high = (legal.take(f"{field}.{end}", known[end]) for end in ("low", "high"))
        if low > high:
            raise InputError(f"{field}.low: {low} is not legal; high is {high}")


def _held_to(field: str, said: Any) -> None:
    """What a measured step of the job said of the link: whether it fits, and which link would."""
    if not isinstance(said, dict):
        if said is not None:
            raise InputError(f"{field}: {shown(said)} is not legal; give an object")
        return
    if not isinstance(said.get("fits", True), bool):
        raise InputError(f"{field}.fits: {shown(said['fits'])} is not legal; give true or false")
    for name in {"explained_by", "value", "low", "high", "error"} & set(said):
        if said[name] is not None or name != "explained_by":
            _NUMBER.take(f"{field}.{name}", said[name])
    for name in ("why", "factor"):
        if not isinstance(said.get(name, ""), str):
            raise InputError(f"{field}.{name}: {said[name]!r:.60} is not legal; give a code")


def _readings(said: Any) -> None:
    """``spread.readings``: machines by what they change of this one, which itself is the first of them."""
    legal = "give a list of objects with what, weight, set and curve"
    if not isinstance(said, list | tuple):
        raise InputError(f"spread.readings: {shown(said)} is not legal; {legal}")
    total = 0.0
    for place, reading in enumerate(said):
        field = f"spread.readings.{place}"
        if not isinstance(reading, dict) or not isinstance(reading.get("what"), str):
            raise InputError(f"{field}: {shown(reading)} is not legal; {legal}")
        if unknown := set(reading) - {"what", "weight", "set", "curve"}:
            raise InputError(f"{field}: {min(unknown)} is not known; {legal}")
        total += Legal(kind=float, is_open=True, most=1).take(f"{field}.weight", reading.get("weight"))
        curve = _SCALE.take(f"{field}.curve", reading.get("curve", 1.0))
        changed = reading.get("set", {})
        if not isinstance(changed, dict):
            raise InputError(f"{field}.set: {shown(changed)} is not legal; give an object of fields")
        for name, value in changed.items():
            if name == "launch_blocks_compute" and isinstance(value, bool):
                continue
            if name not in SCALARS:
                raise InputError(
                    f"{field}.set.{name}: not a field that a reading sets; give "
                    f"{', '.join((*SCALARS, 'launch_blocks_compute'))}"
                )
            if value is not None or name not in RATES:
                legal_fields(Hardware)[name].take(f"{field}.set.{name}", value)
        if not place and (changed or curve != 1):
            raise InputError(f"{field}: the first reading is the hardware itself; it changes nothing")
    if said and abs(total - 1) > 1e-6:
        raise InputError(
            f"spread.readings: weights of {format_number(total, 6)} in all are not legal; they sum to 1"
        )


_RISING = ("min_ns", "p10_ns", "median_ns", "p90_ns", "max_ns"), ("low_ns", "high_ns")


def _scatter(field: str, known: Any) -> None:
    """Quantiles in ``known``, and in the objects in it, are numbers that do not fall."""
    if not isinstance(known, dict):
        return
    for name, value in known.items():
        _scatter(f"{field}.{name}", value)
    for names in _RISING:
        told = [(name, _NUMBER.take(f"{field}.{name}", known[name])) for name in names if name in known]
        for (below, low), (above, high) in pairwise(told):
            if low > high:
                raise InputError(
                    f"{field}.{below}: {low} is not legal; {above} is {high}, and must not be less"
                )


def _curve_scatter(field: str, known: Any) -> None:
    """``known`` is an object of objects, one a size: what is counted or a time is an integer >= 0."""
    if not isinstance(known, dict) or not all(isinstance(point, dict) for point in known.values()):
        raise InputError(
            f"{field}: {shown(known)} is not legal; give an object, one member a size: an object with count, "
            f"p10_ns and p90_ns"
        )
    for size, point in known.items():
        for name, value in point.items():
            if name == "count" or name.endswith("_ns"):
                Legal().take(f"{field}.{size}.{name}", value)
