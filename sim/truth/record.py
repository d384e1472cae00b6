"""A measured record against what the model of today predicts for it."""

from dataclasses import replace

from sim.metrics.step import summarize
from sim.nouns.comparison import Agreement
from sim.nouns.records import Record
from sim.systems.simulate import simulate
from sim.truth import in_box, scoring
from sim.truth.attribution import attribute


def agreement(record: Record, copies: bool = True, attributed: bool = True) -> Agreement:
    """A measured record against what the model of today predicts for it.

    ``copies`` False switches the copies into and out of buckets off in the model, to show their effect. A
    record of another box than its hardware's, or of slow ranks, is predicted as it was measured, from the
    hardware in its own box. ``attributed`` False leaves out where the error
    of each candidate comes from, which is most of the work.
    """
    if not copies:
        record = replace(
            record, hardware=replace(record.hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
        )
    limits = in_box.limits_of(record)
    record = in_box.as_measured(record)
    predictions, attributions = {}, {}
    for candidate in record.candidates:
        assert candidate.asked is not None
        predictions[candidate.name] = summarize(
            simulate(record.workload, record.hardware, candidate.asked, "analytic")
        )
        if candidate.iterations and attributed:
            attributions[candidate.name] = attribute(record, candidate)
    return scoring.agree(record, predictions, attributions, limits)


def error_limit(record: Record) -> float | None:
    """The largest step error that the rule allows, as a share of the measured step; None for a trace.

    A step that is predicted from a trace of itself neither passes nor fails.
    """
    if any(measured.mode == "trace" for measured in record.candidates):
        return None
    return in_box.limits_of(record).worst_step
