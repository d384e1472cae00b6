"""Gradients' collectives far outside of the sizes that were measured, and what that leaves open of a step.

A curve is constant below its first point and goes on straight beyond its last (CONTRACT, Hardware). Within
``FAR`` times of a measured size that is taken as it is; farther out, and from a single point everywhere, it
is a guess, which is said where it may change the step.
"""

from collections.abc import Sequence

from sim.costs.service_time import service_ns
from sim.nouns.collective import CollectiveKind
from sim.nouns.hardware import Curve
from sim.nouns.timeline import Timeline
from sim.units import format_ms, format_size

FAR = 4
COUNTS = 0.01  # the share of a step from which on it is said


def outside_curves(timeline: Timeline, step_ns: int) -> tuple[str, ...]:
    """A sentence for each curve and each of its ends where a guess may change the step; mostly none."""
    if timeline.hardware.world_size == 1:
        return ()
    sizes: dict[CollectiveKind, list[int]] = {}
    for played in timeline.collectives:
        if played.collective.purpose == "gradients":
            sizes.setdefault(played.collective.kind, []).append(played.collective.num_bytes)
    said = []
    for kind, sent in sizes.items():
        curve = timeline.hardware.curve(kind)
        if curve is not None:
            words = kind.replace("_", "-")
            said += [_below(words, curve, sent, step_ns), _beyond(words, curve, sent, step_ns)]
    return tuple(sentence for sentence in said if sentence is not None)


def _far(curve: Curve) -> int:
    return FAR if len(curve) > 1 else 1


def _below(kind: str, curve: Curve, sent: Sequence[int], step_ns: int) -> str | None:
    first = curve[0]
    small = [size for size in sent if size * _far(curve) < first.num_bytes]
    too_much = sum(first.duration_ns * (first.num_bytes - size) // first.num_bytes for size in small)
    if not small or too_much < COUNTS * step_ns:
        return None
    return (
        f"{len(small)} of {len(sent)} {kind}s, down to {format_size(min(small))}, are taken to last as long "
        f"as {format_size(first.num_bytes)}, {_measured(curve, 'the least')}: {format_ms(first.duration_ns)} "
        f"each, up to {format_ms(too_much)} too much in all; measure smaller ones"
    )


def _beyond(kind: str, curve: Curve, sent: Sequence[int], step_ns: int) -> str | None:
    last = curve[-1]
    if last.num_bytes == 0:  # a constant, as it was meant
        return None
    large = [size for size in sent if size > _far(curve) * last.num_bytes]
    beyond = sum(service_ns(curve, size) - last.duration_ns for size in large)
    grown = sum(last.duration_ns * (size - last.num_bytes) // last.num_bytes for size in large)
    if not large or max(beyond, grown) < COUNTS * step_ns:
        return None
    how = (
        f"{format_ms(beyond)} in all are a straight line beyond it"
        if beyond
        else "they are taken to last as long"
    )
    return (
        f"{len(large)} of {len(sent)} {kind}s, up to {format_size(max(large))}, are larger than "
        f"{format_size(last.num_bytes)}, {_measured(curve, 'the greatest')}, and {how} "
        f"({format_ms(grown)} if time grows with size); measure larger ones"
    )


def _measured(curve: Curve, end: str) -> str:
    return f"{end} size of the curve" if len(curve) > 1 else "the only size of the curve"
