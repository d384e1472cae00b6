"""What samples come to: one time for all messages of a size, and whether it can be relied on; costs.

A round sends about as many messages of a size as a training step does, so a round's figure is their mean: the
sum of a step's messages is what counts, and small ones are bimodal over gloo (0.4 ms, or 4 ms where a thread
waits for its turn on the processor). A burst of something else on the machine lasts for whole rounds and only
adds time, so the slowest third of the rounds is left out, and the mean of the others stands for the size.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import numpy as np

from sim.nouns.hardware import Curve
from sim.units import format_ms, format_size

Fields = dict[str, Any]
Found = tuple[Fields, Fields]  # fields of a Hardware, and of its ``spread``

WITHIN = 0.03  # a figure is settled if its 95 % interval reaches no farther to either side than this share
WITHIN_NS = 200_000  # or this, for small messages: threads that wait for their turn scatter by milliseconds
FEWEST_ROUNDS = 5  # of which an interval can be told
_RESAMPLES = 200
# A point is doubted beyond this: small messages over gloo scatter by some tenths of a millisecond on any
# machine; the tuner's intervals contain that, and measuring again would not help.
_DOUBTED_NS = 500_000
_MOST_HELD_UP = 20


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


def doubtful_points(points: Curve, spread: Mapping[str, Any]) -> dict[int, str]:
    """Points not to be relied on: by size in bytes one reason each, in words without its size.

    A point is doubtful where a larger message takes less, or where its 95 % interval is wide (``low_ns`` and
    ``high_ns`` of its size in ``spread``).
    """
    found: dict[int, str] = {}
    for before, after in pairwise(points):
        if after.duration_ns < (1 - WITHIN) * before.duration_ns - _DOUBTED_NS:
            found[before.num_bytes] = (
                f"takes {format_ms(before.duration_ns)}, and {format_size(after.num_bytes)} take "
                f"{format_ms(after.duration_ns)}"
            )
    for point in points:
        known = spread.get(str(point.num_bytes), {})
        low, high = (known.get(end, point.duration_ns) for end in ("low_ns", "high_ns"))
        if _is_wide(point.duration_ns, low, high, _DOUBTED_NS):
            found[point.num_bytes] = f"scatters: {format_ms(low)} to {format_ms(high)} with 95 % confidence"
    return dict(sorted(found.items()))


# Fields of a Hardware out of samples in ns, and their scatter.


def curve(name: str, rounds: Mapping[int, list[list[int]]]) -> Found:
    """A curve out of samples by size and round."""
    points = [{"num_bytes": size, "duration_ns": figure_ns(rounds[size])} for size in sorted(rounds)]
    spread = {}
    for size, one in sorted(rounds.items()):
        samples = [sample for each in one for sample in each]
        low, high = interval_ns(one)
        spread[str(size)] = {
            **scatter(samples),
            "quantile": "mean without the slowest third of the rounds",
            "median_ns": round(median(samples)),
            "rounds": len(one),
            "low_ns": low,
            "high_ns": high,
        }
    return ({name: points}, {name: spread}) if points else ({}, {})


def scatter(samples: Sequence[int]) -> Fields:
    """What is kept of samples."""
    low, high = np.quantile(samples, [0.1, 0.9])
    return {
        "count": len(samples),
        "quantile": "median",
        "p10_ns": round(float(low)),
        "p90_ns": round(float(high)),
        "min_ns": min(samples),
    }


def cost(name: str, samples: Sequence[int]) -> Found:
    """A cost in ns, at least 0."""
    return {name: max(0, round(median(samples)))}, {name: scatter(samples)}


def rate(name: str, num_bytes: int, samples: Sequence[int]) -> Found:
    """``name_bytes_per_s``; what is too fast to be seen is free."""
    middle = round(median(samples))
    per_s = round(num_bytes * 1e9 / middle, 0) if middle > 0 else None
    return {f"{name}_bytes_per_s": per_s}, {f"{name}_ns": {"num_bytes": num_bytes, **scatter(samples)}}


def slowdown(name: str, alone_ns: Sequence[int], beside_ns: Sequence[int]) -> Found:
    """How many times longer it takes beside something else: ratio of medians, at least 1."""
    ratio = max(1.0, round(median(beside_ns) / max(1, median(alone_ns)), 4))
    pair = {"alone": scatter(alone_ns), "beside": scatter(beside_ns)}
    return {f"{name}_slowdown": ratio}, {f"{name}_slowdown": pair}


def held_up(copy_ns: Sequence[int], extra_ns: Sequence[int]) -> float:
    """Stretch of a collective while copies are under way, from how much longer it took in all.

    In ``copy_ns`` of copying it fell behind by ``extra_ns``: it got done what takes the difference, at
    least a part in ``_MOST_HELD_UP``.
    """
    copying = median(copy_ns)
    done = min(copying, max(copying - median(extra_ns), copying / _MOST_HELD_UP))
    return round(copying / done, 4) if done > 0 else 1.0


def together(*found: Found) -> Found:
    """All of these."""
    fields, spread = Fields(), Fields()
    for more, scattered in found:
        fields |= more
        spread |= scattered
    return fields, spread
