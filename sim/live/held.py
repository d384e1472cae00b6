"""A running job held to its prediction: each step, errors of unseen ones, drift, who is last."""

import math
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.clock.arrays import Floats, Ints
from sim.live.calibration import Calibration
from sim.live.follower import Column, Followed, FollowedRank, StepColumns
from sim.truth.recorded_job import PARTS, StepParts

RECENT_STEPS = 50  # of the rolling median, and of what is called recent
_LATENESS_STEPS = 200
_PERIOD_STEPS = 200
_RARE = 0.001  # the chance of what is told of a rank, were all alike
# Drift: errors are taken together in blocks, a block by its median, so that a few long steps leave no trace.
BLOCK = 10
FEWEST = 4  # blocks on each side; of known steps two will do
_MOST_BLOCKS = 400
_SMALL = 0.01  # of a step: less is never told
_CLEAR = 6.0  # times the blocks' median distance from the level of their side
_BEYOND = 0.9  # of the blocks on each side lie on that side of the middle between both levels

_COLUMNS = ("started_at", "step_ns", *PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries(StepColumns):
    """The job's steps that every rank has finished.

    Each step is told by the rank that is slowest in it: the one whose own work until the end of its backward
    takes longest. ``late_by`` is how much later than the median of the others the last rank came to the end
    of backward, ``last_rank`` which that was. ``predicted`` is the predicted step, -1 where there is none.
    """

    last_rank: Column
    late_by: Column
    predicted: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """How some steps compare with their prediction: the ones that it was not made from, or its window's.

    Errors are measured / predicted - 1, so that longer steps have larger ones; ``low`` and ``high`` hold nine
    of ten steps between them.
    """

    count: int
    measured_ns: int
    predicted_ns: int
    median_error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Steps became longer or shorter for good. Shares are of the predicted step.

    ``before`` and ``after`` are median errors on either side of ``since_step``, ``shift`` their difference;
    ``parts`` holds the shift of each of ``PARTS``.
    """

    since_step: int
    before: float
    after: float
    shift: float
    parts: dict[str, float]

    @property
    def largest_part(self) -> str:
        """The part that moved furthest in the direction of the whole."""
        sign = 1.0 if self.shift >= 0 else -1.0
        return max(self.parts, key=lambda name: sign * self.parts[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """How often one rank is the last to end its backward, and by how much in the median of those steps.

    ``is_chance``: ranks that are alike would come last so often, too.
    """

    rank: int
    share: float
    behind_ns: int
    is_chance: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReport:
    """Measured against predicted so far; ``calibrated`` is (first step, last step) of the window.

    ``window`` holds the errors of the window's own steps: what the model is off by on what it was made from.
    ``recent`` holds medians of the latest steps, ``left_out`` counts steps of other micro-batches.
    ``period_ns`` is the median time from the start of one step to that of the next, by the wall clock: data
    loading and all else between steps are in it.
    """

    series: StepSeries
    calibrated: tuple[int, int]
    unseen: Unseen | None
    drift: Drift | None
    lateness: tuple[Lateness, ...]
    recent: StepParts | None
    window: Unseen | None = None
    left_out: int = 0
    period_ns: int | None = None

    @property
    def window_error(self) -> float | None:
        """The median error of the window's own steps."""
        return None if self.window is None else self.window.median_error


def judge(followed: Followed, calibration: Calibration) -> LiveReport:
    """Every step that all ranks have finished, against what ``calibration`` predicts for its buckets.

    Steps with another number of micro-batches than the calibrated ones are left out and counted. Only steps
    after the window are judged, and of these the ones with the buckets that the job has now.
    """
    table, last_rank, late_by, left_out = _job_steps(followed.ranks, calibration.accumulation)
    numbers = table["step"]
    predicted = _predicted(calibration, numbers)
    inside = (numbers >= calibration.first_step) & (numbers <= calibration.last_step)
    inside &= predicted["step_ns"] > 0
    after = (numbers > calibration.last_step) & (predicted["step_ns"] > 0)
    known = inside
    if calibration.layouts:  # what another layout's prediction is off by is no drift
        is_now = numbers >= calibration.layouts[-1].step
        after, known = after & is_now, known & is_now
    series = StepSeries(
        **{name: _column(table[name]) for name in ("step", *_COLUMNS)},
        last_rank=_column(last_rank),
        late_by=_column(late_by),
        predicted=_column(predicted["step_ns"]),
    )
    return LiveReport(
        series=series,
        calibrated=(calibration.first_step, calibration.last_step),
        unseen=_unseen(table["step_ns"][after], predicted["step_ns"][after]),
        drift=_drift(table, predicted, known, after),
        lateness=_lateness(last_rank, late_by, len(followed.ranks)) if len(followed.ranks) > 1 else (),
        recent=_recent(table),
        window=_unseen(table["step_ns"][inside], predicted["step_ns"][inside]),
        left_out=left_out,
        period_ns=_period_ns(table),
    )


def _numbers(values: Column) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, np.int64)


