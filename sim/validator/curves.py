"""One time for all messages of a size, whether enough rounds agree on it, and whether a curve can be right.

A round sends about as many messages of a size as a training step does, so a round's figure is their mean: the
sum of a step's messages is what counts, and small ones are bimodal over gloo (0.4 ms, or 4 ms where a thread
waits for its turn on the processor). A burst of something else on the machine lasts for whole rounds and only
adds time, so the slowest third of the rounds is left out, and the mean of the others stands for the size.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from statistics import fmean, median
from typing import Any

from sim.nouns.hardware import Curve, CurvePoint
from sim.units import format_ms, format_percent, format_size

WITHIN = 0.03  # a figure is settled if its 95 % interval reaches no farther to either side than this share
WITHIN_NS = 200_000  # or this, for small messages: threads that wait for their turn scatter by milliseconds
FEWEST_ROUNDS = 5  # of which an interval can be told
_STALLED = 1.25  # times the clean figure, from which on a single message was held up
_RESAMPLES = 200


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
    if len(rounds) < FEWEST_ROUNDS:
        return False
    figure = figure_ns(rounds)
    low, high = interval_ns(rounds)
    return max(figure - low, high - figure) <= max(WITHIN * figure, WITHIN_NS)


def modes(rounds: Sequence[Sequence[int]]) -> tuple[int, int | None, float]:
    """ns of a message that was not held up, ns of one that was (None: none was), and the latter's share."""
    samples = [sample for one in rounds for sample in one]
    clean = _middle(samples)
    stalled = [sample for sample in samples if sample > _STALLED * clean]
    return round(clean), round(median(stalled)) if stalled else None, len(stalled) / len(samples)


def _without_bursts(means: Sequence[float]) -> float:
    """The mean without the slowest third."""
    return fmean(sorted(means)[: len(means) - len(means) // 3])


def _middle(values: Sequence[float]) -> float:
    """The median of the shortest interval that holds more than half of the values."""
    ordered = sorted(values)
    half = len(ordered) // 2 + 1
    starts = range(len(ordered) - half + 1)
    start = min(starts, key=lambda at: ordered[at + half - 1] - ordered[at])
    return float(median(ordered[start : start + half]))


# How far a 95 % interval may reach to either side: this share of the time, or so many ns if that is more.
# Small messages over gloo scatter by some tenths of a millisecond on any machine; the tuner's intervals
# contain that, and measuring again would not help.
_WITHIN, _WITHIN_NS = 0.03, 500_000
_JUMP = 1.25  # times what the points on both sides lead to


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubtfulPoint:
    """A point of a curve that is not to be relied on, and why, in words without its size."""

    num_bytes: int
    why: str


def doubtful_points(curve: Curve, spread: Any) -> tuple[DoubtfulPoint, ...]:
    """Points not to be relied on, by size, with one reason each.

    A point is doubtful where a larger message takes less, where it takes far more than its neighbours lead
    to, or where its 95 % interval is wide (``low_ns`` and ``high_ns`` of its size in ``spread``).
    """
    found: dict[int, str] = {}
    for before, after in pairwise(curve):
        if after.duration_ns < (1 - _WITHIN) * before.duration_ns - _WITHIN_NS:
            found[before.num_bytes] = (
                f"takes {format_ms(before.duration_ns)}, and {format_size(after.num_bytes)} take "
                f"{format_ms(after.duration_ns)}"
            )
    for before, point, after in zip(curve, curve[1:], curve[2:], strict=False):
        expected = _between(before, point, after)
        if expected and point.duration_ns > _JUMP * expected + _WITHIN_NS:
            found.setdefault(
                point.num_bytes,
                f"takes {format_ms(point.duration_ns)}, where the points on both sides lead to "
                f"{format_ms(expected)}",
            )
    for point in curve if isinstance(spread, Mapping) else ():
        known = spread.get(str(point.num_bytes))
        low, high = (_number(known, name) for name in ("low_ns", "high_ns"))
        if low is None or high is None:
            continue
        if max(point.duration_ns - low, high - point.duration_ns) > max(
            _WITHIN * point.duration_ns, _WITHIN_NS
        ):
            found[point.num_bytes] = (
                f"scatters: {format_ms(low)} to {format_ms(high)} with 95 % confidence" + _stalls(known)
            )
    return tuple(DoubtfulPoint(num_bytes=size, why=found[size]) for size in sorted(found))


def _number(known: Any, name: str) -> float | None:
    """A number of what a file's ``spread`` keeps of a point; None where it has none."""
    value = known.get(name) if isinstance(known, dict) else None
    return value if isinstance(value, int | float) else None


def _stalls(known: Any) -> str:
    share, stalled, clean = (_number(known, name) for name in ("stalled_share", "stalled_ns", "clean_ns"))
    if not share or stalled is None or clean is None:
        return ""
    return (
        f"; {format_percent(share, 0)} of its messages were held up, for {format_ms(stalled)} instead of "
        f"{format_ms(clean)}"
    )


def _between(before: CurvePoint, point: CurvePoint, after: CurvePoint) -> float:
    """What the points on both sides lead to, straight between logarithms; 0 where one takes no time."""
    if not (before.num_bytes and before.duration_ns and after.duration_ns):
        return 0.0
    share = log(point.num_bytes / before.num_bytes) / log(after.num_bytes / before.num_bytes)
    return exp((1 - share) * log(before.duration_ns) + share * log(after.duration_ns))
