"""A stretch of AccumulateGrads as the backwards that it is made of: micro-batches, or models in turn."""

import bisect
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sim.importer.kineto.events import Operator


@dataclass(frozen=True, slots=True)
class StretchedBackward:
    """One backward: its AccumulateGrads, and an instant on the CPU ahead of its first node."""

    since_ns: int
    accumulated: Sequence[Operator]


def split_backwards(
    accumulated: Sequence[Operator], since_ns: int, forwards_at: Sequence[int], nodes: Sequence[Operator]
) -> list[StretchedBackward]:
    """The backwards of a stretch.

    A new one begins where a forward lies between two AccumulateGrads. If no forward can be seen (CPU alone,
    without DDP), it begins with each copy of one list of shapes that follows a pause as long as a forward.

    Args:
        accumulated: AccumulateGrads, by start; at least one.
        since_ns: when the stretch begins.
        forwards_at: when forward did something: its annotation, or a launch by a thread other than
            autograd's; sorted.
        nodes: autograd's nodes on its thread, by start.
    """
    borders = []
    for place in range(1, len(accumulated)):
        at = bisect.bisect_right(forwards_at, accumulated[place - 1].end_ns)
        if at < len(forwards_at) and forwards_at[at] < accumulated[place].start_ns:
            borders.append((place, forwards_at[at]))
    if not forwards_at:
        borders = _copies(accumulated, nodes)
    edges = [(0, since_ns), *borders, (len(accumulated), 0)]
    return [StretchedBackward(since, accumulated[place:end]) for (place, since), (end, _) in pairwise(edges)]


def _copies(accumulated: Sequence[Operator], nodes: Sequence[Operator]) -> list[tuple[int, int]]:
    """Where copies of one list of shapes begin, and the start of the pause before each; empty: one list."""
    count = len(accumulated)
    shapes = [str(one.arguments.get("dims")) for one in accumulated]
    lengths = [
        length
        for length in range(1, count // 2 + 1)
        if count % length == 0 and shapes == shapes[:length] * (count // length)
    ]
    if not lengths:
        return []
    pauses = _pauses(accumulated, nodes)
    for length in lengths:
        if all(_is_forward(place, length, pauses, accumulated) for place in range(length, count, length)):
            return [(place, pauses[place][1]) for place in range(length, count, length)]
    return []


def _is_forward(
    place: int, length: int, pauses: Sequence[tuple[int, int]], accumulated: Sequence[Operator]
) -> bool:
    """Whether the pause before a copy may be a forward: longer than all pauses in the copy, and than a
    quarter of the copy's time.

    A forward takes about half as long as its backward.
    """
    pause = pauses[place][0]
    backward = accumulated[place + length - 1].end_ns - accumulated[place - 1].end_ns - pause
    longest = max((inside for inside, _ in pauses[place + 1 : place + length]), default=0)
    return pause > longest and 4 * pause > backward


def _pauses(accumulated: Sequence[Operator], nodes: Sequence[Operator]) -> list[tuple[int, int]]:
    """Before each AccumulateGrad, the longest time in which no node ran, and when it began; (0, 0) of the
    first.
    """
    found = [(0, 0)]
    place = bisect.bisect_left(nodes, accumulated[0].start_ns, key=lambda one: one.start_ns)
    for before, after in pairwise(accumulated):
        reached, longest, at = before.end_ns, 0, before.end_ns
        while place < len(nodes) and nodes[place].start_ns < after.start_ns:
            longest, at = max((longest, at), (nodes[place].start_ns - reached, reached))
            reached = max(reached, nodes[place].end_ns)
            place += 1
        found.append(max((longest, at), (after.start_ns - reached, reached)))
    return found


def of_one_model(one: Sequence[Operator], other: Sequence[Operator]) -> bool:
    """Whether two backwards can be micro-batches of one model: one's shapes are among the other's."""
    counts = [Counter(str(each.arguments.get("dims")) for each in stretch) for stretch in (one, other)]
    return counts[0] <= counts[1] or counts[1] <= counts[0]