def _column(values: Ints) -> Column:
    return array("q", np.ascontiguousarray(values, dtype=np.int64).tobytes())


def _job_steps(
    ranks: tuple[FollowedRank, ...], accumulation: tuple[int, int]
) -> tuple[dict[str, Ints], Ints, Ints, int]:
    """Columns of the slowest rank in each common step; the last rank and by how much; steps left out."""
    numbers = _numbers(ranks[0].steps.step)
    for rank in ranks[1:]:
        own = _numbers(rank.steps.step)
        if len(own) != len(numbers) or not np.array_equal(own, numbers):
            numbers = np.intersect1d(numbers, own, assume_unique=True)
    stacked: dict[str, Ints] = {}
    picks = [np.searchsorted(_numbers(rank.steps.step), numbers) for rank in ranks]
    for name in (*_COLUMNS, "arrival", "backwards", "reduced"):
        stacked[name] = np.stack(
            [_numbers(getattr(rank.steps, name))[pick] for rank, pick in zip(ranks, picks, strict=True)]
        )
    alike = (stacked["backwards"] == accumulation[0]) & (stacked["reduced"] == accumulation[1])
    is_kept = alike.all(axis=0)
    stacked = {name: column[:, is_kept] for name, column in stacked.items()}
    numbers = numbers[is_kept]
    own_work = stacked["before"] + stacked["forward"] + stacked["backward"]
    slowest = own_work.argmax(axis=0)
    at = np.arange(len(numbers))
    table = {name: stacked[name][slowest, at] for name in _COLUMNS}
    table["step"] = numbers
    # a GPU's host runs ahead of it, so that the wall clock says when work was asked for, not when it ran
    on_host = ranks[0].header.clock == "host"
    begun = stacked["started_at"] - stacked["started_at"].min(axis=0) if on_host else 0
    arrival = stacked["arrival"] + begun
    last = arrival.argmax(axis=0)
    late_by = np.zeros(len(numbers), np.int64)
    if len(ranks) > 1 and len(numbers):
        others = np.sort(arrival, axis=0)[:-1]
        late_by = (arrival.max(axis=0) - np.median(others, axis=0)).astype(np.int64)
    names = np.array([rank.header.rank for rank in ranks], np.int64)
    return table, names[last], late_by, int((~is_kept).sum())


def _predicted(calibration: Calibration, numbers: Ints) -> dict[str, Ints]:
    """The prediction of each step by its layout, in the parts of a step; -1 where there is none."""
    columns = {name: np.full(len(numbers), -1, np.int64) for name in ("step_ns", *PARTS)}
    for layout in calibration.layouts:
        since = numbers >= layout.step
        for name, column in columns.items():
            if layout.parts is None:
                column[since] = -1
            else:
                column[since] = layout.parts.step_ns if name == "step_ns" else layout.parts.part_ns(name)
    return columns


def _unseen(measured: Ints, predicted: Ints) -> Unseen | None:
    if not len(measured):
        return None
    errors = measured / predicted - 1
    low, middle, high = np.quantile(errors, (0.05, 0.5, 0.95))
    return Unseen(
        count=len(errors),
        measured_ns=round(float(np.median(measured))),
        predicted_ns=int(predicted[-1]),
        median_error=float(middle),
        low=float(low),
        high=float(high),
    )


def _drift(
    table: dict[str, Ints], predicted: dict[str, Ints], known: NDArray[np.bool_], after: NDArray[np.bool_]
) -> Drift | None:
    """A lasting change of the steps ``after`` the window, whose own steps are ``known``."""
    errors: Floats = table["step_ns"] / np.maximum(1, predicted["step_ns"]) - 1
    place = find_change(errors[after], errors[known])
    if place is None:
        return None
    since = table["step"][after][place]
    old, new = (known | after) & (table["step"] < since), after & (table["step"] >= since)
    before, later = float(np.median(errors[old])), float(np.median(errors[new]))
    parts = {}
    for name in PARTS:
        off = (np.maximum(0, table[name]) - predicted[name]) / np.maximum(1, predicted["step_ns"])
        parts[name] = float(np.median(off[new]) - np.median(off[old]))
    return Drift(
        since_step=int(since),
        before=before,
        after=later,
        shift=later - before,
        parts=parts,
    )


