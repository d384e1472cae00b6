"""One row of a scaling view: a workload on one machine of so many GPUs, and what its caps come to."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """DDP's default, the best ``bucket_cap_mb`` and the best buckets of all, on one machine.

    Flat and plain, so that rows are tidy: ``pandas.DataFrame(map(asdict, rows))``. Times in ns.

    ``machine`` and ``settings`` ("oversubscription=2") name the series that a row belongs to; ``source`` says
    where its all-reduces come from: ``computed`` from data sheets, or ``measured`` (and extrapolated to
    machines that were not). ``beside_ranks``: GPUs of other jobs beside it.

    Each GPU keeps its batch (weak scaling), so that ``efficiency`` is samples a second and GPU over those of
    one GPU alone: ``single_step_ns`` (forward, loss, plain backward, optimizer) over the step; never above 1.
    Exposed is all that synchronising adds to a plain backward: waiting, and copies and launches too. What DDP
    does before a forward (broadcasts of buffers) counts in the step, and not as exposed.
    Prefixes: ``default_`` DDP's own caps, ``cap_`` the best ``bucket_cap_mb``, ``optimum_`` the best buckets
    that are contiguous in ready order; its step is at least ``optimum_at_least_ns``, and no better ones exist
    where ``proved_optimal``.

    ``cap_low_mb`` to ``cap_high_mb`` are the caps around the best one whose steps are within 0.1 % of its
    (``cap_high_mb`` None: no end), one of ``cap_num_stretches`` such stretches with worse caps between them;
    ``default_is_alike``: so is DDP's default. ``default_regret_ns``: what the
    default loses against the best cap, below 0 where its small first bucket does more. ``verdict_code`` is
    that of the best cap's step. ``all_reduce_ns`` is one all-reduce of the whole model, by
    ``all_reduce_method`` ("ring Simple"; None where it was measured, or with one rank).

    A curve that is not measured has a range (``spread``). With all of it at its low (fast) and at its high
    (slow) end: the step at ``bucket_cap_mb`` (``cap_step_low_ns``, ``cap_step_high_ns``), the cap that would
    be best there (``best_cap_low_mb``, ``best_cap_high_mb``), what ``bucket_cap_mb`` loses against it
    (``cap_regret_low_ns``, ``cap_regret_high_ns``), and what the default loses against ``bucket_cap_mb``
    (``default_regret_low_ns``, ``default_regret_high_ns``). ``cap_is_sure``: at both ends ``bucket_cap_mb``
    is within 0.1 % of the best; ``gain_is_sure``: as given and at both ends the default loses more than
    0.1 % of the step against it. Without a range both ends are the curve itself.

    With ranks that differ (``jitter`` is their name, else ""), over ``samples`` steps at ``bucket_cap_mb``:
    ``mean_step_ns``, ``p95_step_ns`` and ``slowest_cost_ns``, by how much their mean is longer than if all
    ranks were alike; ``default_mean_step_ns`` is the mean of the same steps under DDP's default. None
    without.

    ``reason``: why the cap that was best in the row before, of the same series, is not as good here, and
    ``reason_code`` its cause; "" where it is, or where there is no such row.
    ``own_costs``: which of DDP's own costs are not measured, and what is taken; "" where all are.
    ``doubts``: what of workload and machine is not to be relied on, such as a link that is not the one that
    trains; another number of ranks than the recorded one is no doubt here.
    """

    machine: str
    settings: str
    source: str
    hosts: int
    world_size: int
    beside_ranks: int
    single_step_ns: int
    backward_ns: int
    all_reduce_ns: int
    all_reduce_method: str | None
    default_step_ns: int
    default_exposed_comm_ns: int
    default_efficiency: float
    default_num_buckets: int
    default_is_alike: bool
    bucket_cap_mb: float
    cap_low_mb: float
    cap_high_mb: float | None
    cap_num_stretches: int
    cap_step_ns: int
    cap_exposed_comm_ns: int
    cap_efficiency: float
    cap_num_buckets: int
    default_regret_ns: int
    verdict_code: str
    optimum_step_ns: int
    optimum_exposed_comm_ns: int
    optimum_efficiency: float
    optimum_num_buckets: int
    optimum_at_least_ns: int
    proved_optimal: bool
    best_cap_low_mb: float
    best_cap_high_mb: float
    cap_step_low_ns: int
    cap_step_high_ns: int
    cap_regret_low_ns: int
    cap_regret_high_ns: int
    cap_is_sure: bool
    default_regret_low_ns: int
    default_regret_high_ns: int
    gain_is_sure: bool
    jitter: str = ""
    samples: int | None = None
    mean_step_ns: int | None = None
    p95_step_ns: int | None = None
    slowest_cost_ns: int | None = None
    default_mean_step_ns: int | None = None
    reason_code: str = ""
    reason: str = ""
    own_costs: str = ""
    doubts: str = ""
