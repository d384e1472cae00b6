"""A link as it is in the step: a curve measured apart from it, scaled by collectives that were seen in it."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.nouns.checks import Count, Positive, check
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.measurement import Measurement

# Where a collective lies against the end of backward.
Place = Literal["during", "across", "after"]
# A collective counts as during backward, or as after it, if at most this share of it lies on the other side.
# That changes its time by less than a step can tell, and the rounding of times does not decide where it lies.
_SLIVER = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class InStepTimes:
    """How long each bucket's collective took in the step, in launch order, in ns.

    ``after_backward_ns`` of them lie after the end of backward; None: it is not known. ``places`` says it of
    each, where a profile shows it; None: it is told by ``after_backward_ns``, as of collectives that run one
    after another.
    """

    durations_ns: tuple[Positive, ...]
    after_backward_ns: Count | None = None
    places: tuple[Place, ...] | None = None

    def __post_init__(self) -> None:
        check(self)
        if not self.durations_ns:
            raise InputError("durations_ns: an empty list is not legal; give one duration a bucket")
        if self.places is not None and len(self.places) != len(self.durations_ns):
            raise InputError(f"places: {len(self.places)} places for {len(self.durations_ns)} durations")


@dataclass(frozen=True, slots=True, kw_only=True)
class InStepCurve:
    """A link as it is in the step, against the same link measured beside it.

    ``ratio`` is duration in the step over duration beside it, of collectives that no computation slows
    (``alone`` of them), else of all; ``low`` and ``high`` are the least and largest of a single one, all of
    them counted. ``comm_slowdown`` is by how much longer the others took. ``least_bytes`` and
    ``most_bytes`` are the sizes that were seen: beyond them the ratio is carried over.
    """

    ratio: float
    low: float
    high: float
    comm_slowdown: float
    alone: int
    count: int
    least_bytes: int
    most_bytes: int


def in_step_curve(beside: Curve, sizes: Sequence[int], seen: InStepTimes) -> InStepCurve:
    """How the link does in the step, from the collectives of one profiled step.

    A collective's duration in the step differs from the curve for two reasons, which the end of backward
    tells apart. After it nothing is computed while collectives run: ``ratio`` is what they took in all over
    what the curve says for their bytes, and tells how the link itself differs (another channel count, warm
    buffers, another day). Before it collectives run beside computation: ``comm_slowdown`` is the median
    factor by which they took longer than ``ratio`` times the curve; a median, since the first one waits for
    the last rank to arrive. A collective across the end counts for neither. If none lies wholly after
    backward, the two reasons cannot be told apart: ``ratio`` is the median of all.

    Args:
        beside: all-reduce durations, measured apart from the step.
        sizes: bytes that travelled, by bucket in launch order.
        seen: how long they took.

    Raises:
        InputError: not one duration a bucket, or a curve without durations to compare with.
    """
    if len(sizes) != len(seen.durations_ns):
        raise InputError(
            f"durations_ns: {len(seen.durations_ns)} durations for {len(sizes)} buckets; give one a bucket, "
            f"in launch order"
        )
    known = [service_ns(beside, size) for size in sizes]
    if not all(known):
        raise InputError("all_reduce: a curve of durations of 0 ns is not legal here; give a measured one")
    ratios = [duration / time for duration, time in zip(seen.durations_ns, known, strict=True)]
    places = _places(seen) if seen.places is None else seen.places
    during, alone = ([k for k, one in enumerate(places) if one == what] for what in ("during", "after"))
    ratio, comm_slowdown = median(ratios), 1.0
    if alone:
        ratio = sum(seen.durations_ns[k] for k in alone) / sum(known[k] for k in alone)
        comm_slowdown = max(1.0, median(ratios[k] for k in during) / ratio) if during else 1.0
    return InStepCurve(
        ratio=ratio,
        low=min(ratios),
        high=max(ratios),
        comm_slowdown=comm_slowdown,
        alone=len(alone),
        count=len(ratios),
        least_bytes=min(sizes),
        most_bytes=max(sizes),
    )


def in_step_times(measurement: Measurement) -> InStepTimes:
    """Durations of the collectives of an imported trace, medians over its steps, and where each lies in most.

    Raises:
        InputError: no traced step, or a collective whose start or end cannot be told.
    """
    steps = [step for step in measurement.traced if step.buckets]
    counts = {len(step.buckets) for step in steps}
    if len(counts) != 1:
        raise InputError(f"{measurement.name}: has no traced steps of one and the same number of buckets")
    count = counts.pop()
    durations: list[list[int]] = [[] for _ in range(count)]
    places: list[list[Place]] = [[] for _ in range(count)]
    after = []
    for step in steps:
        late = 0
        for place, bucket in enumerate(step.buckets):
            if bucket.start_ns is None or bucket.end_ns is None:
                raise InputError(f"{measurement.name}: bucket {place} has no start or no end")
            duration = bucket.end_ns - bucket.start_ns
            alone = max(0, bucket.end_ns - max(bucket.start_ns, step.backward_end_ns))
            durations[place].append(duration)
            places[place].append(_place(duration, alone))
            late += alone
        after.append(late)
    return InStepTimes(
        durations_ns=tuple(round(median(each)) for each in durations),
        after_backward_ns=round(median(after)),
        places=tuple(map(_most, places)),
    )


def _place(duration_ns: int, alone_ns: int) -> Place:
    """Where a collective lies of which ``alone_ns`` are after the end of backward."""
    sliver = _SLIVER * duration_ns
    if alone_ns >= duration_ns - sliver:
        return "after"
    return "across" if alone_ns > sliver else "during"


def _most(places: Sequence[Place]) -> Place:
    """Where a collective lies in more than half of the steps; ``across`` where there is no such place."""
    place, count = Counter(places).most_common(1)[0]
    return place if 2 * count > len(places) else "across"


def _places(seen: InStepTimes) -> tuple[Place, ...]:
    """Where each collective lies, if they run one by one and ``after_backward_ns`` are after backward."""
    places: list[Place] = []
    left = seen.after_backward_ns or 0
    for duration in reversed(seen.durations_ns):
        places.append(_place(duration, min(left, duration)))
        left -= min(left, duration)
    return tuple(reversed(places))


def with_in_step(hardware: Hardware, found: InStepCurve) -> Hardware:
    """``hardware`` with its all-reduce curve as it is in the step, its uncertainty in ``spread``."""
    changed = scaled(hardware, found.ratio)
    told = {
        "ratio": found.ratio,
        "low": found.low,
        "high": found.high,
        "least_bytes": found.least_bytes,
        "most_bytes": found.most_bytes,
    }
    return replace(changed, comm_slowdown=found.comm_slowdown, spread={**changed.spread, "in_step": told})


def scaled(hardware: Hardware, ratio: float) -> Hardware:
    """``hardware`` with every duration of its all-reduce curve, and of what is known of its scatter, times
    ``ratio``.
    """
    return rescaled(hardware, lambda _: ratio)


def rescaled(hardware: Hardware, ratio_at: Callable[[int], float]) -> Hardware:
    """As ``scaled``, by a ratio that goes with the size of the message in bytes."""
    spread = dict(hardware.spread)
    if isinstance(known := spread.get("all_reduce"), dict):
        spread["all_reduce"] = {
            size: _times(value, ratio_at(int(size))) if size.isdecimal() else value
            for size, value in known.items()
        }
    curve = tuple(
        CurvePoint(
            num_bytes=point.num_bytes, duration_ns=round(point.duration_ns * ratio_at(point.num_bytes))
        )
        for point in hardware.all_reduce
    )
    return replace(hardware, all_reduce=curve, spread=spread)


def _times(value: Any, ratio: float, name: str = "") -> Any:
    """``value``, a part of a hardware's ``spread``, with every number of nanoseconds times ``ratio``."""
    if isinstance(value, dict):
        return {key: _times(member, ratio, str(key)) for key, member in value.items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value * ratio) if is_number and name.endswith("_ns") else value
