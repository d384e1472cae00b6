"""Words of the Tune page."""

from collections.abc import Sequence
from typing import Any

from app.words.switches import option_words
from sim.nouns.band import BandPoint
from sim.nouns.recommendation import Recommendation
from sim.units import format_ms

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
BESIDE = (
    "This run was measured beside another job on the same wires. This page plays one job alone, so none of "
    "its steps belongs to that measurement: the Validate page predicts both jobs together."
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
NOTHING_TO_PASTE = (
    "Keep DDP's default: nothing has to be pasted. The best that was found, whose gain does not show:"
)

VALIDATE = "All measured runs, and how predictions are judged"

PROVED, PROVED_OVER_MERGES = "proved optimal", "optimal over merges of the recorded buckets"
NOT_PROVED = "best found, not proved optimal"

COLUMN_HELP = {
    "knob": "What may be set. Each row is the best that this knob alone can reach.",
    "step, ms": "Step time under the best setting of this knob.",
    "regret, ms": "How much longer its step is than the recommended one. Below 0: another system that DDP's "
    "buckets do not reach.",
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
    "at least, ms": "Lower end of the 95 % interval of that gain.",
    "at most, ms": "Upper end of the 95 % interval of that gain.",
}


def band_caption(points: Sequence[BandPoint]) -> str:
    """What the band shows, and what it was read from."""
    draws, iterations = max(point.draws for point in points), max(point.iterations for point in points)
    behind = f"{iterations} recorded iterations" if iterations else "no recorded iteration"
    return (
        "Blue band, and the bar behind DDP's default: where 95 of 100 single steps lie, read from "
        f"{draws} drawn steps, the same for every cap, with {behind} and the scatter of all-reduces behind "
        "them."
    )


def under_words(options: Sequence[tuple[str, Any]], *, is_late: bool) -> str:
    """What is in force on the page: the switches that are set, the slowest rank; empty: neither."""
    under = [*map(option_words, options), *(["the slowest rank"] if is_late else [])]
    return " and ".join([", ".join(under[:-1]), under[-1]] if len(under) > 1 else under)


def searched_without(under: str) -> str:
    """The note above what the search found, where something is in force that it does not know."""
    return (
        f"The search does not know {under}: what is recommended below, its gain and what each knob can reach "
        "are found and told without."
    )


def possible_sentence(step_ns: int, saved_ns: int, under: str) -> str:
    """The recommended buckets as the page plays them."""
    worse = "more" if saved_ns < 0 else "less"
    return (
        f"Under {under} these buckets take {format_ms(step_ns)} a step, {format_ms(abs(saved_ns))} {worse} "
        "than DDP's default with as many micro-batches."
    )


def significance_words(found: Recommendation) -> str | None:
    """Why the optimum may not matter; None where it does, or where there is nothing to gain."""
    gain = found.gain
    if gain.significant is False:
        return f"The optimum is not significant: {gain.sentence}."
    if gain.significant is None and gain.gain_ns:
        missing = " and ".join(gain.not_known)
        return f"Whether the optimum is significant is not known: {missing} was not recorded."
    return None
