"""The facade's part for a running job: follow it, predict it, hold it to that; ``sim.api`` offers it."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import InputError, NotModelledError, SimError
from sim.formats import pasting
from sim.formats.documents import to_text
from sim.importer import job_settings as live_job
from sim.importer.recorded_steps import workload_of
from sim.live import follower as following
from sim.live import held as live
from sim.live.follower import Follower
from sim.live.link import hardware_of
from sim.live.window import first_window, last_window
from sim.metrics.step import summarize
from sim.nouns.assignment import Assignment, bucket_bytes, made_for
from sim.nouns.hardware import Hardware
from sim.nouns.live import Calibration, Followed, LayoutPrediction, LiveGain, LiveReport
from sim.nouns.recording import RecordedLayout, Recording
from sim.systems.run import run
from sim.systems.switching import with_switches
from sim.units import format_size

CALIBRATION_STEPS = 20


def find_recordings(directory: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Directories that ``sim.record`` wrote to, in ``directory`` or two levels below, newest first."""
    return following.find_recordings(directory)


def follow(directory: str | os.PathLike[str]) -> Follower:
    """What reads a recording while it is written: each ``refresh()`` reads what is new.

    It may be shared by threads. A directory that is not there yet, or is empty, has no ranks.
    """
    return Follower(directory)


def live_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The first ``steps`` steps after warm-up that all ranks have finished; None until there are so many.

    Raises:
        InputError: more steps than are kept whole.
    """
    if followed.first is None:
        return None
    _check_kept(followed, steps)
    window = first_window(followed.first, steps)
    return window if len(window.ranks[0].steps) >= steps else None


def latest_window(followed: Followed, steps: int = CALIBRATION_STEPS) -> Recording | None:
    """The last ``steps`` steps that all ranks have finished; None until there are so many.

    Raises:
        InputError: more steps than are kept whole.
    """
    if followed.latest is None:
        return None
    _check_kept(followed, steps)
    window = last_window(followed.latest, steps)
    return window if len(window.ranks[0].steps) >= steps else None


def _check_kept(followed: Followed, steps: int) -> None:
    if steps > followed.whole_steps:
        raise InputError(
            f"steps: {steps} is not legal; of {len(followed.ranks)} ranks {followed.whole_steps} whole steps "
            f"are kept"
        )


def calibrate_live(
    window: Recording, layouts: Iterable[RecordedLayout], hardware: Hardware | None = None
) -> Calibration:
    """A workload from the steps of ``window``, and the step that it predicts for each of ``layouts``.

    Args:
        window: whole steps of all ranks, as ``live_window`` gives them.
        layouts: DDP's buckets, as the job reports them.
        hardware: the machine; None makes one of the collectives of ``window``.

    Raises:
        InputError: too few steps, a hardware of another number of ranks, or no hardware and no buckets.
        NotModelledError: settings of the job that no engine models.
    """
    header = window.ranks[0].header
    if hardware is not None and hardware.world_size != window.world_size:
        raise InputError(
            f"hardware {hardware.name!r}: world_size: {hardware.world_size} is not legal; the job has "
            f"{window.world_size} ranks"
        )
    accumulation = live_job.accumulation(window)
    switches = live_job.switches(header.ddp)
    settings = live_job.settings(header.comm_hook, accumulation)
    if hardware is None and "comm_hook" in settings:
        raise InputError(
            f"comm_hook: {header.comm_hook}: the recording says how large buckets are, not what the hook "
            f"sends; give a hardware, such as bucketsim calibrate makes"
        )
    workload = workload_of(window)
    notes = live_job.notes(window, workload.ready_includes != (), hardware)
    machine = hardware_of(window) if hardware is None else hardware
    # what searching for unused parameters takes is in every recorded time already
    machine = replace(machine, search_unused_ns=0, mark_used_ns=0)
    bare = Calibration(
        first_step=window.ranks[0].steps[0].step,
        last_step=window.ranks[0].steps[-1].step,
        workload=workload,
        hardware=machine,
        hardware_is_own=hardware is None,
        accumulation=accumulation,
        switches=switches,
        settings=settings,
        layouts=(),
        notes=notes,
    )
    return replace(bare, layouts=tuple(_predict(bare, layout) for layout in layouts))


def judge_live(followed: Followed, calibration: Calibration) -> LiveReport:
    """Every step that was read against its prediction: errors of unseen steps, drift, and who is last."""
    return live.judge(followed, calibration)


def live_gain(calibration: Calibration, layout: RecordedLayout, *, draws: int = 400) -> LiveGain:
    """What ``sim.tune``'s buckets would save this job against ``layout``, which it has now.

    Of the families within 0.1 % of the best the one that is easiest to set is taken, with the job's own
    switches; where its keywords do not reach its buckets under these, the best buckets are, spelled out.
    Both steps are simulated with the switches; the interval is that of paired draws over the
    recorded iterations and what is known of the machine's scatter, as in ``sim.tune``.

    Raises:
        InputError, NotModelledError: buckets that do not fit, or switches under which no search was made.
    """
    from sim.tuner import recommend  # compiled code; only what tunes waits for that
    from sim.tuner.search.score import Scorer
    from sim.tuner.spread.candidates import Pool, assess
    from sim.tuner.spread.draws import draw
    from sim.tuner.spread.gain import judge_gain

    for name in ("comm_hook", "no_sync"):
        if name in calibration.settings:
            raise NotModelledError(
                f"gain: {name}={calibration.settings[name]!r}: buckets are searched for DDP's own all-reduce "
                f"in one backward a step"
            )
    workload, machine = calibration.workload, calibration.hardware
    if calibration.switches.get("gradient_as_bucket_view"):
        machine = replace(machine, copy_out_bytes_per_s=None)  # there is no copy back to search around
    in_use = _assignment(calibration, layout.bucket_indices)
    in_use_step = summarize(_played(calibration, in_use)).step_ns
    found = recommend.tune(workload, machine, draws=draws)
    easiest = found.families[found.simplest].assignment if found.simplest in found.families else None
    options = calibration.switches | calibration.settings
    best = with_switches(workload, easiest or found.assignment, **options)
    if not best.by_keywords:
        best = with_switches(workload, found.assignment, **options)
    if calibration.hardware_is_own and (why_not := _beyond(calibration, best.bucket_indices)):
        raise NotModelledError(f"gain: {why_not}")
    best_step = summarize(_played(calibration, best)).step_ns
    timeline = run(workload, machine, _bare(in_use), "analytic")
    plain = summarize(timeline)
    pool = Pool({"in use": timeline.assignment, "best": _bare(best)}, "in use", "best")
    distribution = draw(Scorer(workload, machine).problem, draws, 0)
    robust = assess(pool, distribution, rest_ns=plain.step_ns - plain.sync_end_ns)
    gain = judge_gain(robust, "best", step_ns=best_step, default_step_ns=in_use_step)
    nominal, mean = in_use_step - best_step, robust.row("best").gain_ns
    is_inside = gain.low_ns is None or gain.high_ns is None or gain.low_ns <= nominal <= gain.high_ns
    return LiveGain(
        in_use_ns=in_use_step,
        recommended_ns=best_step,
        gain_ns=nominal if is_inside else mean,
        low_ns=gain.low_ns,
        high_ns=gain.high_ns,
        significant=gain.significant,
        not_known=gain.not_known,
        world_size=machine.world_size,
        in_use_buckets=len(in_use.bucket_indices),
        recommended_buckets=len(best.bucket_indices),
        setting=_setting(best) if best.by_keywords else "",
        snippet=pasting.snippet(best, workload),
        assignment_json=to_text(best),
    )


def _setting(assignment: Assignment) -> str:
    """Keywords of DistributedDataParallel, and what has to be in the environment with them."""
    environment = assignment.requires.get("environment", {})
    return ", ".join(
        [
            *(f"{name}={value!r}" for name, value in assignment.ddp_kwargs.items()),
            *(f"{name}={value} in the environment" for name, value in environment.items()),
        ]
    )


def _bare(assignment: Assignment) -> Assignment:
    """The buckets alone."""
    return replace(assignment, policy="explicit", ddp_kwargs={}, settings={})


def _assignment(calibration: Calibration, buckets: tuple[tuple[int, ...], ...]) -> Assignment:
    bare = Assignment(bucket_indices=buckets, provenance={"source": "sim.record"})
    bare.check_fits(calibration.workload)
    return _with_switches(
        calibration,
        replace(
            bare,
            bucket_bytes=bucket_bytes(calibration.workload, buckets),
            made_for=made_for(calibration.workload, calibration.hardware.world_size),
        ),
    )


def _with_switches(calibration: Calibration, assignment: Assignment) -> Assignment:
    """The buckets of ``assignment`` under the job's switches."""
    return replace(
        assignment,
        policy="explicit",
        ddp_kwargs=dict(calibration.switches),
        settings=dict(calibration.settings),
    )


