"""A link as it is in the step: a curve measured beside the step, carried over by what was seen in it."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from sim.costs.collectives import service_ns
from sim.errors import InputError
from sim.nouns.anchored import InStepCurve, InStepTimes
from sim.nouns.hardware import Curve, CurvePoint, Hardware
from sim.nouns.measurement import Measurement


def in_step_curve(beside: Curve, sizes: Sequence[int], seen: InStepTimes) -> InStepCurve:
    """How the link does in the step, from the collectives of one profiled step.

    A collective's duration in the step differs from that beside it for two reasons, which the end of backward
    tells apart. After it nothing computes: there the ratio is that of the link itself (another channel count,
    warm buffers, another day), and that of their total is ``ratio``. Before it computation runs beside; how
    much longer those took, against the ratio of the others, is ``comm_slowdown`` (their median, since the
    first waits for the last rank to arrive). A collective across the end is left out of both. Where none lies
    wholly after backward, the two cannot be told apart: all go into the ratio.

    Args:
        beside: all-reduce durations beside the step.
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
    during, alone = _apart(seen)
    ratio, comm_slowdown = median(ratios), 1.0
    if alone:
        ratio = sum(seen.durations_ns[-alone:]) / sum(known[-alone:])
        comm_slowdown = max(1.0, median(ratios[:during]) / ratio) if during else 1.0
    return InStepCurve(
        ratio=ratio,
        low=min(ratios),
        high=max(ratios),
        comm_slowdown=comm_slowdown,
        alone=alone,
        count=len(ratios),
        least_bytes=min(sizes),
        most_bytes=max(sizes),
    )


def in_step_times(measurement: Measurement) -> InStepTimes:
    """Durations of the collectives of an imported trace, medians over its steps.

    Raises:
        InputError: no traced step, or a collective whose start or end cannot be told.
    """
    steps = [step for step in measurement.traced if step.buckets]
    counts = {len(step.buckets) for step in steps}
    if len(counts) != 1:
        raise InputError(f"{measurement.name}: has no traced steps of one and the same number of buckets")
    durations: list[list[int]] = [[] for _ in range(counts.pop())]
    after = []
    for step in steps:
        late = 0
        for place, bucket in enumerate(step.buckets):
            if bucket.start_ns is None or bucket.end_ns is None:
                raise InputError(f"{measurement.name}: bucket {place} has no start or no end")
            durations[place].append(bucket.end_ns - bucket.start_ns)
            late += max(0, bucket.end_ns - max(bucket.start_ns, step.backward_end_ns))
        after.append(late)
    return InStepTimes(
        durations_ns=tuple(round(median(each)) for each in durations),
        after_backward_ns=round(median(after)),
    )


def _apart(seen: InStepTimes) -> tuple[int, int]:
    """How many collectives, which run one after another, ended before backward's end, and began after it."""
    count = len(seen.durations_ns)
    if seen.after_backward_ns is None:
        return count, 0
    alone, left = 0, seen.after_backward_ns
    for duration in reversed(seen.durations_ns):
        if duration > left:
            break
        left -= duration
        alone += 1
    across = 1 if left and alone < count else 0
    return count - alone - across, alone


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
    spread = dict(hardware.spread)
    if "all_reduce" in spread:
        spread["all_reduce"] = _times(spread["all_reduce"], ratio)
    curve = tuple(
        CurvePoint(num_bytes=point.num_bytes, duration_ns=round(point.duration_ns * ratio))
        for point in hardware.all_reduce
    )
    return replace(hardware, all_reduce=curve, spread=spread)


def _times(value: Any, ratio: float, name: str = "") -> Any:
    """What ``spread`` holds, with every number of nanoseconds times ``ratio``."""
    if isinstance(value, dict):
        return {key: _times(member, ratio, str(key)) for key, member in value.items()}
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value * ratio) if is_number and name.endswith("_ns") else value
