"""Words of the Tune page."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.answering import Answer
from app.cached import Played
from app.words.labels import capital, family_words, interval_words, share
from app.words.switches import option_words, switches_beyond
from sim.nouns.band import BandPoint
from sim.nouns.comparison import CandidateAgreement
from sim.nouns.recommendation import Recommendation
from sim.units import format_ms, format_number

LOOK = "Guided look"
LOOK_HELP = "How to read this page, in five lines."
LOOK_STEPS = """
**One training step, predicted.** Gradients are cut into buckets; each is sent as soon as it is complete.

1. **Three lanes.** *compute* is backward, *communication* the all-reduce of each bucket, *copy back* what
   follows it. One colour is one bucket.
2. **Hatched is what costs you**: communication after backward has ended. The red line is the critical path.
3. **Turn the cap** on the left, or click a point of the curve below. *What if* makes the machine another one.
4. **Apply the recommended** shows the one number to set, what it saves, and what it loses.
5. **Take it home**: the lines to paste into your script, at the end of the page.
"""
PATH_HELP = (
    "The chain of work, transfers and copies that decides when the last gradient is available: shortening "
    "anything else would not shorten the step. It runs as a thin band above the bars of a lane."
)
NO_BAND = "No band of how steps vary: neither iterations nor the scatter of all-reduces was recorded."
NO_BAND_UNDER = "No band of how steps vary: it is known without switches and on ranks that are alike only."
CARRIED = (
    "Workload and hardware are as this run was measured: carried from where the hardware was calibrated to "
    "the box of the run, backward as that of its slowest rank."
)
OTHER_CONDITIONS = (
    "The measured run of these files was made in another box or with slow ranks, so it says nothing of the "
    "steps on this page. Start from the measured run to see it."
)
NOT_MEASURED = (
    "The assignment shown, with its switches, is not among those that were measured. What follows judges the "
    "model by others, on the same workload and hardware."
)
COPIES_OFF = (
    "Copies are switched off in the comparison with the measurement, below; the figures here have them."
)
RECOMMENDED_CANDIDATE = (
    "The candidate `recommended` is the best buckets that were found before the run, wherever they are cut. "
    "It is not what stands above where that is one cap, or DDP's default."
)
AS_MEASURED = "The same on the machine as it was measured"
VALIDATE = "All measured runs, and how predictions are judged"

PROVED, PROVED_OVER_MERGES = "proved optimal", "optimal over merges of the recorded buckets"
NOT_PROVED = "best found, not proved optimal"

COLUMN_HELP = {
    "knob": "What may be set. Each row is the best that this knob alone can reach.",
    "step, ms": "Step time under the best setting of this knob.",
    "regret, ms": "How much longer its step is than under the best buckets found. Below 0: another system "
    "that DDP's buckets do not reach.",
    "exposed, ms": "End of synchronisation minus a plain backward: all that synchronising adds to a step.",
    "buckets": "Number of buckets, each one collective.",
    "set": "What to set to get there.",
    "tried": "How the best was found: of all settings, or of a grid.",
    "what": "The link of the chain.",
    "bucket": "The bucket that it belongs to.",
    "from, ms": "From the start of backward.",
    "to, ms": "From the start of backward.",
    "takes, ms": "Its length.",
    "candidate": "The assignment, by the knob that makes it.",
    "mean, ms": "Mean step over the draws.",
    "95th percentile, ms": "The step that 1 draw in 20 exceeds.",
    "gain, ms": "Mean of DDP's default step minus this one's, draw by draw.",
    "at least, ms": "Lower end of the interval of that gain.",
    "at most, ms": "Upper end of the interval of that gain.",
}


def band_caption(points: Sequence[BandPoint]) -> str:
    """What the band shows, and what it was read from."""
    draws, iterations = max(point.draws for point in points), max(point.iterations for point in points)
    behind = f"{iterations} recorded iterations" if iterations else "no recorded iteration"
    return (
        "Blue band, and the bar behind DDP's default: where 95 of 100 single steps lie, read from "
        f"{draws} drawn steps a cap, the same for all caps, with {behind} and the scatter of all-reduces "
        "behind them."
    )


def under_words(options: Sequence[tuple[str, Any]], *, is_late: bool) -> str:
    """What is in force on the page: the switches that are set, the slowest rank; empty: neither."""
    under = [*map(option_words, options), *(["the slowest rank"] if is_late else [])]
    return " and ".join([", ".join(under[:-1]), under[-1]] if len(under) > 1 else under)


def answer_sentence(answer: Answer, under: str) -> str:
    """What to set, what it saves, and what one round cap loses against the best buckets that were found."""
    words = _answer_words(answer, is_plain=not under)
    return capital(f"under {under}, {words}" if under else words)


def _answer_words(answer: Answer, *, is_plain: bool) -> str:
    if answer.why_none:
        return f"{answer.why_none}."
    if answer.pick == "default":
        more = " by more than steps vary" if is_plain else ""
        return f"keep {answer.against}: nothing that was found is faster{more}."
    saves = (
        f"{format_ms(answer.played.report.step_ns)} a step, {format_ms(answer.saved_ns)} "
        f"({share(answer.saved_ns, answer.default.report.step_ns)}) less than {answer.against}"
        f"{_without(answer)}"
    )
    if answer.capped is None or answer.cap_mb is None:
        return f"take the best buckets found: {saves}; no one cap is faster than that."
    cap, step_ns = f"bucket_cap_mb={format_number(answer.cap_mb, 6)}", answer.capped.report.step_ns
    behind_ns = answer.behind_ns or 0
    behind = f"{format_ms(behind_ns)} ({share(behind_ns, step_ns)}) more"
    if answer.pick == "recommended":
        return (
            "no one cap comes near the best buckets found: take those, with the lines under Recommended. "
            f"They take {saves}. The best round cap, {cap}, takes {format_ms(step_ns)}, {behind}."
        )
    if behind_ns <= 0:
        return f"set {cap}: {saves}; no buckets that were found are better."
    alike = "; over steps as they vary the two cannot be told apart" if answer.is_alike else ""
    return f"set {cap}: {saves}, {behind} than the best buckets found{alike}."


def _without(answer: Answer) -> str:
    """Switches of the answer that what it is held against does not have."""
    missing = switches_beyond(answer.played.assignment, answer.default.assignment)
    return f" without {' and '.join(missing)}" if missing else ""


def sweep_caption(answer: Answer, tolerance: float, under: str) -> str:
    """What stands in the sweep, and nothing else."""
    told = ["Left: DDP's default, a point of its own. Dashed: its step."]
    if answer.best is not None:
        told.append("Dotted: the step of the best buckets found.")
    if answer.cap_mb is not None:
        told.append(
            f"Star: the {star_words(answer)}, a round one of those within {tolerance:.0%} of the best."
        )
    told.append("Click a point to see its timeline above.")
    told.append(
        f"All of it is played under {under}."
        if under
        else f"Shaded: caps within {tolerance:.0%} of the best."
    )
    return " ".join(told)


def star_words(answer: Answer) -> str:
    """What the star is: the best of the round caps is not always what is recommended."""
    return "recommended cap" if answer.pick == "cap" else "best round cap"


def best_title(found: Recommendation, best: Played | None, under: str) -> str:
    """What is folded away beneath the answer; ``best`` is as the page plays it, None where it cannot."""
    if best is None:
        count, step_ns, how = (
            len(found.assignment.bucket_indices),
            found.report.step_ns,
            f", without {under}" if under else "",
        )
    else:
        count, step_ns, how = len(best.assignment.bucket_indices), best.report.step_ns, ""
    return f"The best buckets found{how}: {count}, cut anywhere, {format_ms(step_ns)} a step"


def measured_sentence(row: CandidateAgreement, default: CandidateAgreement | None) -> str:
    """What real ranks took with what is recommended, and with DDP's default where that was measured too."""
    shown = ""
    if row.has_interval:
        shown = f" (95 % interval {interval_words(row.step_low_ns, row.step_high_ns, told=True)} ms)"
    against = ""
    if default is not None:
        saved_ns = default.measured_step_ns - row.measured_step_ns
        against = (
            f", {format_ms(abs(saved_ns))} {'less' if saved_ns >= 0 else 'more'} than with DDP's default"
        )
    return f"Measured on real ranks: {format_ms(row.measured_step_ns)} a step{shown}{against}."


