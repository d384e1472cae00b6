"""What a running job is predicted to do: which steps that is made from, the step of each layout, the gain.

All steps but those of the window are ones that a prediction has not seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from sim.costs.doubts import doubts_about_step
from sim.errors import InputError, NotModelledError, SimError
from sim.importer.recorded import FEWEST_BACKWARDS, warmup_steps
from sim.live.follower import Followed
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Recommendation
from sim.nouns.recording import RecordedLayout, Recording
from sim.truth.recorded_job import RecordedJob, job_in_recording
from sim.units import format_ranks

CALIBRATION_STEPS = 20
_FIRST = 5
_SETTLED = 1.1  # times the median of later steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """What is predicted from ``step`` on, when the job has these buckets; None where ``why_not`` says why."""

    step: int
    step_ns: int | None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the first steps of a job say: the job, and what is predicted for each of its layouts.

    ``notes`` say what was assumed.
    """

    first_step: int
    last_step: int
    job: RecordedJob
    layouts: tuple[LayoutPrediction, ...]
    notes: tuple[str, ...] = ()


def live_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The first ``steps`` steps after warm-up that all ranks have finished; None until there are so many.

    Steps that still become shorter count as warm-up, too, as long as ``steps`` others are kept whole.

    Raises:
        InputError: fewer than three steps, or more than are kept whole.
    """
    kept = followed.first
    if kept is None:
        return None
    if steps < FEWEST_BACKWARDS:
        raise InputError(f"steps: {steps} is not legal; give an integer >= {FEWEST_BACKWARDS}")
    if steps > followed.whole_steps:
        raise InputError(
            f"steps: {steps} is not legal; of {len(followed.ranks)} ranks {followed.whole_steps} whole steps "
            f"are kept"
        )
    warmup = warmup_steps(kept.ranks[0].header.clock)
    on_ranks = [{step.step for step in rank.steps if step.step > warmup} for rank in kept.ranks]
    numbers = sorted(set.intersection(*on_ranks))
    skipped = _settling(kept, numbers, steps, followed.whole_steps - steps)
    numbers = numbers[skipped : skipped + steps]
    if len(numbers) < steps:
        return None
    ranks = []
    for rank in kept.ranks:
        layouts = tuple(layout for layout in rank.layouts if layout.step <= numbers[-1])
        inside = tuple(step for step in rank.steps if step.step in numbers)
        ranks.append(replace(rank, layouts=layouts, steps=inside))
    return replace(kept, ranks=tuple(ranks))


def _settling(recording: Recording, numbers: list[int], count: int, most: int) -> int:
    """How many of ``numbers``, at most ``most``, are skipped because steps still become shorter.

    Steps have settled where the first ones take no more than ``_SETTLED`` times the median of later ones.
    Later are the second half of the next ``2 * count`` steps: once these exist, the answer stays.
    """
    longest = dict.fromkeys(numbers, 0)
    for rank in recording.ranks:
        for step in rank.steps:
            if step.step in longest:
                longest[step.step] = max(longest[step.step], step.step_ns)
    took = list(longest.values())
    for skipped in range(min(most, len(took))):
        ahead = took[skipped : skipped + 2 * count]
        longest_ns = _SETTLED * median(ahead[len(ahead) // 2 :])
        if max(ahead[0], median(ahead[:_FIRST])) <= longest_ns:
            return skipped
    return max(0, most)


def calibrate_live(
    window: Recording, layouts: Iterable[RecordedLayout], hardware: Hardware | None = None
) -> Calibration:
    """The job as the steps of ``window`` tell it, and the step that is predicted for each of ``layouts``.

    Args:
        window: whole steps of all ranks, as ``live_window`` gives them.
        layouts: DDP's buckets, as the job reports them.
        hardware: the machine; None makes one of the collectives of ``window``.

    Raises:
        InputError: too few steps, a hardware of another number of ranks, or no hardware and no buckets.
        NotModelledError: settings of the job that no engine models.
    """
    job = job_in_recording(window, hardware)
    return Calibration(
        first_step=window.ranks[0].steps[0].step,
        last_step=window.ranks[0].steps[-1].step,
        job=job,
        layouts=tuple(_predict(job, layout) for layout in layouts),
        notes=_notes(window, job),
    )


def live_gain(calibration: Calibration, layout: RecordedLayout, *, draws: int = 400) -> Recommendation:
    """``sim.tune``'s answer for this job against ``layout``, which it has now; predicted, not measured.

    Raises:
        InputError, NotModelledError: buckets that do not fit, or switches under which no search was made.
    """
    try:
        return calibration.job.tune(layout.bucket_indices, draws=draws)
    except NotModelledError as error:
        raise NotModelledError(f"gain: {error}") from None


def _predict(job: RecordedJob, layout: RecordedLayout) -> LayoutPrediction:
    try:
        return LayoutPrediction(step=layout.step, step_ns=job.predict(layout.bucket_indices))
    except SimError as error:
        return LayoutPrediction(step=layout.step, step_ns=None, why_not=str(error))


def _notes(window: Recording, job: RecordedJob) -> tuple[str, ...]:
    """What was assumed, a sentence each."""
    told = []
    if job.own is None:
        told.append(f"Not held to the job's own step: {job.why_not}.")
    else:
        told += [f"Doubtful: {line}." for line in (*doubts_about_step(job.hardware), *job.own.doubtful)]
    if job.link_is_own:
        missing = " Ranks are missing, so this is an upper bound." if window.missing_ranks else ""
        told.append(
            "No machine was given: what an all-reduce takes is read off the job's own buckets, waits within "
            "a collective included. It holds for sizes like theirs; of others it is a guess." + missing
        )
    if window.missing_ranks:
        ranks = format_ranks(window.missing_ranks)
        told.append(f"No file of {ranks}: if the slowest is among them, it is not seen.")
    return tuple(told)