def _beyond(calibration: Calibration, buckets: tuple[tuple[int, ...], ...]) -> str:
    """Why the job's own collectives do not say what these buckets take; empty where they do."""
    known = [point.num_bytes for point in calibration.hardware.all_reduce]
    sizes = bucket_bytes(calibration.workload, buckets)
    if min(known) <= min(sizes) and max(sizes) <= max(known):
        return ""
    return (
        f"these buckets have {format_size(min(sizes))} to {format_size(max(sizes))}, and the job's own "
        f"collectives tell only what {format_size(min(known))} to {format_size(max(known))} take; give a "
        f"hardware, such as bucketsim calibrate makes"
    )


def _played(calibration: Calibration, assignment: Assignment) -> Any:
    return run(calibration.workload, calibration.hardware, assignment, "analytic")


def _predict(calibration: Calibration, layout: RecordedLayout) -> LayoutPrediction:
    parts, why_not = None, ""
    try:
        if calibration.hardware_is_own and (beyond := _beyond(calibration, layout.bucket_indices)):
            raise NotModelledError(beyond)
        report = summarize(_played(calibration, _assignment(calibration, layout.bucket_indices)))
        parts = live_job.parts(calibration, report)
    except SimError as error:
        why_not = str(error)
    return LayoutPrediction(
        step=layout.step, bucket_indices=layout.bucket_indices, parts=parts, why_not=why_not
    )
