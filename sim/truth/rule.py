"""When a prediction is good enough: the rule that gives the verdict, the targets beyond it, and what of a
trace can be tested at all.
"""

from dataclasses import dataclass

from sim.costs.own_costs import told_unmeasured
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCheck:
    """One figure held to its limit; ``value`` and ``met`` are None where the record cannot tell."""

    name: str
    limit: float
    value: float | None
    met: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest errors allowed, as shares of what was measured; None: not limited.

    ``median_step`` and ``worst_step`` are over candidates, ``median_exposed`` over candidates that expose
    communication, ``median_bucket_end`` over all buckets of all candidates.
    """

    median_step: float
    worst_step: float
    median_bucket_end: float | None = None
    median_exposed: float | None = None

    @property
    def rule(self) -> str:
        """The rule of the verdict in words: step errors, and the order."""
        return (
            f"median step error <= {self.median_step:.1%}, worst <= {self.worst_step:.1%}, and the predicted "
            f"order of every pair whose measured intervals are apart"
        )


# The verdict on any record.
RULE = Limits(median_step=0.02, worst_step=0.05)
# The verdict on models that compute for real, whose steps vary by some percent from minute to minute.
TRAINED = Limits(median_step=0.03, worst_step=0.08)
# The verdict where a prediction is made from the box as a graph, or of slow ranks.
CONTENDED = Limits(median_step=0.1, worst_step=0.1)
# What the project aims at for paced replays in the box.
TARGETS = Limits(median_step=0.015, worst_step=0.04, median_bucket_end=0.03, median_exposed=0.08)


def trace_rule(workload: Workload, hardware: Hardware, measurement: Measurement) -> str:
    """In place of the rule for steps of a trace: which parts are the trace's own, and what is tested."""
    effects = workload.ready_includes
    own = f"ready times (with {', '.join(effects)} in them)" if effects else "ready times"
    source = hardware.provenance.get("source")
    if source is not None and source == measurement.provenance.get("source"):
        own += ", buckets and how long each all-reduce took"
    else:
        own += " and buckets; how long all-reduces take is from another file"
    if told_unmeasured(hardware):
        own += ", and what DDP itself costs is as others have it, not measured"
    what = "recording" if measurement.provenance.get("source") == "sim.record" else "trace"
    return (
        f"no pass or fail of a step that is predicted from the {what} itself: its own are forward, backward, "
        f"optimizer, {own}; tested are the ends of buckets and exposed communication"
    )


def check_targets(
    limits: Limits,
    *,
    median_step: float,
    worst_step: float,
    median_bucket_end: float | None,
    median_exposed: float | None,
) -> tuple[TargetCheck, ...]:
    """Each figure that ``limits`` limits, with whether it is met; errors as shares."""
    figures = (
        ("median step error", limits.median_step, median_step),
        ("worst step error", limits.worst_step, worst_step),
        ("median bucket end error", limits.median_bucket_end, median_bucket_end),
        ("median exposed error", limits.median_exposed, median_exposed),
    )
    return tuple(
        TargetCheck(name=name, limit=limit, value=value, met=None if value is None else value <= limit)
        for name, limit, value in figures
        if limit is not None
    )
