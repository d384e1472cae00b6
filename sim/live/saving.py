"""What the tuner's buckets would save a job that is running."""

from dataclasses import replace

from sim.costs.expected_slowdowns import expected_slowdowns
from sim.errors import NotModelledError
from sim.formats.documents import to_text
from sim.importer.recorded.plain_backward import taken_apart
from sim.live.calibration import assignment_of, beyond, played
from sim.metrics.step import summarize
from sim.nouns.assignment import Assignment
from sim.nouns.live import Calibration, LiveGain
from sim.nouns.recording import RecordedLayout
from sim.systems.simulate import simulate
from sim.systems.snippets import snippet
from sim.systems.switching import with_switches
from sim.tuner import recommend
from sim.tuner.search.problem import Problem
from sim.tuner.spread.assessment import Pool, assess
from sim.tuner.spread.draws import draw
from sim.tuner.spread.gain import judge_gain


def live_gain(calibration: Calibration, layout: RecordedLayout, *, draws: int = 400) -> LiveGain:
    """What ``sim.tune``'s buckets would save this job against ``layout``, which it has now.

    Of the families within 0.1 % of the best, the easiest to set is taken, with the job's own switches. If its
    keywords do not reach its buckets under these switches, the best buckets of all are taken instead. Both
    steps are simulated with the switches; the interval is that of paired draws over the recorded iterations
    and what is known of the machine's scatter, as in ``sim.tune``.

    Raises:
        InputError, NotModelledError: buckets that do not fit, or switches under which no search was made.
    """
    for name in ("comm_hook", "no_sync"):
        if name in calibration.settings:
            raise NotModelledError(
                f"gain: {name}={calibration.settings[name]!r}: buckets are searched for DDP's own all-reduce "
                f"in one backward a step"
            )
    in_use = assignment_of(calibration, layout.bucket_indices)
    on_host = calibration.workload.provenance.get("clock") == "host"
    expected = expected_slowdowns(calibration.hardware, computes_on_host=on_host)
    workload, machine = taken_apart(
        calibration.workload, calibration.hardware, in_use, expected["compute_slowdown"]
    )
    calibration = replace(calibration, workload=workload, hardware=machine)
    if calibration.switches.get("gradient_as_bucket_view"):
        machine = replace(machine, copy_out_bytes_per_s=None)  # views of buckets need no copy back
    in_use_step = summarize(played(calibration, in_use)).step_ns
    found = recommend.tune(workload, machine, draws=draws)
    easiest = found.families[found.simplest].assignment if found.simplest in found.families else None
    options = calibration.switches | calibration.settings
    best = with_switches(workload, easiest or found.assignment, **options)
    if not best.by_keywords:
        best = with_switches(workload, found.assignment, **options)
    if calibration.hardware_is_own and (why_not := beyond(calibration, best.bucket_indices)):
        raise NotModelledError(f"gain: {why_not}")
    best_step = summarize(played(calibration, best)).step_ns
    timeline = simulate(workload, machine, _bare(in_use), "analytic")
    plain = summarize(timeline)
    pool = Pool({"in use": timeline.assignment, "best": _bare(best)}, "in use", "best")
    distribution = draw(Problem(workload, machine), draws, 0)
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
        snippet=snippet(best, workload),
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
    """The buckets alone, without keywords and settings."""
    return replace(assignment, policy="explicit", ddp_kwargs={}, settings={})
