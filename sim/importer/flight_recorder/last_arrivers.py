"""One collective on all ranks: how long it takes once all are there, and who came last."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from sim.importer.flight_recorder.calls import Call
from sim.importer.flight_recorder.repeated_steps import Key, is_bucket
from sim.nouns.hardware import CurvePoint
from sim.nouns.imported import RankRow

Calls = Mapping[Key, Call]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """A rank's clock against the first rank's: ns by which it is ahead, and how far those may be off."""

    offset_ns: int
    scatter_ns: int

    @property
    def correction_ns(self) -> int:
        """The offset, or 0 if its scatter is larger: it would then not make the clocks agree better."""
        return self.offset_ns if abs(self.offset_ns) > self.scatter_ns else 0


def common(ranks: Sequence[Calls]) -> list[Key]:
    """The collectives that all ranks recorded alike, in order."""
    first = ranks[0]
    return sorted(
        key
        for key, call in first.items()
        if all(key in other and call.is_like(other[key]) for other in ranks[1:])
    )


def transfers(ranks: Sequence[Calls]) -> dict[int, list[int]]:
    """Durations in ns of all-reduces by bytes: of each the least over ranks, which is the last arriver's.

    A kernel of a rank that is early spins until the last has come, so longer durations hold the waiting.
    """
    found: dict[int, list[int]] = defaultdict(list)
    for key in common(ranks):
        calls = [calls[key] for calls in ranks]
        durations = [call.duration_ns for call in calls if call.duration_ns is not None]
        if is_bucket(calls[0]) and calls[0].num_bytes > 0 and len(durations) == len(calls):
            found[calls[0].num_bytes].append(min(durations))
    return dict(found)


def curve(samples: Mapping[int, Sequence[int]], alone: bool) -> tuple[CurvePoint, ...]:
    """The median of the transfers of each size; of a single rank the least, which waited least."""
    return tuple(
        CurvePoint(num_bytes=size, duration_ns=min(times) if alone else round(median(times)))
        for size, times in sorted(samples.items())
    )


def spread(samples: Mapping[int, Sequence[int]]) -> dict[str, dict[str, Any]]:
    """The scatter of each size with more than one transfer, as ``Hardware.spread`` has it."""
    rows = {}
    for size, times in sorted(samples.items()):
        if len(times) > 1:
            low, high = np.quantile(times, [0.1, 0.9])
            rows[str(size)] = {
                "count": len(times),
                "quantile": "median",
                "min_ns": min(times),
                "p10_ns": round(float(low)),
                "median_ns": round(median(times)),
                "p90_ns": round(float(high)),
            }
    return rows


def align(ranks: Sequence[Calls]) -> list[RankClock] | None:
    """Each rank's clock by the ends of the collectives that all completed; None where none has an end."""
    keys = [key for key in common(ranks) if all(calls[key].completed_ns for calls in ranks)]
    if not keys:
        return None
    ends = np.array([[calls[key].completed_ns or 0 for key in keys] for calls in ranks], dtype=np.int64)
    offsets = np.median(ends - ends[0], axis=1).round().astype(np.int64)
    aligned = ends - offsets[:, None]
    scatters = np.abs(aligned - np.median(aligned, axis=0)).max(axis=1)
    return [
        RankClock(offset_ns=int(offset), scatter_ns=round(float(scatter)))
        for offset, scatter in zip(offsets, scatters, strict=True)
    ]


def arrivals(
    numbers: Sequence[int], ranks: Sequence[Calls], keys: Sequence[Key], clocks: Sequence[RankClock] | None
) -> tuple[tuple[RankRow, ...], str]:
    """A row for each rank over the collectives ``keys``, and words for what told who came last.

    Durations tell it if all ranks have them: the last arriver's is the shortest. Otherwise launch times do,
    by aligned ``clocks``, or without them by the ranks' own.
    """
    by_duration = bool(keys) and all(calls[key].duration_ns is not None for calls in ranks for key in keys)
    last: Counter[int] = Counter()
    waited: list[list[int]] = [[] for _ in ranks]
    for key in keys:
        if by_duration:
            waits = [calls[key].duration_ns or 0 for calls in ranks]
            waits = [wait - min(waits) for wait in waits]
        else:
            shifts = [clock.correction_ns for clock in clocks] if clocks else [0] * len(ranks)
            times = [calls[key].created_ns - shift for calls, shift in zip(ranks, shifts, strict=True)]
            waits = [max(times) - time for time in times]
        last[waits.index(0)] += 1
        for place, wait in enumerate(waits):
            waited[place].append(wait)
    rows = tuple(
        RankRow(
            rank=number,
            clock_offset_ns=clocks[place].offset_ns if clocks else None,
            clock_scatter_ns=clocks[place].scatter_ns if clocks else None,
            collectives=len(keys),
            came_last=last[place] if len(ranks) > 1 and keys else None,
            waited_ns=round(median(waited[place])) if len(ranks) > 1 and keys else None,
        )
        for place, number in enumerate(numbers)
    )
    how = "the shortest duration" if by_duration else "the launch times"
    return rows, how
