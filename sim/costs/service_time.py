"""Service time of one collective, from a measured curve."""

from bisect import bisect_right
from dataclasses import replace
from math import log
from typing import Any

from sim.errors import InputError
from sim.nouns.checks import Legal
from sim.nouns.collective import CollectiveKind
from sim.nouns.hardware import CURVES, MAX_RANKS, Curve, Hardware
from sim.nouns.workload import DTYPE_BYTES, Workload
from sim.units import divide_half_even

PRECISIONS = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")

_MEASURED_RANKS = "measured_ranks"  # in the provenance of hardware that was taken to another number


def service_ns(curve: Curve, num_bytes: int) -> int:
    """Service time in ns of a collective of ``num_bytes``, alone on its channel.

    Linear between points, straight from ``empty_ns`` to the first, beyond the last as ``rise_beyond`` says.
    Rounded to the nearest ns, half to even.
    """
    position = bisect_right(curve, num_bytes, key=lambda point: point.num_bytes)
    before = curve[position - 1] if position else None
    size, time = (before.num_bytes, before.duration_ns) if before else (0, empty_ns(curve))
    if position == len(curve):
        rise, run = rise_beyond(curve)
    else:
        after = curve[position]
        rise, run = after.duration_ns - time, after.num_bytes - size
    return divide_half_even(time * run + rise * (num_bytes - size), run)


def empty_ns(curve: Curve) -> int:
    """What a message without bytes takes, in ns: the latency part of ``curve``.

    By the flattest line through the first point and another, which on an affine link is that through the
    first two; no more than the first takes, and no less than nothing. By one point alone nothing, unless it
    is that message: time grows with bytes below it as it does beyond.
    """
    first, lines_ns = curve[0], [0]
    if first.num_bytes == 0:
        return first.duration_ns
    for point in curve[1:]:
        rise, run = point.duration_ns - first.duration_ns, point.num_bytes - first.num_bytes
        lines_ns.append(divide_half_even(first.duration_ns * run - rise * first.num_bytes, run))
    return min(max(lines_ns), first.duration_ns)


def without_latency(curve: Curve) -> Curve:
    """``curve`` less its latency part, of a point that takes less all of it: what bytes take."""
    empty = empty_ns(curve)
    return tuple(replace(point, duration_ns=max(0, point.duration_ns - empty)) for point in curve)


def rise_beyond(curve: Curve) -> tuple[int, int]:
    """By how many ns time rises in how many bytes beyond the last point of ``curve``.

    With the slope of the last two points, and at least with its bytes: no further byte is faster than those
    of the last point were. What a message without bytes takes, where that is a point, is not theirs.
    """
    last = curve[-1]
    empty_ns = curve[0].duration_ns if curve[0].num_bytes == 0 else 0
    rise, run = max(0, last.duration_ns - empty_ns), max(1, last.num_bytes)
    if len(curve) > 1:
        step_ns, step = last.duration_ns - curve[-2].duration_ns, last.num_bytes - curve[-2].num_bytes
        if step_ns / step >= rise / run:
            return step_ns, step
    return rise, run


def collective_ns(hardware: Hardware, kind: CollectiveKind, num_bytes: int) -> int | None:
    """Service time in ns of one collective of all ranks, 0 of one rank; None where there is no such curve."""
    curve = hardware.curve(kind)
    if hardware.world_size == 1 or curve is None:
        return 0 if hardware.world_size == 1 else None
    return service_ns(curve, num_bytes)


def tilt_ratio(link: float, tilt: float, num_bytes: int, about_bytes: int) -> float:
    """The factor on the time of a message of ``num_bytes``: ``link`` at ``about_bytes``, ``link * tilt`` at
    16 times as many bytes, ``link * tilt**2`` at 256 times, and so on.
    """
    return float(link * tilt ** (log(max(1, num_bytes) / about_bytes) / log(16)))


