"""A running job held to its prediction: each step, and the errors of unseen ones."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from sim.clock.arrays import Ints
from sim.errors import SimError
from sim.live.follower import COLUMNS, Followed, FollowedRank, Rows
from sim.metrics.intervals import step_of_ranks
from sim.nouns.recording import RecordedLayout, Recording
from sim.truth.recorded_job import RecordedJob

RECENT_STEPS = 50  # of the rolling median, and of what is called recent
_LATEST_STEPS = 200  # which tell how far apart steps begin

_SERIES = np.dtype([(name, np.int64) for name in (*COLUMNS, "predicted")])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """What is predicted from ``step`` on, when the job has these buckets; None where ``why_not`` says why."""

    step: int
    step_ns: int | None
    why_not: str = ""


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
class LiveReport:
    """Measured against predicted so far; ``calibrated`` is (first step, last step) of the window.

    ``series`` are the steps that every rank has finished, in ``COLUMNS``, each told by the rank that is
    slowest in it: the one whose own work until the end of its backward takes longest. ``predicted`` is the
    predicted step, -1 where there is none; ``layouts`` what is predicted for each of the job's. ``window``
    holds the errors of the window's own steps: what the model is off by on what it was made from.
    ``recent_ns`` is the median of the latest steps, ``left_out`` counts steps of other micro-batches.
    ``period_ns`` is the median time from the start of one step to that of the next, by the wall clock: data
    loading and all else between steps are in it.
    """

    series: Rows
    calibrated: tuple[int, int]
    layouts: tuple[LayoutPrediction, ...]
    unseen: Unseen | None
    recent_ns: int | None
    window: Unseen | None = None
    left_out: int = 0
    period_ns: int | None = None


def judge(followed: Followed, window: Recording, job: RecordedJob) -> LiveReport:
    """Every step that all ranks have finished, against what ``job`` predicts for its buckets, the job that
    the steps of ``window`` tell of.

    Steps with another number of micro-batches than those of the job are left out and counted. Only steps
    after the window are judged, and of these the ones with the buckets that the job has now.
    """
    switches, layouts = job.workload.switches, _predicted(job, followed.ranks[0].layouts)
    first, last = (window.ranks[0].steps[end].step for end in (0, -1))
    count = switches.get("accumulation_steps", 1)
    series, left_out = _job_steps(followed.ranks, (count, count if switches.get("no_sync") is False else 1))
    for layout in layouts:
        series.predicted[series.step >= layout.step] = -1 if layout.step_ns is None else layout.step_ns
    now = layouts[-1].step if layouts else 0
    is_known = series.predicted > 0
    after = series[is_known & (series.step >= now) & (series.step > last)]
    inside = series[is_known & (series.step >= first) & (series.step <= last)]
    return LiveReport(
        series=series,
        calibrated=(first, last),
        layouts=layouts,
        unseen=_unseen(after.step_ns, after.predicted),
        recent_ns=round(float(np.median(series.step_ns[-RECENT_STEPS:]))) if len(series) else None,
        window=_unseen(inside.step_ns, inside.predicted),
        left_out=left_out,
        period_ns=_period_ns(series[-_LATEST_STEPS:]),
    )


def _predicted(job: RecordedJob, layouts: tuple[RecordedLayout, ...]) -> tuple[LayoutPrediction, ...]:
    """What is predicted for each layout; those that come back are played once."""

    def step_of(buckets: tuple[tuple[int, ...], ...]) -> dict[str, Any]:
        try:
            return {"step_ns": job.predict(buckets)}
        except SimError as error:
            return {"step_ns": None, "why_not": str(error)}

    return tuple(LayoutPrediction(step=one.step, **step_of(one.bucket_indices)) for one in layouts)


def _job_steps(ranks: tuple[FollowedRank, ...], accumulation: tuple[int, int]) -> tuple[Rows, int]:
    """Rows of the slowest rank in each common step, with ``step_of_ranks``; and how many are left out."""
    numbers: Ints = reduce(np.intersect1d, [rank.steps.step for rank in ranks])
    table: Any = np.stack([rank.steps[np.searchsorted(rank.steps.step, numbers)] for rank in ranks])
    alike = (table["backwards"] == accumulation[0]) & (table["reduced"] == accumulation[1])
    table = table[:, alike.all(axis=0)]
    slowest = table["own"].argmax(axis=0)
    series: Any = np.full(table.shape[1], -1, _SERIES).view(np.recarray)
    for name in COLUMNS:
        series[name] = table[name][slowest, np.arange(len(series))]
    series.step_ns = step_of_ranks(table["step_ns"])
    return series, len(numbers) - len(series)


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


def _period_ns(series: Rows) -> int | None:
    """The median time from one step's start to the next; None before there are two."""
    if len(series) < 2:
        return None
    period = round(float(np.median(np.diff(series.started_at) / np.diff(series.step))))
    return period if period > 0 else None
