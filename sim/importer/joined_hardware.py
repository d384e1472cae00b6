"""One Hardware of a trace and a link benchmark: curves from the benchmark, all else from the trace."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.costs.service_time import service_ns
from sim.errors import InputError
from sim.nouns.hardware import CURVES, Curve, Hardware
from sim.nouns.imported import Imported
from sim.units import format_ms, format_size

# Two curves are said to differ at a size if their times there differ by more than this share.
APART = 0.1


def world_size_of(part: Imported) -> int | None:
    """How many ranks an import is of: told by its measurements, its only hardware, or its details."""
    sizes = {measurement.world_size for measurement in part.measurements}
    sizes = sizes or {one.world_size for one in part.hardware}
    if len(sizes) == 1:
        return sizes.pop()
    told = part.details.get("world_size")
    if told is None and part.workload is not None:
        told = part.workload.provenance.get("world_size")
    return told if type(told) is int and told > 0 else None


def join_hardware(
    given: Sequence[Hardware], links: Sequence[Hardware], traced: Sequence[Hardware], ranks: int | None
) -> tuple[tuple[Hardware, ...], list[str], list[dict[str, Any]]]:
    """All hardware, that to use first; what was assumed; and the curves of the trace that were replaced.

    A hardware file is used as it is. Without one the curves are those of nccl-tests, else of the trace, which
    are what all-reduces took in its steps; copies, launches and slow-downs are then those of the trace.

    Args:
        given: hardware files of ours.
        links: from link benchmarks.
        traced: from traces.
        ranks: of the run, where known.

    Raises:
        InputError: several of ``given`` or of ``links`` with the run's number of ranks.
    """
    wire: Hardware | None = None
    for several, what in ((given, "hardware files"), (links, "link benchmarks")):
        fitting = [one for one in several if ranks is None or one.world_size == ranks]
        if ranks is not None and len(fitting) > 1:
            names = ", ".join(repr(one.name) for one in fitting)
            raise InputError(f"PATH: {len(fitting)} {what} of {ranks} ranks ({names}); give this run's")
        if wire is None and len(fitting) == 1:
            wire = fitting[0]
    others = [one for one in (*given, *links) if one is not wire]
    own = traced[0] if traced else None
    said = []
    if wire is None:
        if own is not None and others:
            sizes = ", ".join(str(one.world_size) for one in others)
            said.append(
                f"the curve of the trace, of {own.world_size} ranks; those beside it are of {sizes} ranks "
                f"and written as they are"
            )
        return (*traced, *others), said, []
    if own is None:
        return (wire, *others), said, []
    joined = _joined(wire, own)
    said.append(
        f"the hardware {wire.name!r} as its file has it, in place of the trace's own"
        if wire in given
        else f"the all-reduce of {wire.name!r}, measured beside the step, in place of the trace's own"
    )
    said += _beyond(own.all_reduce, wire.all_reduce)
    said += _apart(own.all_reduce, wire.all_reduce)
    kept = [
        {"name": one.name, "world_size": one.world_size, "all_reduce": _points(one.all_reduce)}
        for one in traced
    ]
    return (joined, *others), said, kept


def _joined(wire: Hardware, own: Hardware) -> Hardware:
    curves = {name: getattr(wire, name) or getattr(own, name) for name in CURVES}
    if wire.provenance.get("source") != "bucketsim import nccl-tests":
        return wire  # a hardware file says all there is to say
    spread = {key: value for key, value in own.spread.items() if getattr(wire, key, None) is None}
    return replace(
        own,
        name=wire.name,
        **curves,
        spread={**spread, **wire.spread},
        provenance={**wire.provenance, "beside_the_curves": own.provenance},
    )


def _apart(inside: Curve, beside: Curve) -> list[str]:
    """A sentence where sizes took another time in the step than beside it."""
    ratios = [
        (point.duration_ns / service_ns(beside, point.num_bytes), point)
        for point in inside
        if service_ns(beside, point.num_bytes) > 0
    ]
    if not ratios:
        return []
    ratio, point = max(ratios, key=lambda pair: abs(pair[0] - 1))
    if abs(ratio - 1) <= APART:
        return []
    far = sum(abs(one - 1) > APART for one, _ in ratios)
    less = [pair for pair in ratios if pair[0] < 1 - APART]
    cannot = [
        f"WARNING: cannot be of one link: {len(less)} of {len(ratios)} sizes took less time in the step than "
        f"beside it, {format_size(one.num_bytes)} {format_ms(one.duration_ns)} against "
        f"{format_ms(service_ns(beside, one.num_bytes))}; measure the link as the job uses it"
        for _, one in sorted(less, key=lambda pair: pair[0])[:1]
    ]
    return [
        *cannot,
        f"in the step and beside it are different curves: {far} of {len(ratios)} sizes differ by more than "
        f"{APART:.0%}; {format_size(point.num_bytes)} took {format_ms(point.duration_ns)} in the step and "
        f"take {format_ms(service_ns(beside, point.num_bytes))} beside it",
    ]


def _beyond(inside: Curve, beside: Curve) -> list[str]:
    """A sentence where the step has sizes that were not measured beside it."""
    least, greatest = beside[0].num_bytes, beside[-1].num_bytes
    outside = [point.num_bytes for point in inside if not least <= point.num_bytes <= greatest]
    if not outside:
        return []
    return [
        f"{len(outside)} of {len(inside)} sizes of the step lie outside of what was measured beside it, "
        f"{format_size(least)} to {format_size(greatest)}: below all take as long, "
        f"beyond they grow with the last slope, and at least with their bytes"
    ]


def _points(curve: Curve) -> list[list[int]]:
    return [[point.num_bytes, point.duration_ns] for point in curve]
