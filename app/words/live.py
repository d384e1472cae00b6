"""Words of the live view: states, sentences made of figures, help."""

from collections.abc import Sequence
from itertools import pairwise

from app.words.labels import plain
from sim.nouns.live import Calibration, Drift, Followed, Lateness, LiveGain, LiveReport, Unseen
from sim.nouns.recording import RecordingHeader
from sim.units import format_ms

QUIET_S = 30.0  # without a new step; longer where steps themselves are long
_QUIET_STEPS = 10
PART_WORDS: dict[str, str] = {
    "before": "before forward",
    "forward": "forward",
    "backward": "backward",
    "sync": "communication",
    "optimizer": "optimizer",
}
_CAUSES: dict[str, str] = {
    "before": "earlier micro-batches, or buffers that are broadcast before forward",
    "forward": "the compute lane",
    "backward": "the compute lane",
    "sync": "the network, or a rank that comes late",
    "optimizer": "the optimizer and what runs before it, such as clipping",
}

HELP: dict[str, str] = {
    "recording": "Directories that `sim.record` wrote to, the last written first.",
    "every": "How often new lines are read. Only the figures below are drawn again.",
    "steps": "How many steps after warm-up make the workload. All later steps are predicted unseen.",
    "machine": "What an all-reduce takes: a calibrated machine, or what the job's own buckets took.",
    "axis": "Steps by their number, or by the wall clock at which they began.",
    "samples": "Samples in one step, over all ranks: batch per rank x ranks x micro-batches. 0: not known.",
    "to_go": "Optimizer steps that are still to be trained. 0: not known.",
    "step": "Median of the last 50 steps, of the rank that is slowest in each. From the start of the first "
    "forward to the end of the optimizer; loading data is not in it.",
    "predicted": "The step that the model predicts from the calibration window, for the buckets in use now.",
    "error": "Median of measured over predicted, minus 1, over all steps after the calibration window that "
    "ran with the buckets in use. None of these steps was used to predict.",
    "drift": "A lasting change of the error, by Pettitt's test on medians of five steps: one false alarm in "
    "a thousand looks at steps that do not drift. A few long steps (checkpoint, evaluation) are no drift. "
    "Changes below 1 % are not told.",
    "last": "The rank that ends its backward last, in the latest 200 steps: others wait for it. By the "
    "hosts' clocks; on GPUs by each rank's own time since the step began.",
    "recalibrate": "Make the workload from the latest steps instead; only steps after them count as unseen.",
    "gain": "Predicted, not measured: the step of the buckets in use minus that of the recommended ones, on "
    "the same workload and machine.",
    "gpu_hours": "World size x 24 h x gain / step: what the same training takes less, for each day of it.",
}
OWN_MACHINE = "the job's own collectives"
STEPS_CAPTION = (
    "Points: measured steps. Line: their rolling median of 50. Dashed: predicted. Shaded: the steps that the "
    "prediction was made from; it has seen none of the others."
)
PARTS_CAPTION = (
    "Rolling medians of the parts of a step, of the rank that is slowest in it. Communication: from the end "
    "of backward to the end of DDP's synchronisation, what backward did not hide."
)
WAITING = (
    "No steps yet: waiting for `rank-<r>.jsonl` in this directory. A job writes them with "
    "`with sim.record(ddp_model, DIR):` around its training loop, on every rank."
)
HOW_TO_GAIN = (
    "For what other buckets would gain on this machine, calibrate it: `bucketsim calibrate --ranks {0}`."
)


