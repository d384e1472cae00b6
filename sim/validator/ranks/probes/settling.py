"""One time for all messages of a size, and whether enough rounds agree on it. Standard library only.

A round sends about as many messages of a size as a training step does, so a round's figure is their mean: the
sum of a step's messages is what counts, and small ones are bimodal over gloo (0.4 ms, or 4 ms where a thread
waits for its turn on the processor). A burst of something else on the machine lasts for whole rounds and only
adds time, so the slowest third of the rounds is left out, and the mean of the others stands for the size.
"""

import random
from collections.abc import Sequence
from statistics import fmean, median

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
