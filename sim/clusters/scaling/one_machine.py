"""What a worker computes of a series of machines: one machine's row, and why two neighbours' caps differ."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.clusters.ranks.distribution import compare_assignments
from sim.clusters.scaling.cap_steps import Tuned, tune_caps
from sim.clusters.scaling.carried import Carried, at_end
from sim.clusters.scaling.machines import SizedMachine
from sim.clusters.scaling.reasons import Reason, Side, find_reason, side_of
from sim.costs.doubts import doubts_about
from sim.costs.own_costs import told_uncounted, told_unmeasured
from sim.costs.service_time import all_reduce_ns
from sim.metrics.step import step_ns, summarize
from sim.nouns.ranks import Ranks
from sim.nouns.scaling_row import ScalingRow
from sim.nouns.workload import Workload
from sim.tuner.optimum import find_optimum


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
    workload, hardware = tuned.asked.workload, carried.hardware
    best = tuned.assignment(tuned.best_mb)
    timeline = tuned.timeline(best)
    report = summarize(timeline)
    every = tuple((index,) for index in workload.order())
    optimum = find_optimum(
        tuned.scorer, [tuned.default.assignment.bucket_indices, best.bucket_indices, every]
    )
    computing_ns = workload.forward_ns + workload.loss_ns + workload.backward_ns
    single_ns = tuned.asked.switches.accumulation_steps * computing_ns + workload.optimizer_ns
    times = tuned.asked.times
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
    low, high = (tune_caps(tuned.asked.workload, one, tuned.caps_mb) for one in ends)
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
        tuned.scorer.problem.hardware,
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
