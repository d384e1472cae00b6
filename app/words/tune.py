"""Words of the Tune page."""

from sim.nouns.recommendation import Recommendation

PATH_HELP = (
    "The chain of work, transfers and copies that decides when the last gradient is available: shortening "
    "anything else would not shorten the step. It runs as a thin band above the bars of a lane."
)
BAND_CAPTION = (
    "Blue band, and the bar behind DDP's default: where 95 of 100 single steps lie. Steps vary as recorded "
    "iterations and the scatter of all-reduces say, by the same 100 draws for every cap."
)
NO_BAND = "No band of how steps vary: neither iterations nor the scatter of all-reduces was recorded."
STRAGGLER = (
    "The timeline and the figures above wait for the slowest rank. The search, the sweep and all below it do "
    "not know of it: they are for ranks that are alike."
)

VALIDATE = "All measured runs, and how predictions are judged"

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


def significance_words(found: Recommendation) -> str | None:
    """Why the optimum may not matter; None where it does, or where there is nothing to gain."""
    gain = found.gain
    if gain.significant is False:
        return f"The optimum is not significant: {gain.sentence}."
    if gain.significant is None and gain.gain_ns:
        missing = " and ".join(gain.not_known)
        return f"Whether the optimum is significant is not known: {missing} was not recorded."
    return None