def age_words(seconds: float) -> str:
    """A time that has passed: ``1.2 s``, ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def quiet_after_s(followed: Followed) -> float:
    """How long nothing new has to be there until one says so: ten steps, or 30 s."""
    starts = followed.ranks[0].steps.started_at[-50:] if followed.ranks else []
    gaps = sorted(later - earlier for earlier, later in pairwise(starts))
    return max(QUIET_S, _QUIET_STEPS * gaps[len(gaps) // 2] / 1e9) if gaps else QUIET_S


def state_sentences(followed: Followed, now_s: float) -> list[str]:
    """What the job is doing, as far as its files say; the first sentence is the state."""
    if not followed.step_count:
        return [WAITING]
    limit = quiet_after_s(followed)
    ages = {rank.header.rank: now_s - rank.written_at_s for rank in followed.ranks}
    newest, last = min(ages.values()), max(rank.steps.step[-1] for rank in followed.ranks if len(rank.steps))
    if followed.unread_bytes > 1 << 20:
        told = [f"Reading: step {last:,} so far, {followed.unread_bytes / 2**20:,.0f} MiB are still to come."]
    elif newest > limit:
        told = [
            f"Nothing new for {age_words(newest)}: the job has ended, or stands still. Last step {last:,}."
        ]
    else:
        told = [f"Running: step {last:,}, {age_words(newest)} ago."]
        silent = {rank: age for rank, age in ages.items() if age > limit}
        if silent:
            names = _ranks(sorted(silent))
            told.append(f"{names} not written for {age_words(max(silent.values()))}.")
    behind = [
        rank.header.rank for rank in followed.ranks if not len(rank.steps) or rank.steps.step[-1] < last - 10
    ]
    if behind and len(behind) < len(followed.ranks):
        told.append(
            f"{_ranks(behind)} fallen behind step {last:,}; only steps that all ranks have are shown."
        )
    missing = followed.first.missing_ranks if followed.first else ()
    if missing:
        told.append(f"{_ranks(missing)} no file here: what they do is not seen.")
    if followed.fault_count:
        what = "fault was" if followed.fault_count == 1 else "faults were"
        told.append(f"{followed.fault_count} {what} found in the files; damaged lines are left out.")
    told += [f"No longer kept: {dropped}." for dropped in followed.dropped]
    return told


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:6])) + (f" and {len(ranks) - 6} more" if len(ranks) > 6 else "")
    return f"Rank {named} has" if len(ranks) == 1 else f"Ranks {named} have"


def unseen_sentence(report: LiveReport) -> str:
    """How the prediction does, on steps that it has not seen and on those that it was made from."""
    unseen, calibrated = report.unseen, report.calibrated
    window = f"steps {calibrated[0]:,} to {calibrated[1]:,}"
    own = "" if report.window_error is None else f" (on which it is off by {report.window_error:+.1%} itself)"
    if unseen is None:
        return f"Predicted from {window}{own}; no later step is there yet."
    return (
        f"Predicted from {window}{own}: {format_ms(unseen.predicted_ns)} a step. {unseen.count:,} steps with "
        f"the buckets in use that the model has not seen took {format_ms(unseen.measured_ns)} in the median, "
        f"{unseen.median_error:+.1%}; nine of ten lie within {unseen.low:+.1%} and {unseen.high:+.1%}."
    )


def drift_sentence(drift: Drift | None, unseen: Unseen | None) -> str:
    """Whether steps became longer, since when, and which part did."""
    if unseen is None or unseen.count < 40:
        return "Too few unseen steps to tell drift."
    if drift is None:
        return "No drift: the error has not changed for good."
    change = "longer" if drift.shift > 0 else "shorter"
    moved = sorted(drift.parts.items(), key=lambda part: -abs(part[1]))
    share = ", ".join(f"{PART_WORDS[name]} by {value:+.1%}" for name, value in moved if abs(value) >= 0.0005)
    return (
        f"Since step {drift.since_step:,} steps take {abs(drift.shift):.1%} {change} than before "
        f"({drift.after:+.1%} against the prediction, {drift.before:+.1%} before). In shares of the step: "
        f"{share}. The cause lies in {PART_WORDS[drift.largest_part]}: {_CAUSES[drift.largest_part]}."
    )


def lateness_sentence(rows: Sequence[Lateness]) -> str | None:
    """Which rank the others wait for; None for a single rank."""
    if not rows:
        return None
    first = rows[0]
    return (
        f"Rank {first.rank} comes last in {first.share:.0%} of the latest steps, by "
        f"{format_ms(first.late_ns)} in the median."
    )


def gain_sentence(gain: LiveGain) -> str:
    """What the recommended buckets would gain, honestly."""
    share = gain.gain_ns / gain.in_use_ns if gain.in_use_ns else 0.0
    between = (
        f" (95 % interval {format_ms(gain.low_ns)} to {format_ms(gain.high_ns)})"
        if gain.low_ns is not None and gain.high_ns is not None
        else ""
    )
    if gain.gain_ns <= 0:
        return "No better buckets were found: the job runs with the best ones that the search knows."
    if gain.significant is False:
        return (
            f"Not significant: other buckets would save {format_ms(gain.gain_ns)} ({share:.1%}) a step"
            f"{between}. Keep what you have."
        )
    unknown = f" Not recorded, so not known: {' and '.join(gain.not_known)}." if gain.not_known else ""
    return (
        f"The recommended {gain.recommended_buckets} buckets would save {format_ms(gain.gain_ns)} a step "
        f"({share:.1%}){between} against the {gain.in_use_buckets} in use.{unknown}"
    )


def job_rows(header: RecordingHeader, calibration: Calibration | None) -> list[tuple[str, str]]:
    """What is known of the job, a row each, safe for markdown."""
    ddp = {
        name: value for name, value in header.ddp.items() if name != "rebuilt_buckets" and value is not None
    }
    rows = [
        ("Model", f"{plain(header.module)}, {len(header.parameters)} parameters that require grad"),
        ("Ranks", str(header.world_size)),
        ("Backend and device", f"{plain(header.backend)} on {plain(header.device)}"),
        ("torch", plain(header.torch)),
        (
            "Recorded",
            f"{header.level} level, every {header.every}. step" if header.every > 1 else header.level,
        ),
        ("Communication hook", plain(header.comm_hook or "none")),
        ("DDP", plain(", ".join(f"{name}={value}" for name, value in list(ddp.items())[:20]))),
    ]
    if calibration is not None:
        count, reduced = calibration.accumulation
        if count > 1:
            rows.append(("Micro-batches", f"{count} a step, {reduced} of them synchronised"))
        rows.append(("Machine", plain(calibration.hardware.name)))
    return rows


def summary_words(report: LiveReport) -> str:
    """What was left out of the judgement; empty where nothing was."""
    if not report.left_out:
        return ""
    return f"{report.left_out:,} steps have another number of micro-batches and are left out."
