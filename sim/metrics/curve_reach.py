"""Gradients' collectives far outside of the sizes that were measured, and what that leaves open of a step.

A curve is constant below its first point and goes on straight beyond its last (CONTRACT, Hardware). Where
that, or a line between two points far apart, is a guess (``sim.costs.not_measured``), it is said where it may
change the step.
"""

from collections.abc import Sequence
from itertools import chain

from sim.costs.not_measured import FAR, guesses
from sim.costs.service_time import service_ns
from sim.nouns.collective import CollectiveKind
from sim.nouns.hardware import Curve
from sim.nouns.timeline import Timeline
from sim.units import format_ms, format_size

COUNTS = 0.01  # the share of a step from which on it is said


def outside_curves(timeline: Timeline, step_ns: int) -> tuple[str, ...]:
    """A sentence for each curve and each of its ends where a guess may change the step; mostly none."""
    if timeline.hardware.world_size == 1:
        return ()
    sizes: dict[CollectiveKind, list[int]] = {}
    for played in chain.from_iterable(batch.collectives for batch in timeline.micro_batches):
        if played.collective.purpose == "gradients":
            sizes.setdefault(played.collective.kind, []).append(played.collective.num_bytes)
    said = []
    for kind, sent in sizes.items():
        curve = timeline.hardware.curve(kind)
        if curve is not None:
            words = kind.replace("_", "-")
            said += [_below(words, curve, sent, step_ns), _beyond(words, curve, sent, step_ns)]
            said.append(_between(words, curve, sent, step_ns))
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
    if not large or beyond < COUNTS * step_ns:
        return None
    return (
        f"{len(large)} of {len(sent)} {kind}s, up to {format_size(max(large))}, are larger than "
        f"{format_size(last.num_bytes)}, {_measured(curve, 'the greatest')}, and {format_ms(beyond)} in all "
        f"are a straight line beyond it; measure larger ones"
    )


def _between(kind: str, curve: Curve, sent: Sequence[int], step_ns: int) -> str | None:
    """Messages in gaps of the curve, or where it bends."""
    found = []
    for size in sent:
        inside = [one for one in guesses(curve, size, size + 1) if one.where == "between"]
        found += [(one, service_ns(curve, size) * max(one.high - 1, 1 - one.low)) for one in inside]
    open_ns = round(sum(ns for _, ns in found))
    if open_ns < COUNTS * step_ns or not found:
        return None
    gaps = " and ".join(dict.fromkeys(one.words for one, _ in found))
    return (
        f"{len(found)} of {len(sent)} {kind}s are {gaps}, where nothing was measured: up to "
        f"{format_ms(open_ns)} more or less in all; measure sizes between"
    )


def _measured(curve: Curve, end: str) -> str:
    return f"{end} size of the curve" if len(curve) > 1 else "the only size of the curve"
