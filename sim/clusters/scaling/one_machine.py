"""What a worker computes of a series of machines: one machine's row, and why two neighbours' caps differ."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sim.clusters.ranks.distribution import compare_assignments
from sim.clusters.ranks.rank_files import Ranks
from sim.clusters.scaling.cap_steps import Tuned, tune_caps
from sim.clusters.scaling.carried import Carried, at_end
from sim.clusters.scaling.machines import SizedMachine
from sim.clusters.scaling.reasons import Reason, Side, find_reason, side_of
from sim.costs.doubts import doubts_about
from sim.costs.own_costs import told_uncounted, told_unmeasured
from sim.costs.service_time import all_reduce_ns
from sim.formats.documents import csv_text
from sim.metrics.step import step_ns, summarize
from sim.nouns.workload import Workload
from sim.tuner.optimum import find_optimum


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A machine's row, and the side of it that is compared with its neighbours in the series."""

    row: ScalingRow
    side: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every machine: a workload, its caps (MiB, None: all), and how ranks differ, if at all.

    ``others`` are the workloads that ``ranks`` name; ``samples`` steps are drawn from ``seed``.
    """

    workload: Workload
    caps_mb: tuple[float, ...] | None
    ranks: Ranks | None
    others: Mapping[str, Workload]
    samples: int
    seed: int


def play(question: Question, machine: SizedMachine) -> Played:
    """Tune the caps for one machine of the series."""
    carried = machine.carried()
    tuned = tune_caps(question.workload, carried.hardware, question.caps_mb)
    row = _row(tuned, machine, carried)
    if question.ranks is not None:
        row = replace(row, **_among_ranks(question, question.ranks, tuned))
    return Played(row=row, side=side_of(tuned, carried))


def explain(question: Question, pair: tuple[Side, Side]) -> Reason | None:
    """Why the best cap of the first machine is not as good on the second; None if it is, within 0.1 %."""
    return find_reason(question.workload, *pair)


def _row(tuned: Tuned, machine: SizedMachine, carried: Carried) -> ScalingRow:
    workload, hardware = tuned.problem.job, carried.hardware
    best = tuned.assignment(tuned.best_mb)
    timeline = tuned.timeline(best)
    report = summarize(timeline)
    every = tuple((index,) for index in workload.order())
    optimum = find_optimum(
        tuned.problem, [tuned.default.assignment.bucket_indices, best.bucket_indices, every]
    )
    computing_ns = workload.forward_ns + workload.loss_ns + workload.backward_ns
    single_ns = tuned.problem.switches.accumulation_steps * computing_ns + workload.optimizer_ns
    times = tuned.problem.times
    default_ns, optimum_ns = step_ns(tuned.default), times * optimum.sync_end_ns + tuned.rest_ns
    low, high = tuned.stretch_mb()
    total_bytes = sum(gradient.on_wire for gradient in workload.gradients)
    return ScalingRow(
        machine=machine.name,
        settings=machine.settings,
        source=carried.source,
        hosts=carried.fabric.hosts,
        world_size=hardware.world_size,
        beside_ranks=sum(map(len, machine.beside)),
        single_step_ns=single_ns,
        backward_ns=workload.backward_ns,
        all_reduce_ns=all_reduce_ns(hardware, total_bytes),
        all_reduce_method=carried.method(total_bytes),
        default_step_ns=default_ns,
        default_exposed_comm_ns=tuned.default.exposed_ns,
        default_efficiency=_over(single_ns, default_ns),
        default_num_buckets=len(tuned.default.buckets),
        default_regret_ns=tuned.default_regret_ns,
        default_is_alike=tuned.is_alike(tuned.default_regret_ns),
        bucket_cap_mb=tuned.best_mb,
        cap_low_mb=low,
        cap_high_mb=high,
        cap_num_stretches=len(tuned.stretches),
        cap_step_ns=report.step_ns,
        cap_exposed_comm_ns=report.exposed_comm_ns,
        cap_efficiency=_over(single_ns, report.step_ns),
        cap_num_buckets=len(report.buckets),
        verdict_code=report.verdict_code,
        optimum_step_ns=optimum_ns,
        optimum_exposed_comm_ns=times * (optimum.sync_end_ns - workload.backward_ns),
        optimum_efficiency=_over(single_ns, optimum_ns),
        optimum_num_buckets=len(optimum.buckets),
        optimum_at_least_ns=times * optimum.at_least_ns + tuned.rest_ns,
        proved_optimal=optimum.is_proved,
        own_costs="; ".join((*told_unmeasured(hardware), *told_uncounted(hardware))),
        doubts="; ".join(doubts_about(workload, hardware, of_any_size=True)),
        **_ends(carried, tuned),
    )


def _ends(carried: Carried, tuned: Tuned) -> dict[str, Any]:
    """At both ends of the curve's range: the best cap, and the step, regret and gain of the row's cap."""
    ends = [at_end(carried.hardware, end) for end in ("min_ns", "max_ns")]
    low, high = (tune_caps(tuned.problem.job, one, tuned.caps_mb) for one in ends)
    regrets = low.regret_ns(tuned.best_mb), high.regret_ns(tuned.best_mb)
    gains = low.default_regret_ns - regrets[0], high.default_regret_ns - regrets[1]
    return {
        "best_cap_low_mb": low.best_mb,
        "best_cap_high_mb": high.best_mb,
        "cap_step_low_ns": low.best_ns + regrets[0],
        "cap_step_high_ns": high.best_ns + regrets[1],
        "cap_regret_low_ns": regrets[0],
        "cap_regret_high_ns": regrets[1],
        "cap_is_sure": low.is_alike(regrets[0]) and high.is_alike(regrets[1]),
        "default_regret_low_ns": gains[0],
        "default_regret_high_ns": gains[1],
        "gain_is_sure": not any(
            each.is_alike(gain)
            for each, gain in ((tuned, tuned.default_regret_ns), (low, gains[0]), (high, gains[1]))
        ),
    }


def _among_ranks(question: Question, ranks: Ranks, tuned: Tuned) -> dict[str, Any]:
    """The best cap and the default on the same draws of ranks that differ."""
    compared = compare_assignments(
        question.workload,
        tuned.problem.link,
        {"cap": tuned.assignment(tuned.best_mb), "default": tuned.default.assignment},
        ranks,
        samples=question.samples,
        seed=question.seed,
        others=question.others,
    )
    cap, default = (row.distribution for row in compared.rows)
    return {
        "jitter": ranks.name,
        "samples": cap.samples,
        "mean_step_ns": cap.mean_step_ns,
        "p95_step_ns": cap.p95_step_ns,
        "slowest_cost_ns": cap.slowest_cost_ns,
        "default_mean_step_ns": default.mean_step_ns,
    }


def _over(single_ns: int, step: int) -> float:
    return single_ns / step if step else 1.0


def scaling_csv(rows: Iterable[ScalingRow]) -> str:
    """A scaling view as CSV: one row a machine, times in ns; what is None is empty."""
    return csv_text(map(asdict, rows), [field.name for field in fields(ScalingRow)])
