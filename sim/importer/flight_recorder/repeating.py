"""The pattern that a sequence repeats."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

MOST_LOOKED_AT = 20_000  # the newest; longer sequences would take minutes


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """``sequence[start:stop]`` repeats with ``period``; its last repeat may be cut off."""

    start: int
    stop: int
    period: int


def find_repeat(sequence: Sequence[Hashable]) -> Repeat | None:
    """The longest part of ``sequence`` that repeats, with its shortest period; None: nothing does.

    A part has at least two whole periods. Of equally long parts the one with the shortest period is returned,
    of these the last. Only the newest 20,000 members are looked at.
    """
    skipped = max(0, len(sequence) - MOST_LOOKED_AT)
    numbers: dict[Hashable, int] = {}
    codes = np.array(
        [numbers.setdefault(member, len(numbers)) for member in sequence[skipped:]], dtype=np.int64
    )
    best: Repeat | None = None
    for period in range(1, len(codes) // 2 + 1):
        if best is not None and best.start == skipped and best.stop == len(sequence):
            break
        begin, length = _longest_run(codes[period:] == codes[:-period])
        is_longer = best is None or length + period > best.stop - best.start
        if length >= period and is_longer:
            start = skipped + begin
            best = Repeat(start=start, stop=start + length + period, period=period)
    return best


def _longest_run(same: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> tuple[int, int]:
    """Begin and length of the longest run of True; of equally long ones the last."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    if not len(begins):
        return 0, 0
    last = len(begins) - 1 - int(np.argmax((ends - begins)[::-1]))
    return int(begins[last]), int(ends[last] - begins[last])
