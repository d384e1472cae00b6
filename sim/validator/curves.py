"""One time for all messages of a size, whether enough rounds agree on it, and whether a curve can be right.

A round sends about as many messages of a size as a training step does, so a round's figure is their mean: the
sum of a step's messages is what counts, and small ones are bimodal over gloo (0.4 ms, or 4 ms where a thread
waits for its turn on the processor). A burst of something else on the machine lasts for whole rounds and only
adds time, so the slowest third of the rounds is left out, and the mean of the others stands for the size.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp, log
from statistics import fmean
from typing import Any

from sim.nouns.hardware import Curve, CurvePoint
from sim.units import format_ms, format_size

WITHIN = 0.03  # a figure is settled if its 95 % interval reaches no farther to either side than this share
WITHIN_NS = 200_000  # or this, for small messages: threads that wait for their turn scatter by milliseconds
FEWEST_ROUNDS = 5  # of which an interval can be told
_RESAMPLES = 200
# A point is doubted beyond this: small messages over gloo scatter by some tenths of a millisecond on any
# machine; the tuner's intervals contain that, and measuring again would not help.
_DOUBTED_NS = 500_000
_JUMP = 1.25  # times what the points on both sides lead to


def figure_ns(rounds: Sequence[Sequence[int]]) -> int:
    """The time in ns that stands for a message, from samples in ns by round."""
    return round(_without_bursts([fmean(samples) for samples in rounds]))


def interval_ns(rounds: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Where the figure lies with 95 % confidence, by drawing rounds anew; of one round, its extremes."""
    means = [fmean(samples) for samples in rounds]
    if len(means) == 1:
        return min(rounds[0]), max(rounds[0])
    generator = random.Random(0)
    drawn = sorted(_without_bursts(generator.choices(means, k=len(means))) for _ in range(_RESAMPLES))
    last = _RESAMPLES - 1
    return round(drawn[last // 40]), round(drawn[last - last // 40])


def is_settled(rounds: Sequence[Sequence[int]]) -> bool:
    """Whether the figure is known to within 3 %, or 0.2 ms."""
    return len(rounds) >= FEWEST_ROUNDS and not _is_wide(figure_ns(rounds), *interval_ns(rounds), WITHIN_NS)


def _without_bursts(means: Sequence[float]) -> float:
    """The mean without the slowest third."""
    return fmean(sorted(means)[: len(means) - len(means) // 3])


def _is_wide(figure_ns: float, low_ns: float, high_ns: float, within_ns: int) -> bool:
    return max(figure_ns - low_ns, high_ns - figure_ns) > max(WITHIN * figure_ns, within_ns)


def doubtful_points(curve: Curve, spread: Mapping[str, Any]) -> dict[int, str]:
    """Points not to be relied on: by size in bytes one reason each, in words without its size.

    A point is doubtful where a larger message takes less, where it takes far more than its neighbours lead
    to, or where its 95 % interval is wide (``low_ns`` and ``high_ns`` of its size in ``spread``).
    """
    found: dict[int, str] = {}
    for before, point, after in zip(curve, curve[1:], curve[2:], strict=False):
        expected = _between(before, point, after)
        if expected and point.duration_ns > _JUMP * expected + _DOUBTED_NS:
            found[point.num_bytes] = (
                f"takes {format_ms(point.duration_ns)}, where the points on both sides lead to "
                f"{format_ms(expected)}"
            )
    for before, after in pairwise(curve):
        if after.duration_ns < (1 - WITHIN) * before.duration_ns - _DOUBTED_NS:
            found[before.num_bytes] = (
                f"takes {format_ms(before.duration_ns)}, and {format_size(after.num_bytes)} take "
                f"{format_ms(after.duration_ns)}"
            )
    for point in curve:
        known = spread.get(str(point.num_bytes), {})
        if not {"low_ns", "high_ns"} <= known.keys():
            continue
        low, high = known["low_ns"], known["high_ns"]
        if _is_wide(point.duration_ns, low, high, _DOUBTED_NS):
            found[point.num_bytes] = f"scatters: {format_ms(low)} to {format_ms(high)} with 95 % confidence"
    return dict(sorted(found.items()))


def _between(before: CurvePoint, point: CurvePoint, after: CurvePoint) -> float:
    """What the points on both sides lead to, straight between logarithms; 0 where one takes no time."""
    if not (before.num_bytes and before.duration_ns and after.duration_ns):
        return 0.0
    share = log(point.num_bytes / before.num_bytes) / log(after.num_bytes / before.num_bytes)
    return exp((1 - share) * log(before.duration_ns) + share * log(after.duration_ns))