def scale(
    workload: Workload,
    hardware: Hardware,
    *,
    bandwidth: float = 1.0,
    latency: float = 1.0,
    backward: float = 1.0,
    world_size: int | None = None,
    precision: str | None = None,
) -> tuple[Workload, Hardware]:
    """Workload and hardware with what-ifs applied; factors of 1 and None change nothing.

    Args:
        workload: what backward makes ready.
        hardware: what the machine carries.
        bandwidth: divides what each curve has above its latency part.
        latency: multiplies the latency part of each curve, what a message without bytes takes (``empty_ns``).
            What is known of a point's scatter is scaled with it.
        backward: multiplies ready times and ``backward_ns``; forward and optimizer stay.
        world_size: another number of ranks, in a ring (``ring_factors``). That small messages wait for larger
            ones (``shared_connection``) holds for the measured number only, and is dropped.
        precision: a torch dtype of all gradients, in buckets and on the wire (``narrowed``).

    Raises:
        InputError: a value beyond the range that it names.
    """
    for name, factor in (("bandwidth", bandwidth), ("latency", latency), ("backward", backward)):
        Legal(kind=float, least=1e-6, most=1e6).take(name, factor)
    if precision is not None:
        workload = narrowed(workload, precision)
    if backward != 1.0:
        workload = workload.retimed(
            lambda times: tuple(None if time is None else round(time * backward) for time in times),
            backward_ns=round(workload.backward_ns * backward),
        )
    changes: dict[str, Any] = {}
    measured = ranks = hardware.world_size
    if world_size is not None:
        ranks = Legal(least=2, most=MAX_RANKS).take("world_size", world_size)
        if measured == 1:
            raise InputError(f"world_size: {ranks} is out of reach; the hardware was measured with one rank")
    if ranks != measured:  # a ring of n sends n-th parts, so other messages are small
        told = {**hardware.provenance, _MEASURED_RANKS: measured_ranks(hardware)}
        changes = {"world_size": ranks, "shared_connection": False, "provenance": told}
    taken = dict[tuple[str, int], float]()  # how many times as long as before
    for name in CURVES:
        curve, (hops, volume) = hardware.curve(name), ring_factors(name, measured, ranks)
        if curve is not None and (latency * hops, bandwidth / volume) != (1, 1):
            for point, of_bytes in zip(curve, without_latency(curve), strict=True):
                base_ns = point.duration_ns - of_bytes.duration_ns
                time = base_ns * (latency * hops) + of_bytes.duration_ns / (bandwidth / volume)
                taken[name, point.num_bytes] = time / max(1, point.duration_ns)
    if taken:
        hardware = hardware.retimed(lambda kind, size, ns: round(ns * taken.get((kind, size), 1.0)))
    return workload, replace(hardware, **changes) if changes else hardware


def measured_ranks(hardware: Hardware) -> int:
    """How many ranks the link was measured with, also where it was taken to another number since."""
    told = hardware.provenance.get(_MEASURED_RANKS)
    return told if type(told) is int else hardware.world_size


def ring_factors(collective: str, measured: int, ranks: int) -> tuple[float, float]:
    """Factors on (latency part, bandwidth part) of a curve from ``measured`` ranks to ``ranks``, in a ring.

    A ring all-reduce of S bytes on n ranks takes ``2 (n-1)`` hops and sends ``2 (n-1)/n S`` bytes over each
    wire; reduce-scatter and all-gather take half of both, a broadcast ``n-1`` hops and S bytes
    (Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002). The law ends where collectives are no rings of
    equal wires. From 2 to 4 hosts all-reduces that were measured lie within 5 % of it from 1 MiB up; smaller
    ones took up to five times as long, as four hosts shared two cores.
    """
    if ranks == measured:
        return 1.0, 1.0
    hops = (ranks - 1) / (measured - 1)
    volume = 1.0 if collective == "broadcast" else ((ranks - 1) * measured) / ((measured - 1) * ranks)
    return hops, volume


def narrowed(workload: Workload, precision: str) -> Workload:
    """``workload`` with gradients of ``precision``, a torch dtype: as if the model's parameters had it.

    Sizes follow the width of the dtype: what DDP counts against its caps, what is copied and what travels.
    Compute does not change, with the copies that recorded times may contain, and buffers keep their dtype.
    The indices of a sparse gradient are scaled with its values, which is too little.

    Raises:
        InputError: a dtype, or one of a gradient, that is not among ``PRECISIONS``.
    """
    Legal(words=PRECISIONS).take("precision", precision)
    made = []
    for gradient in workload.gradients:
        if gradient.dtype not in PRECISIONS:
            raise InputError(
                f"precision: {precision!r} is not legal here; gradient {gradient.index} ({gradient.name}) is "
                f"{gradient.dtype}, and only {', '.join(PRECISIONS)} are cast"
            )
        new, old, wire = DTYPE_BYTES[precision], DTYPE_BYTES[gradient.dtype], gradient.wire_bytes
        size = divide_half_even(gradient.num_bytes * new, old)
        wire = None if wire is None else divide_half_even(wire * new, old)
        made.append(replace(gradient, dtype=precision, num_bytes=size, wire_bytes=wire))
    return workload if tuple(made) == workload.gradients else replace(workload, gradients=tuple(made))