def absent_words(absent: Mapping[str, str]) -> str:
    """Which knobs are not in the table, and why; those with one reason together."""
    by_reason: dict[str, list[str]] = {}
    for family, why in absent.items():
        by_reason.setdefault(why.removeprefix(f"{family.split()[0]}: "), []).append(family_words(family))
    told = "; ".join(f"{' and '.join(names)} ({why})" for why, names in by_reason.items())
    return f"Not in the table: {told}."


def searched_without(under: str) -> str:
    """The note below the sweep, where something is in force that the search for buckets does not know."""
    return (
        f"The sweep and the cap that is recommended are found under {under}. The search for buckets that may "
        "be cut anywhere knows nothing of it: the best buckets and what each knob can reach are told without."
    )


def possible_sentence(step_ns: int, saved_ns: int, under: str) -> str:
    """The recommended buckets as the page plays them."""
    worse = "more" if saved_ns < 0 else "less"
    return (
        f"Under {under} these take {format_ms(step_ns)} a step, {format_ms(abs(saved_ns))} {worse} "
        "than DDP's default."
    )


def reasoned(answer: Answer) -> dict[str, Played]:
    """By name, the assignments whose critical path is told: first what is recommended, last what it is held
    against."""
    named: dict[str, Played] = {}
    if answer.pick == "cap" and answer.cap_mb is not None:
        named[f"Recommended: bucket_cap_mb={format_number(answer.cap_mb, 6)}"] = answer.played
    if answer.best is not None:
        named[
            "Recommended: the best buckets found"
            if answer.pick == "recommended"
            else "The best buckets found"
        ] = answer.best
    against = answer.against[0].upper() + answer.against[1:]
    named[f"{against}, which is recommended" if answer.pick == "default" else against] = answer.default
    return named


def found_without(under: str) -> str:
    """What stands above the gain and the proof of buckets that were found without what is in force."""
    return f"What follows is told without {under}, as the search knows nothing of it."


def significance_words(found: Recommendation) -> str | None:
    """Why the optimum may not matter; None where it does, or where there is nothing to gain."""
    gain = found.gain
    if gain.refuted:
        return f"{capital(gain.sentence)}."
    if gain.significant is False:
        told = gain.sentence.removeprefix("no significant difference: ")
        return f"The optimum is not significant: {told}."
    if gain.significant is None and gain.gain_ns:
        missing = " and ".join(gain.not_known)
        why = f"{missing} was not recorded" if missing else "what it rests on is doubtful, see the notes"
        return f"Whether the optimum is significant is not known: {why}."
    return None
