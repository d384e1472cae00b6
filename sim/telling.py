"""What measured and predicted come to, in sentences and as a document: the same in terminal and page."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import sim
from sim.costs.doubts import doubts_about_step
from sim.nouns.measurement import Record
from sim.units import format_ms, format_percent, format_ranks, in_ms

if TYPE_CHECKING:
    from sim.nouns.recording import Recording
    from sim.truth.fit import OwnStep
    from sim.truth.recorded_job import RecordedJob
    from sim.truth.scoring import Agreement, Regret

_INTERVALS = ("step_low_ns", "step_high_ns", "exposed_low_ns", "exposed_high_ns")


def agreement_document(record: Record, agreement: "Agreement") -> dict[str, Any]:
    """All that was compared, for JSON: each candidate with its predicted report and with the mechanisms that
    its error comes from, null where they are not known, as are intervals of too few steps. Times in ns."""
    parts, rows = sim.attribution(record), []
    for row in agreement.rows:
        known = parts.get(row.name)
        unknown = {} if row.has_interval else dict.fromkeys(_INTERVALS)
        rows.append({**asdict(row), "attribution": known and asdict(known), **unknown})
    return {**asdict(agreement), "rows": rows}


def tell_verdict(agreement: "Agreement") -> str:
    """The pass rule's outcome; of a trace, which neither passes nor fails, what was tested."""
    if agreement.passed is None:
        return tell_tested(agreement)
    wrong = agreement.order_pairs - agreement.order_right
    noise = f", {agreement.order_within_noise} within noise" if agreement.order_within_noise else ""
    why = f"{wrong} pair{'s' * (wrong != 1)} not in the predicted order; " if wrong else ""
    return (
        f"{'Passed' if agreement.passed else 'Not passed'}: {why}median step error "
        f"{format_percent(agreement.median_step_error, 2)}, worst "
        f"{format_percent(agreement.worst_step_error, 2)}, {agreement.order_right} of "
        f"{agreement.order_pairs} pairs in the right order{noise}."
    )


def tell_tested(agreement: "Agreement") -> str:
    """How far the ends of buckets and exposed communication are off."""
    ends, exposed = "The ends of buckets cannot be told", "no communication was exposed"
    median_ns, worst_ns = agreement.median_bucket_end_error_ns, agreement.worst_bucket_end_error_ns
    if median_ns is not None:
        share = agreement.median_bucket_end_error
        ends = f"Bucket ends: median error {format_ms(median_ns)}"
        ends += "" if share is None else f", {format_percent(share)}"
        ends += "" if worst_ns is None else f", worst {format_ms(worst_ns)}"
    if agreement.median_exposed_error is not None:
        exposed = f"exposed communication: median error {format_percent(agreement.median_exposed_error)}"
    return f"{ends}; {exposed}."


def tell_rule(agreement: "Agreement") -> str:
    """The rule, or why there is none."""
    rule = agreement.rule
    return f"The rule: {rule}." if agreement.passed is not None else f"{rule[:1].upper()}{rule[1:]}."


def tell_best(agreement: "Agreement") -> str:
    """The best by measurement and by prediction, and how far the recommended one was behind it."""
    found = f"Best measured and best predicted: {agreement.best_measured}."
    if agreement.best_measured != agreement.best_predicted:
        near = "within noise of it" if agreement.best_within_noise else "not within noise of it"
        found = f"Best measured: {agreement.best_measured}; best predicted: "
        found += f"{agreement.best_predicted}, {near}."
    return found if agreement.regret is None else f"{found} {_tell_regret(agreement.regret)}"


def _tell_regret(regret: "Regret") -> str:
    if not regret.regret_ns:
        return 'The candidate "recommended" was the fastest.'
    shown = f"over {regret.paired_rounds} paired rounds"
    if regret.has_interval:
        shown += f", 95 % interval {in_ms(regret.low_ns, '.1f')} to {in_ms(regret.high_ns, '.1f')} ms"
    else:
        shown += ", too few for an interval"
    behind = f"{format_ms(regret.regret_ns)} ({format_percent(regret.relative, 2)}) behind {regret.best}"
    noise = ": within noise" if regret.within_noise else ""
    return f'The candidate "recommended" was {behind} {shown}{noise}.'


def tell_own_step(job: "RecordedJob | None", without: str = "") -> tuple[list[str], list[str]]:
    """How far the parts were from the step that a job took, and what made that come out (``without``: how to
    do without it); then what of it is doubtful, or why there is no such step."""
    if job is None or (own := job.own) is None:
        return [], [f"not held to the recorded step: {job.why_not}"] if job and job.why_not else []
    off = format_percent(own.parts_ns / own.step_ns - 1 if own.step_ns else 0.0, sign=True)
    said = f"{format_ms(own.step_ns)} over {own.steps} steps; its parts alone say {format_ms(own.parts_ns)}"
    told = [f"the job's own step: {said} ({off})"]
    if job.is_held:
        held = "nearest to" if doubts_about_step(own.hardware) else "held to"
        factors = (f"{one.name} {one.value:.3f} ({one.low:.2f} to {one.high:.2f})" for one in own.factors)
        told.append(f"{held} the job's own recorded step: {', '.join(factors)}{without}")
    if own.recorder_ns:
        told.append(
            f"{in_ms(own.recorder_ns)} ms of the recorded step are the recorder's, and in no prediction"
        )
    return told, [f"doubtful: {doubt}" for doubt in tell_own_doubts(own)]


_PLAIN = "run a few backwards under no_sync while recording"
_DOUBTS = {
    "contained": "backward contains what its own all-reduces took of it, and the hardware does not say what "
    f"others would take, so that gains may be too large; calibrate again (host_share), or {_PLAIN}",
    "wide": "{0} is known to {1:.2f} to {2:.2f} only: record with more buckets (bucket_cap_mb=4), at level "
    "full",
    "wide in its times": "{0} is known to {1:.2f} to {2:.2f} only: the recorded times contain it; " + _PLAIN,
    "not its parts": "the job's own steps are {3} {4} than their parts on this link{5}; that is in no "
    "prediction, and what of it other buckets would change is not known",
}


def tell_own_doubts(own: "OwnStep") -> list[str]:
    """What is doubtful of a job's own step, a sentence each."""
    ends = {one.name: (max(1.0, one.low), one.high) for one in own.factors}
    over_ns, said = own.step_ns - own.parts_ns, list[str]()
    for code, what in own.doubts:
        by = format_ms(abs(over_ns)), "longer" if over_ns > 0 else "shorter", what and f" (last came {what})"
        said.append(_DOUBTS[code].format(what, *ends.get(what, (0, 0)), *by))
    return said


def tell_assumed(window: "Recording", job: "RecordedJob") -> list[str]:
    """What was assumed of a job that is still running, of which ``window`` tells, a sentence each."""
    told = [f"Not held to the job's own step: {job.why_not}."]
    if job.own is not None:
        told = [f"Doubtful: {one}." for one in (*doubts_about_step(job.hardware), *tell_own_doubts(job.own))]
    if job.link_is_own:
        missing = " Ranks are missing, so this is an upper bound." if window.missing_ranks else ""
        told.append(
            "No machine was given: what an all-reduce takes is read off the job's own buckets, waits within "
            "a collective included. It holds for sizes like theirs; of others it is a guess." + missing
        )
    if window.missing_ranks:
        ranks = format_ranks(window.missing_ranks)
        told.append(f"No file of {ranks}: if the slowest is among them, it is not seen.")
    return told
