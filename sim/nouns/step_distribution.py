"""How long the steps of a job are whose ranks differ, and what the slowest of them costs."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """``count`` ranks, of which ``first`` is the first, as one: how they came to collectives.

    ``last_share`` is the share of all collectives to which they came last, split evenly where others came
    with them, and without those to which all came together; ``waited_ns`` how long one of them waited for the
    last in a step, in the mean; ``pace`` the mean of what they drew.
    """

    name: str
    first: int
    count: int
    pace: float
    last_share: float
    waited_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWait:
    """One collective of a step: its ``bucket`` (None where it carries none) and how ranks waited there.

    ``waited_ns`` is the mean over ranks and steps, ``longest_ns`` the mean over steps of how long the first
    to come waited. ``straggler_share`` is in how many steps any rank waited: in the others all came together,
    such as where the channel was busy until all had launched it.
    """

    bucket: int | None
    num_bytes: int
    waited_ns: int
    longest_ns: int
    straggler_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDistribution:
    """Steps of a job of ``world_size`` ranks under one assignment; times in ns, intervals at 95 %.

    A step is from where the last rank has ended one to where the last has ended the next. ``samples`` steps
    in ``jobs`` chains, each of which drew its ranks anew; None for an interval of fewer than two jobs, or of
    so few stalls that how jobs scatter does not tell it. Intervals leave out how few iterations were
    recorded. ``quantiles_ns`` has 101: from the shortest step to the longest.

    ``nominal_step_ns`` is the step if every rank were the workload as it is, ``slowest_cost_ns`` what the
    mean step is longer. ``even_step_ns`` and ``imbalance_cost_ns`` are the same if each rank computed, before
    backward, in it and in the optimizer, what all ranks did in the mean of all steps, stalls included: the
    same work, evenly spread. ``mean_pace`` is all that over what the workload computes. ``waited_ns`` is how
    long a rank's collectives waited for the last rank in a step, in the mean.
    """

    workload: str
    hardware: str
    ranks: str
    policy: str
    bucket_count: int
    world_size: int
    samples: int
    jobs: int
    seed: int
    mean_step_ns: int
    mean_low_ns: int | None
    mean_high_ns: int | None
    p5_step_ns: int
    median_step_ns: int
    p95_step_ns: int
    p99_step_ns: int
    quantiles_ns: tuple[int, ...]
    nominal_step_ns: int
    slowest_cost_ns: int
    mean_pace: float
    even_step_ns: int
    imbalance_cost_ns: int
    waited_ns: int
    parts: tuple[RankPart, ...] = ()
    worst: tuple[RankPart, ...] = ()
    collectives: tuple[CollectiveWait, ...] = ()
    not_known: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRow:
    """One assignment over the same draws as the first one, which ``gain_ns`` is measured against.

    ``gain_ns``: by how much its mean step is shorter, with an interval where that of a mean step has one;
    ``nominal_gain_ns`` the same with all ranks alike. Their difference is what it changes of the cost of the
    slowest.
    """

    name: str
    gain_ns: int
    gain_low_ns: int | None
    gain_high_ns: int | None
    nominal_gain_ns: int
    distribution: StepDistribution


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentComparison:
    """Several assignments on the same draws; the first row is what the others are measured against."""

    rows: tuple[PairedRow, ...]
    best_by_mean: str
    best_by_nominal: str
    provenance: dict[str, Any] = field(default_factory=dict)