def find_change(errors: Floats, known: Floats) -> int | None:
    """Where the level of ``errors`` (shares, in order of steps) changes for good; None where it does not.

    ``known`` are errors of the steps just before them whose level is the expected one. The change is where
    two medians fit the blocks best. It is one if the levels are clearly apart beside what blocks scatter, and
    nearly all blocks on either side lie on that side, to the last: what has gone again is no drift. Of 60
    series of 1,000 steps without any, looked at every 10 steps, none has ever an alarm, three where
    neighbours are correlated by 0.8; of changes by the standard deviation of a single step half are told,
    of twice that all.
    """
    size = max(BLOCK, -(-len(errors) // _MOST_BLOCKS))
    first, rest = _blocks(known, BLOCK), _blocks(errors, size)
    skipped = len(errors) - len(rest) * size
    blocks = np.concatenate([first, rest])
    count, few = len(blocks), max(2, min(FEWEST, len(first)))
    places = range(few, count - FEWEST + 1)
    if not places:
        return None

    def off(place: int) -> Floats:
        """How far blocks are from the level of their side."""
        levels = np.repeat([np.median(blocks[:place]), np.median(blocks[place:])], [place, count - place])
        return np.asarray(np.abs(blocks - levels), float)

    place = min(places, key=lambda place: float(off(place).sum()))
    before, after = float(np.median(blocks[:place])), float(np.median(blocks[place:]))
    if abs(after - before) < max(_SMALL, _CLEAR * float(np.median(off(place)))):
        return None
    is_new = (blocks - (before + after) / 2) * (after - before) > 0
    if min(float(is_new[place:].mean()), float(1 - is_new[:place].mean())) < _BEYOND:
        return None
    return max(0, skipped + (place - len(first)) * size)


def _blocks(values: Floats, size: int) -> Floats:
    """Medians of so many neighbours; the oldest ones that fill no block are left out."""
    count = len(values) // size
    return np.asarray(np.median(values[len(values) - count * size :].reshape(count, size), axis=1), float)


def _period_ns(table: dict[str, Ints]) -> int | None:
    """The median time from one step's start to the next, over the latest; None before there are two."""
    starts, numbers = table["started_at"][-_PERIOD_STEPS:], table["step"][-_PERIOD_STEPS:]
    if len(starts) < 2:
        return None
    period = round(float(np.median(np.diff(starts) / np.diff(numbers))))
    return period if period > 0 else None


def _lateness(last_rank: Ints, late_by: Ints, ranks: int) -> tuple[Lateness, ...]:
    """Ranks by how often they were last among the latest steps, the most frequent first."""
    recent, late = last_rank[-_LATENESS_STEPS:], late_by[-_LATENESS_STEPS:]
    rows = [
        Lateness(
            rank=int(rank),
            share=float((recent == rank).mean()),
            behind_ns=round(float(np.median(late[recent == rank]))),
            is_chance=_chance(int((recent == rank).sum()), len(recent), ranks) >= _RARE,
        )
        for rank in np.unique(recent)
    ]
    return tuple(sorted(rows, key=lambda row: (-row.share, row.rank)))


def _chance(count: int, steps: int, ranks: int) -> float:
    """How probably any of ``ranks`` that are alike is last in ``count`` or more of ``steps``."""
    one = 1 / ranks
    tail = sum(math.comb(steps, k) * one**k * (1 - one) ** (steps - k) for k in range(count, steps + 1))
    return min(1.0, ranks * tail)


def _recent(table: dict[str, Ints]) -> StepParts | None:
    """Medians of the latest steps, part by part; the step is the median of steps."""
    if not len(table["step"]):
        return None
    middle = {
        name: round(float(np.median(np.maximum(0, table[name][-RECENT_STEPS:]))))
        for name in ("step_ns", *PARTS)
    }
    return StepParts(
        before_ns=middle["before"],
        forward_ns=middle["forward"],
        backward_ns=middle["backward"],
        sync_ns=middle["sync"],
        optimizer_ns=middle["optimizer"],
        step_ns=middle["step_ns"],
    )
