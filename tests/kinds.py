"""Every noun that is a document, by its kind."""

from typing import Any

from sim.clusters.distribution import AssignmentComparison, StepDistribution
from sim.clusters.ranks import Ranks
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.collective import Explanation
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.recommendation import Recommendation
from sim.nouns.report import Report
from sim.nouns.workload import Workload

KINDS: dict[str, type[Any]] = {
    noun.KIND: noun
    for noun in (
        Workload,
        Hardware,
        Assignment,
        Report,
        Measurement,
        Recommendation,
        Explanation,
        Cluster,
        Ranks,
        StepDistribution,
        AssignmentComparison,
    )
}
