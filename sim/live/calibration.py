"""What a running job is predicted to do: which steps that is made from, the step of each layout, the gain.

All steps but those of the window are ones that a prediction has not seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from sim.costs.doubts import doubts_about_step
from sim.errors import InputError, NotModelledError, SimError
from sim.formats.documents import to_text
from sim.importer.recorded.recorded_workload import FEWEST_BACKWARDS, warmup_steps
from sim.live.follower import Followed
from sim.nouns.hardware import Hardware
from sim.nouns.recommendation import Setting
from sim.nouns.recording import RecordedLayout, Recording
from sim.nouns.workload import Workload
from sim.systems.snippets import snippet
from sim.truth.recorded_job import RecordedJob, StepParts, job_in_recording
from sim.units import format_ranks

FEWEST_STEPS = FEWEST_BACKWARDS
CALIBRATION_STEPS = 20
_FIRST = 5
_SETTLED = 1.1  # times the median of later steps


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutPrediction:
    """What is predicted from ``step`` on, when the job has these buckets; None where ``why_not`` says why."""

    step: int
    bucket_indices: tuple[tuple[int, ...], ...]
    parts: StepParts | None
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the first steps of a job say: its workload, and what is predicted for each of its layouts.

    ``accumulation`` is (micro-batches a step, how many of them reduce). ``hardware_is_own``: it was made of
    the collectives of these very steps. ``switches`` are DDP's, ``settings`` those of the training loop, as
    in ``Assignment``. ``notes`` say what was assumed.
    """

    first_step: int
    last_step: int
    workload: Workload
    hardware: Hardware
    hardware_is_own: bool
    accumulation: tuple[int, int]
    layouts: tuple[LayoutPrediction, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGain:
    """What the recommended buckets save against those in use, a step, in ns; predicted, not measured.

    ``recommended_ns`` is the step of what is pasted: ``snippet`` and ``assignment_json`` are one assignment,
    the job's switches among it. ``low_ns`` to ``high_ns`` is the 95 % interval of the mean
    gain of a long run, None where nothing that varies was recorded. ``gain_ns`` is the gain that is told
    (``Gain.told_ns``); ``significant`` is as in ``Gain``. ``setting`` is what to set, as ``tune`` has it,
    compared with ``against``. ``why_none``: why no gain can be told; empty where one can.
    """

    in_use_ns: int
    recommended_ns: int
    gain_ns: int
    low_ns: int | None
    high_ns: int | None
    significant: bool | None
    not_known: tuple[str, ...]
    world_size: int
    in_use_buckets: int
    recommended_buckets: int
    setting: Setting | None
    against: str
    snippet: str
    assignment_json: str
    why_none: str = ""

    def samples_per_s(self, samples: int, period_ns: int) -> tuple[float, float]:
        """Samples a second now and with the gain, at ``samples`` a step of all ranks.

        Args:
            samples: in one step of all ranks.
            period_ns: from one step to the next, as measured.
        """
        return samples * 1e9 / period_ns, samples * 1e9 / max(1, period_ns - self.gain_ns)

    def gpu_hours_a_day(self, period_ns: int) -> float:
        """Device-hours that a day of training in use would be shorter by, at a step each ``period_ns``."""
        return self.gpu_hours(86_400 * 10**9 / period_ns)

    def gpu_hours(self, steps: float) -> float:
        """Device-hours that ``steps`` of training in use would be shorter by, over all ranks."""
        return self.world_size * steps * self.gain_ns / (3_600 * 10**9)


def live_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The first ``steps`` steps after warm-up that all ranks have finished; None until there are so many.

    Steps that still become shorter count as warm-up, too, as long as ``steps`` others are kept whole.

    Raises:
        InputError: fewer than three steps, or more than are kept whole.
    """
    if followed.first is None:
        return None
    _check(followed, steps)
    numbers = _common(followed.first)
    skipped = _settling(followed.first, numbers, steps, followed.whole_steps - steps)
    return _only(followed.first, numbers[skipped : skipped + steps], steps)


def latest_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The last ``steps`` steps that all ranks have finished; None until there are so many.

    Raises:
        InputError: as ``live_window``.
    """
    if followed.latest is None:
        return None
    _check(followed, steps)
    return _only(followed.latest, _common(followed.latest)[-steps:], steps)


def _check(followed: Followed, steps: int) -> None:
    if steps < FEWEST_STEPS:
        raise InputError(f"steps: {steps} is not legal; give an integer >= {FEWEST_STEPS}")
    if steps > followed.whole_steps:
        raise InputError(
            f"steps: {steps} is not legal; of {len(followed.ranks)} ranks {followed.whole_steps} whole steps "
            f"are kept"
        )


def _common(recording: Recording) -> list[int]:
    """Numbers of the steps after warm-up that every rank has, ascending."""
    warmup = warmup_steps(recording)
    numbers = [{step.step for step in rank.steps if step.step > warmup} for rank in recording.ranks]
    return sorted(set.intersection(*numbers))


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


def _only(recording: Recording, numbers: list[int], steps: int) -> Recording | None:
    """``recording`` with these steps; None where there are fewer than ``steps``."""
    if len(numbers) < steps:
        return None
    kept = set(numbers)
    return replace(
        recording,
        ranks=tuple(
            replace(
                rank,
                layouts=tuple(layout for layout in rank.layouts if layout.step <= numbers[-1]),
                steps=tuple(step for step in rank.steps if step.step in kept),
            )
            for rank in recording.ranks
        ),
    )


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
        workload=job.workload,
        hardware=job.hardware,
        hardware_is_own=job.link_is_own,
        accumulation=job.micro_batches,
        layouts=tuple(_predict(job, layout) for layout in layouts),
        notes=_notes(window, job),
    )


def live_gain(calibration: Calibration, layout: RecordedLayout, *, draws: int = 400) -> LiveGain:
    """What ``sim.tune``'s buckets would save this job against ``layout``, which it has now.

    Raises:
        InputError, NotModelledError: buckets that do not fit, or switches under which no search was made.
    """
    job = RecordedJob(
        workload=calibration.workload,
        hardware=calibration.hardware,
        link_is_own=calibration.hardware_is_own,
    ).with_buckets(layout.bucket_indices)
    try:
        found = job.tune(draws=draws)
    except NotModelledError as error:
        raise NotModelledError(f"gain: {error}") from None
    gain, best = found.gain, found.assignment
    return LiveGain(
        in_use_ns=found.baseline.step_ns,
        recommended_ns=found.report.step_ns,
        gain_ns=gain.told_ns,
        low_ns=gain.low_ns,
        high_ns=gain.high_ns,
        significant=gain.significant,
        not_known=gain.not_known,
        world_size=job.hardware.world_size,
        in_use_buckets=len(layout.bucket_indices),
        recommended_buckets=len(best.bucket_indices),
        setting=found.setting,
        against=found.against,
        snippet=snippet(best, job.workload),
        assignment_json=to_text(best),
        why_none=gain.sentence if gain.refuted else "",
    )


def _predict(job: RecordedJob, layout: RecordedLayout) -> LayoutPrediction:
    parts, why_not = None, ""
    try:
        parts = job.predict(layout.bucket_indices, recorded=True)
    except SimError as error:
        why_not = str(error)
    return LayoutPrediction(
        step=layout.step, bucket_indices=layout.bucket_indices, parts=parts, why_not=why_not
    )


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
