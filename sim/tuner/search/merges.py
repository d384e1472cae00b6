"""Sentences on a search over whole buckets, which can be merged and never divided."""

from dataclasses import replace

from sim.nouns.recommendation import Gain
from sim.nouns.workload import Workload
from sim.units import format_ms


def over_merges(workload: Workload) -> str:
    """The end of a sentence on what is best, if only merges of whole buckets were searched; else empty."""
    if not workload.is_of_whole_buckets:
        return ""
    return f" (over merges of the {len(workload.gradients)} buckets as recorded only)"


def bounded(gain: Gain, workload: Workload) -> Gain:
    """``gain`` with ``over_merges`` at the end of its sentence."""
    return replace(gain, sentence=gain.sentence + over_merges(workload))


def notes_on(workload: Workload, exposed_ns: int) -> tuple[str, ...]:
    """What the search could not try, and how to let it; ``exposed_ns`` is what the best step exposes."""
    if not workload.is_of_whole_buckets:
        return ()
    left = (
        f", which might hide some of the {format_ms(exposed_ns)} that stay exposed," if exposed_ns > 0 else ""
    )
    return (
        f"gradients are not told apart: each of the {len(workload.gradients)} here is a whole bucket as it "
        f"ran, so that buckets were merged and never divided, and smaller ones{left} were not tried; to name "
        f"the gradients, profile with record_shapes=True, or import with --model",
    )
