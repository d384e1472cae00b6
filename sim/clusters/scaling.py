"""A workload over machines of many sizes: a row each, and why the best cap changes between them."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from typing import Any, Literal

from sim.clusters.computed import hardware_of
from sim.clusters.extrapolation import extrapolate_hardware
from sim.clusters.fabric import fabric_of
from sim.clusters.machines import sized
from sim.clusters.nccl_model import choose
from sim.clusters.ranks import Ranks
from sim.costs.doubts import doubts_about, told_unmeasured
from sim.costs.service_time import collective_ns, service_ns
from sim.errors import InputError
from sim.formats.documents import csv_text
from sim.metrics.step import summarize
from sim.nouns.assignment import Assignment
from sim.nouns.checks import no_duplicates
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.systems.simulate import simulate
from sim.tuner.caps import CapCurve, cap_curve
from sim.tuner.gain import NOTHING
from sim.tuner.optimum import find_optimum
from sim.tuner.problem import Problem
from sim.tuner.sweep import spread
from sim.units import MIB, cap_bytes, count_of, format_ms, format_number, format_percent, format_size

MAX_ROWS = 10_000

End = Literal["min_ns", "max_ns"]
ENDS: dict[str, End] = {"low": "min_ns", "high": "max_ns"}  # of a range, as rows and as spreads name them


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """DDP's default, the best ``bucket_cap_mb`` and the best buckets of all, on one machine.

    Flat and plain, so that rows are tidy: ``pandas.DataFrame(map(asdict, rows))``. Times in ns.

    ``machine`` and ``settings`` ("oversubscription=2") name the series that a row belongs to; ``source`` says
    where its all-reduces come from: ``computed`` from data sheets, or ``measured`` (and extrapolated to
    machines that were not).

    Each GPU keeps its batch (weak scaling), so that ``efficiency`` is samples a second and GPU over those of
    one GPU alone: ``single_step_ns`` (forward, loss, plain backward, optimizer) over the step; never above 1.
    Exposed is all that synchronising adds to a plain backward: waiting, and copies and launches too. What DDP
    does before a forward (broadcasts of buffers) counts in the step, and not as exposed.
    Prefixes: ``default_`` DDP's own caps, ``cap_`` the best ``bucket_cap_mb``, ``optimum_`` the best buckets
    that are contiguous in ready order; its step is at least ``optimum_at_least_ns``, and no better ones exist
    where ``proved_optimal``.

    ``cap_low_mb`` to ``cap_high_mb`` are the caps around the best one whose steps are within 0.1 % of its
    (``cap_high_mb`` None: no end), one of ``cap_num_stretches`` such stretches with worse caps between them;
    ``default_is_alike``: so is DDP's default. ``default_regret_ns``: what the default loses against the best
    cap, below 0 where its small first bucket does more. ``verdict_code`` is that of the best cap's step.
    ``all_reduce_ns`` is one all-reduce of the whole model, by ``all_reduce_method`` (None: measured, or one
    rank).

    A curve that is not measured has a range (``spread``). With all of it at its low (fast) and at its high
    (slow) end: the step at ``bucket_cap_mb`` (``cap_step_low_ns``, ``cap_step_high_ns``), the cap that would
    be best there (``best_cap_low_mb``, ``best_cap_high_mb``), what ``bucket_cap_mb`` loses against it
    (``cap_regret_low_ns``, ``cap_regret_high_ns``), and what the default loses against ``bucket_cap_mb``
    (``default_regret_low_ns``, ``default_regret_high_ns``). ``cap_is_sure``: at both ends ``bucket_cap_mb``
    is within 0.1 % of the best. Without a range both ends are the curve itself.

    With ranks that differ (``jitter`` is their name, else ""), over ``samples`` steps at ``bucket_cap_mb``:
    ``mean_step_ns``, ``p95_step_ns`` and ``slowest_cost_ns``, by how much their mean is longer than if all
    ranks were alike; ``default_mean_step_ns`` is the mean of the same steps under DDP's default.

    ``reason`` and its ``reason_code``: ``why_caps_change`` from the row before, of the same series.
    ``own_costs``: which of DDP's own costs are not measured, and what is taken; that ranks share their host
    with their all-reduces; "" where neither is so.
    ``doubts``: what of workload and machine is not to be relied on, such as a link that is not the one that
    trains; another number of ranks than the recorded one is no doubt here.
    """

    machine: str
    settings: str
    source: str
    hosts: int
    world_size: int
    single_step_ns: int
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


def scaling(
    workload: Workload,
    machine: str | Cluster,
    *,
    hosts: Sequence[int] | None = None,
    world_size: Sequence[int] | None = None,
    settings: Mapping[str, Sequence[Any]] | None = None,
    caps_mb: Sequence[float] | None = None,
    measured: Sequence[tuple[Cluster, Hardware]] = (),
    ranks: Ranks | None = None,
    samples: int = 200,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    max_rows: int = MAX_ROWS,
) -> tuple[ScalingRow, ...]:
    """Efficiency, exposed communication and the best caps of a workload on machines of many sizes.

    A row a machine, in the order of the product of settings and sizes, sizes last. Each GPU keeps its batch.
    A row says why the cap that was best in the row before, of the same settings, is not as good in it.

    Args:
        workload: what backward makes ready on one GPU.
        machine: a preset's name, or a cluster. One group of hosts on a network, without a placement, can have
            any number of hosts; otherwise ranks are on the first of the cluster's hosts.
        hosts: numbers of hosts; None: the preset's or the cluster's own.
        world_size: in place of ``hosts`` numbers of ranks, which fill host after host.
        settings: of the preset, each with its values: ``{"oversubscription": [1, 2]}``.
        caps_mb: MiB, of which the best is looked for; None: all caps that cut differently.
        measured: hardware of clusters of this kind, to be extrapolated; none: computed by NCCL's cost model.
        ranks: how the ranks of each machine differ; None: not at all.
        samples: steps of each row that are drawn where ranks differ.
        seed: of these draws.
        executor: any ``concurrent.futures.Executor``; rows are the same. None: this process.
        progress: called with (rows done, rows in all), in this thread.
        max_rows: more rows are refused.

    Raises:
        InputError, NotModelledError: an argument that is not legal, a machine whose ranks no way joins, or a
            workload that DDP does not train as it is.
        MachineError: a worker of the executor died.
    """
    if hosts is not None and world_size is not None:
        raise InputError("world_size: not legal with hosts; give one of them")
    caps_mb = None if caps_mb is None else _axis("caps_mb", caps_mb)
    axes = {key: _axis(key, values) for key, values in (settings or {}).items()}
    name, sizes = ("hosts", hosts) if hosts is not None else ("world_size", world_size)
    all_sizes: list[dict[str, int]] = [{}] if sizes is None else [{name: n} for n in _axis(name, sizes)]
    count = math.prod(map(len, axes.values())) * len(all_sizes)
    if count > max_rows:
        raise InputError(
            f"scaling: {count} rows are more than {max_rows}; give fewer settings or sizes, or "
            f"max_rows={count}"
        )
    machines = []
    for values in product(*axes.values()):
        chosen = dict(zip(axes, values, strict=True))
        words = {key: value if isinstance(value, str) else json.dumps(value) for key, value in chosen.items()}
        said = ", ".join(f"{key}={word}" for key, word in words.items())
        machines += [(said, sized(machine, chosen, **size)) for size in all_sizes]
    play = partial(
        _row,
        # What nobody reads is not sent to workers.
        replace(workload, samples=workload.samples if ranks is not None else ()),
        machine if isinstance(machine, str) else machine.name,
        caps_mb=caps_mb,
        measured=tuple(measured),
        differ=None if ranks is None else partial(_among_ranks, ranks=ranks, samples=samples, seed=seed),
    )
    rows: list[ScalingRow] = []
    before: Hardware | None = None
    for row, hardware in spread(play, machines, executor):
        if before is not None and rows[-1].settings == row.settings:
            sides = (before, rows[-1].bucket_cap_mb), (hardware, row.bucket_cap_mb)
            code, sentence = why_caps_change(workload, *sides, row.cap_step_ns)
            row = replace(row, reason_code=code, reason=sentence)
        before = hardware
        rows.append(row)
        progress(len(rows), count)
    return tuple(rows)


def scaling_csv(rows: Iterable[ScalingRow]) -> str:
    """A scaling view as CSV: one row a machine, times in ns; what is None is empty."""
    return csv_text(map(asdict, rows), [field.name for field in fields(ScalingRow)])


def _axis(name: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InputError(f"{name}: {values!r} is not legal; give a sequence of values, such as [{values!r}]")
    no_duplicates(name, values)
    return list(values)


# ---- One machine.


def tune_caps(
    workload: Workload, hardware: Hardware, caps_mb: Sequence[float] | None = None
) -> tuple[Problem, CapCurve]:
    """The job, and all caps that cut it differently, or these (MiB), on ``hardware``.

    Raises:
        InputError, NotModelledError: DDP does not train this workload as it is, or a cap below 0.
    """
    problem = Problem(workload, hardware)
    return problem, cap_curve(problem, None if caps_mb is None else sorted({*map(cap_bytes, caps_mb)}))


def _is_alike(regret_ns: int, curve: CapCurve) -> bool:
    """Whether so much is nothing: 0.1 % of the best step at most."""
    return regret_ns <= NOTHING * curve.best_ns


def _row(
    workload: Workload,
    name: str,
    machine: tuple[str, Cluster],
    *,
    caps_mb: Sequence[float] | None,
    measured: Sequence[tuple[Cluster, Hardware]],
    differ: Callable[[Workload, Hardware, dict[str, Assignment]], dict[str, Any]] | None,
) -> tuple[ScalingRow, Hardware]:
    """One machine: its caps tuned, and its link, by which the next is told from it."""
    settings, cluster = machine
    fabric = fabric_of(cluster)
    called = f"{name}, {fabric.world_size} ranks"
    hardware = extrapolate_hardware(measured, cluster, called) if measured else hardware_of(fabric, called)
    problem, curve = tune_caps(workload, hardware, caps_mb)
    default = simulate(workload, hardware, problem.default, "analytic")
    best = assign(workload, bucket_cap_mb=curve.best_mb)
    report = summarize(simulate(workload, hardware, best, "analytic"))
    known = [problem.default.bucket_indices, best.bucket_indices, problem.singles()]
    optimum = find_optimum(problem, known)
    computing_ns = workload.forward_ns + workload.loss_ns + workload.backward_ns
    single_ns = problem.switches.accumulation_steps * computing_ns + workload.optimizer_ns + workload.rest_ns
    default_ns, regret_ns = default.step_ns, default.step_ns - curve.best_ns
    stretches = curve.stretches(curve.steps_ns <= curve.best_ns * (1 + NOTHING))
    first, last = next(one for one in stretches if one[0] <= curve.best <= one[1])
    high = int(curve.high_bytes[last])
    total_bytes = sum(gradient.on_wire for gradient in workload.gradients)
    method = None if measured else choose(fabric, "all_reduce", total_bytes)
    row = ScalingRow(
        machine=name,
        settings=settings,
        source="measured" if measured else "computed",
        hosts=fabric.hosts,
        world_size=hardware.world_size,
        single_step_ns=single_ns,
        all_reduce_ns=collective_ns(hardware, "all_reduce", total_bytes) or 0,
        all_reduce_method=None if method is None else str(method),
        default_step_ns=default_ns,
        default_exposed_comm_ns=default.exposed_ns,
        default_efficiency=single_ns / default_ns if default_ns else 1.0,
        default_num_buckets=len(default.buckets),
        default_regret_ns=regret_ns,
        default_is_alike=_is_alike(regret_ns, curve),
        bucket_cap_mb=curve.best_mb,
        cap_low_mb=int(curve.low_bytes[first]) / MIB,
        cap_high_mb=None if high == NO_LIMIT else high / MIB,
        cap_num_stretches=len(stretches),
        cap_step_ns=report.step_ns,
        cap_exposed_comm_ns=report.exposed_comm_ns,
        cap_efficiency=single_ns / report.step_ns if report.step_ns else 1.0,
        cap_num_buckets=len(report.buckets),
        verdict_code=report.verdict_code,
        optimum_step_ns=problem.step_ns(optimum.sync_end_ns),
        optimum_num_buckets=len(optimum.buckets),
        optimum_at_least_ns=problem.step_ns(optimum.at_least_ns),
        proved_optimal=optimum.is_proved,
        own_costs="; ".join(told_unmeasured(workload, hardware)),
        doubts="; ".join(doubts_about(workload, hardware, of_any_size=True)),
        **_ends(problem, curve.best_mb, caps_mb),
        **(differ(workload, hardware, {"cap": best, "default": default.assignment}) if differ else {}),
    )
    return row, hardware


def _among_ranks(
    workload: Workload, hardware: Hardware, cuts: dict[str, Assignment], ranks: Ranks, **draws: Any
) -> dict[str, Any]:
    """The best cap and the default on the same draws of ranks that differ."""
    from sim.clusters.distribution import compare_assignments  # compiled code, which only this waits for

    compared = compare_assignments(workload, hardware, cuts, ranks, **draws)
    cap, usual = (row.distribution for row in compared.rows)
    return {
        "jitter": ranks.name,
        "samples": cap.samples,
        "mean_step_ns": cap.mean_step_ns,
        "p95_step_ns": cap.p95_step_ns,
        "slowest_cost_ns": cap.slowest_cost_ns,
        "default_mean_step_ns": usual.mean_step_ns,
    }


# ---- Hardware at either end of its range.


def _ends(problem: Problem, cap_mb: float, caps_mb: Sequence[float] | None) -> dict[str, Any]:
    """At both ends of the curve's range: the best cap, and the step, regret and gain of the row's cap."""
    found: dict[str, Any] = {"cap_is_sure": True}
    for name, end in ENDS.items():
        there, curve = tune_caps(problem.job, at_end(problem.hardware, end), caps_mb)
        regret_ns = curve.regret_ns(cap_mb)
        step_ns = curve.best_ns + regret_ns
        found |= {
            f"best_cap_{name}_mb": curve.best_mb,
            f"cap_step_{name}_ns": step_ns,
            f"cap_regret_{name}_ns": regret_ns,
            f"default_regret_{name}_ns": there.default_ns - step_ns,
            "cap_is_sure": found["cap_is_sure"] and _is_alike(regret_ns, curve),
        }
    return found


def at_end(hardware: Hardware, end: End) -> Hardware:
    """``hardware`` with its whole all-reduce curve at one end of its range (``spread``), for sure.

    Points without a range are sure and stay.
    """
    known = hardware.spread.get("all_reduce") or {}
    made = tuple(
        replace(point, duration_ns=known.get(str(point.num_bytes), {}).get(end, point.duration_ns))
        for point in hardware.all_reduce
    )
    return replace(hardware, all_reduce=made, spread={})


# ---- Why the cap that was best on one machine is not on the next.


def why_caps_change(
    workload: Workload, before: tuple[Hardware, float], after: tuple[Hardware, float], best_ns: int
) -> tuple[str, str]:
    """What the best cap of ``before`` loses on ``after``, whose best step is ``best_ns``, and how all-reduces
    changed: a code and a sentence, both empty where it is within 0.1 %.

    ``cost-of-a-bucket``: the all-reduce of the smallest bucket takes more times as long as before than that
    of all bytes at once; ``bandwidth``: it does not. Each side is a machine and its best cap in MiB.
    """
    cuts = [assign(workload, bucket_cap_mb=cap_mb).bucket_indices for _, cap_mb in (before, after)]
    problem = Problem(workload, after[0])
    lost = problem.times * (problem.sync_end_ns(cuts[0]) - problem.sync_end_ns(cuts[1]))
    if lost <= NOTHING * best_ns:
        return "", ""
    wires = [sum(workload.gradients[index].on_wire for index in one) for cut in cuts for one in cut]
    smallest, whole = min(wires), sum(wires) // 2
    curves = before[0].all_reduce, after[0].all_reduce
    (small_was, small), (whole_was, all_bytes) = (
        [service_ns(curve, size) for curve in curves] for size in (smallest, whole)
    )
    was, now = (count_of(of.world_size, "GPU") for of, _ in (before, after))
    count = count_of(len(cuts[0]), "bucket")
    return "cost-of-a-bucket" if small * whole_was > all_bytes * small_was else "bandwidth", (
        f"at {now} bucket_cap_mb={format_number(before[1], 6)}, the best at {was}, would take "
        f"{format_ms(lost)} ({format_percent(lost / best_ns)}) longer than {format_number(after[1], 6)} "
        f"({count} instead of {len(cuts[1])}); on the wire a bucket of {format_size(smallest)} takes "
        f"{format_ms(small)} ({format_ms(small_was)} at {was}), all bytes at once {format_ms(all_bytes)} "
        f"({format_ms(whole_was)})"
    )
