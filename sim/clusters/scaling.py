"""A workload over machines of many sizes: a row each, and why the best cap changes between them."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import islice, product
from typing import Any, Literal

import numpy as np

from sim.clock.arrays import Ints
from sim.clusters.computed import hardware_of
from sim.clusters.extrapolation import extrapolate_hardware
from sim.clusters.fabric import fabric_of
from sim.clusters.machines import preset
from sim.clusters.nccl_model import choose
from sim.clusters.ranks import Ranks
from sim.clusters.why import Side, why_caps_change
from sim.costs.doubts import doubts_about
from sim.costs.own_costs import told_uncounted, told_unmeasured
from sim.costs.service_time import all_reduce_ns
from sim.errors import InputError
from sim.formats.documents import csv_text
from sim.metrics.step import summarize
from sim.nouns.assignment import Assignment
from sim.nouns.checks import at_least
from sim.nouns.cluster import MAX_HOSTS, Cluster, split_name
from sim.nouns.hardware import CURVES, SCALARS, Hardware
from sim.nouns.timeline import Timeline
from sim.nouns.workload import Workload
from sim.systems.cut import NO_LIMIT
from sim.systems.registry import assign
from sim.tuner.caps import CapCurve, cap_curve
from sim.tuner.gain import NOTHING
from sim.tuner.optimum import find_optimum
from sim.tuner.problem import Problem
from sim.tuner.sweep import spread
from sim.units import MIB, cap_bytes, divide_half_even

MAX_ROWS = 10_000

End = Literal["min_ns", "max_ns"]


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
    ``default_is_alike``: so is DDP's default. ``default_regret_ns``: what the
    default loses against the best cap, below 0 where its small first bucket does more. ``verdict_code`` is
    that of the best cap's step. ``all_reduce_ns`` is one all-reduce of the whole model, by
    ``all_reduce_method`` ("ring Simple"; None where it was measured, or with one rank).

    A curve that is not measured has a range (``spread``). With all of it at its low (fast) and at its high
    (slow) end: the step at ``bucket_cap_mb`` (``cap_step_low_ns``, ``cap_step_high_ns``), the cap that would
    be best there (``best_cap_low_mb``, ``best_cap_high_mb``), what ``bucket_cap_mb`` loses against it
    (``cap_regret_low_ns``, ``cap_regret_high_ns``), and what the default loses against ``bucket_cap_mb``
    (``default_regret_low_ns``, ``default_regret_high_ns``). ``cap_is_sure``: at both ends ``bucket_cap_mb``
    is within 0.1 % of the best. Without a range both ends are the curve itself.

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
    local: Hardware | None = None,
    ranks: Ranks | None = None,
    others: Mapping[str, Workload] | None = None,
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
        local: hardware that tells what copies, launches and slow-downs cost on a computed machine; its curves
            are not used. None: they cost nothing.
        ranks: how the ranks of each machine differ; None: not at all.
        others: the workloads that groups of ``ranks`` name.
        samples: steps of each row that are drawn where ranks differ.
        seed: of these draws.
        executor: any ``concurrent.futures.Executor``; rows are the same. None: this process.
        progress: called with (rows done, rows in all), in this thread.
        max_rows: more rows are refused.

    Raises:
        InputError, NotModelledError: an argument that is not legal, a machine whose ranks no way joins or
            that is not modelled, or a workload that DDP does not train as it is.
        MachineError: a worker of the executor died.
    """
    if hosts is not None and world_size is not None:
        raise InputError("world_size: not legal with hosts; give one of them")
    if local is not None and measured:
        raise InputError("local: not legal with measured, which says what a host costs; leave one out")
    if caps_mb is not None and not caps_mb:
        raise InputError("caps_mb: an empty list is not legal; give at least one cap in MiB")
    axes = {key: _axis(key, values) for key, values in (settings or {}).items()}
    name = "hosts" if hosts is not None else "world_size"
    sizes = hosts if hosts is not None else world_size
    all_sizes: list[dict[str, int]] = (
        [{}] if sizes is None else [{name: count} for count in _axis(name, sizes)]
    )
    count = math.prod(map(len, axes.values())) * len(all_sizes)
    if count > max_rows:
        raise InputError(
            f"scaling: {count} rows are more than {max_rows}; give fewer settings or sizes, or "
            f"max_rows={count}"
        )
    machines = [
        (
            ", ".join(f"{key}={_word(value)}" for key, value in chosen.items()),
            sized(machine, chosen, **size),
        )
        for values in product(*axes.values())
        for chosen in [dict(zip(axes, values, strict=True))]
        for size in all_sizes
    ]
    play = partial(
        _row,
        # What nobody reads is not sent to workers.
        replace(workload, samples=workload.samples if ranks is not None else ()),
        machine if isinstance(machine, str) else machine.name,
        caps_mb=caps_mb,
        measured=tuple(measured),
        local=local,
        differ=None if ranks is None else partial(_among_ranks, ranks, others or {}, samples, seed),
    )
    rows: list[ScalingRow] = []
    before: Side | None = None
    for row, side in _each(play, machines, executor):
        if before is not None and rows[-1].settings == row.settings:
            code, sentence = why_caps_change(workload, before, side)
            row = replace(row, reason_code=code, reason=sentence)
        before = side
        rows.append(row)
        progress(len(rows), count)
    return tuple(rows)


def scaling_csv(rows: Iterable[ScalingRow]) -> str:
    """A scaling view as CSV: one row a machine, times in ns; what is None is empty."""
    return csv_text(map(asdict, rows), [field.name for field in fields(ScalingRow)])


def _each(
    play: Callable[[tuple[str, Cluster]], tuple[ScalingRow, Side]],
    machines: Sequence[tuple[str, Cluster]],
    executor: Executor | None,
) -> Iterator[tuple[ScalingRow, Side]]:
    """Each row in order: in this process or on an executor."""
    if executor is None:
        yield from map(play, machines)
        return
    with closing(spread(play, machines, executor)) as results:
        yield from results


def _axis(name: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise InputError(f"{name}: {values!r} is not legal; give a sequence of values, such as [{values!r}]")
    for at, value in enumerate(values):
        if value in values[:at]:
            raise InputError(f"{name}: {value!r} occurs twice; each value may occur once")
    if not values:
        raise InputError(f"{name}: an empty axis is not legal; give at least one value")
    return list(values)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ---- Machines in many sizes.


def sized(
    machine: str | Cluster,
    settings: Mapping[str, Any],
    hosts: int | None = None,
    world_size: int | None = None,
) -> Cluster:
    """The preset with these settings, or the cluster, with so many hosts or ranks; neither: with its own.

    Ranks fill host after host. One group of hosts on a network, without a placement, gets as many hosts as it
    needs; otherwise ranks are on the first of those that it has.

    Raises:
        InputError: a name or a setting that is not known, or a size that cannot be had.
    """
    at_least("hosts", hosts, 1)
    at_least("world_size", world_size, 1)
    if isinstance(machine, Cluster):
        if settings:
            raise InputError(
                f"{next(iter(settings))}: is not legal with a cluster; change the cluster itself"
            )
        cluster = machine
    else:
        if "hosts" in settings:
            raise InputError("hosts: is no setting here; give numbers of hosts as hosts")
        if hosts is None and world_size is None:
            return preset(machine, **settings)
        cluster = preset(machine, **settings, **({} if machine == "pcie_box" else {"hosts": 1}))
    if len(cluster.hosts) == 1 and cluster.placement is None and cluster.network is not None:
        count, gpus = hosts, cluster.kinds[0].gpus
        if world_size is not None:
            count = -(-world_size // gpus)
        if count is not None and count > MAX_HOSTS:
            asked, most = ("hosts", MAX_HOSTS) if world_size is None else ("world_size", MAX_HOSTS * gpus)
            raise InputError(f"{asked}: {hosts or world_size} is not legal; give at most {most}")
        if count is not None:
            cluster = replace(cluster, hosts=(replace(cluster.hosts[0], count=count),))
    elif hosts is not None:
        return _first_hosts(cluster, hosts)
    if world_size is None or (cluster.placement is None and world_size == cluster.gpu_count):
        return cluster
    placed = tuple(islice(cluster.placement or cluster.all_gpus(), world_size))
    if world_size > len(placed):
        raise InputError(
            f"world_size: {world_size} is not legal; {cluster.name!r} has {len(placed)} GPUs for it"
        )
    return replace(cluster, placement=placed)


def _first_hosts(cluster: Cluster, count: int) -> Cluster:
    """``cluster`` with only the ranks on its first ``count`` hosts that have ranks."""
    placed = cluster.placement or tuple(cluster.all_gpus())
    owners = list(dict.fromkeys(split_name(rank)[0] for rank in placed))
    if count > len(owners):
        raise InputError(
            f"hosts: {count} is not legal; {cluster.name!r} has ranks on {len(owners)}, and only one group "
            "of hosts on a network, without a placement, can be had in other numbers"
        )
    kept = set(owners[:count])
    return replace(cluster, placement=tuple(rank for rank in placed if split_name(rank)[0] in kept))


# ---- Caps on one machine.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuned:
    """The caps on one machine (MiB; None: all that cut differently), and the step of each in ns.

    Of equal steps the best is that of the fewest buckets. ``default``: the timeline of DDP's own caps;
    ``rest_ns``: the step without ``sync_end``.
    """

    problem: Problem
    caps_mb: Sequence[float] | None
    curve: CapCurve
    steps_ns: Ints
    default: Timeline
    rest_ns: int

    @property
    def best_mb(self) -> float:
        """The best cap, in MiB: a round one of its interval, or the given one."""
        at = self.curve.best
        return self.curve.cap_mb(at) if self.caps_mb is None else int(self.curve.low_bytes[at]) / MIB

    @property
    def best_ns(self) -> int:
        """Its step."""
        return int(self.steps_ns[self.curve.best])

    @property
    def default_regret_ns(self) -> int:
        """What DDP's default loses against the best cap; below 0 where its first bucket helps."""
        return self.default.step_ns - self.best_ns

    def regret_ns(self, cap_mb: float) -> int:
        """What a cap loses against the best one."""
        at = int(np.searchsorted(self.curve.low_bytes, cap_bytes(cap_mb), side="right")) - 1
        return int(self.steps_ns[at]) - self.best_ns

    def is_alike(self, regret_ns: int) -> bool:
        """Whether so much is nothing: 0.1 % of the best step at most."""
        return regret_ns <= NOTHING * self.best_ns

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """Unbroken stretches of caps, by first and last interval, that are as good as the best."""
        return self.curve.stretches(self.steps_ns <= self.best_ns * (1 + NOTHING))

    def stretch_mb(self) -> tuple[float, float | None]:
        """First and last cap (MiB) of the stretch around the best; None: no end."""
        first, last = next(one for one in self.stretches if one[0] <= self.curve.best <= one[1])
        high = int(self.curve.high_bytes[last])
        return int(self.curve.low_bytes[first]) / MIB, None if high == NO_LIMIT else high / MIB

    def side(self) -> Side:
        """What is kept of this machine for its neighbours."""
        return Side(
            hardware=self.problem.link,
            best_mb=self.best_mb,
            best_ns=self.best_ns,
            all_are_alike=self.is_alike(int(self.steps_ns.max()) - self.best_ns),
        )


def tune_caps(workload: Workload, hardware: Hardware, caps_mb: Sequence[float] | None = None) -> Tuned:
    """All caps that cut ``workload`` differently, or these (MiB), on ``hardware``.

    Raises:
        InputError, NotModelledError: DDP does not train this workload as it is, or a cap below 0.
    """
    problem = Problem(workload, hardware)
    given = None if caps_mb is None else sorted({cap_bytes(cap) for cap in caps_mb})
    curve = cap_curve(problem, given)
    bare = assign(workload)
    default = problem.simulate(bare, "analytic")
    rest_ns = problem.rest_ns(default.step_ns, bare)
    steps_ns = problem.times * curve.sync_end_ns + rest_ns
    return Tuned(
        problem=problem, caps_mb=caps_mb, curve=curve, steps_ns=steps_ns, default=default, rest_ns=rest_ns
    )


def _row(
    workload: Workload,
    name: str,
    machine: tuple[str, Cluster],
    *,
    caps_mb: Sequence[float] | None,
    measured: Sequence[tuple[Cluster, Hardware]],
    local: Hardware | None,
    differ: Callable[[Workload, Hardware, Assignment, Assignment], dict[str, Any]] | None,
) -> tuple[ScalingRow, Side]:
    """One machine: its caps tuned, and what is kept of it for the next."""
    settings, cluster = machine
    fabric = fabric_of(cluster)
    called = f"{name}, {fabric.world_size} ranks"
    if measured:
        hardware = extrapolate_hardware(measured, cluster, called)
    else:
        hardware = with_local(hardware_of(fabric, called), local)
    tuned = tune_caps(workload, hardware, caps_mb)
    problem, default = tuned.problem, tuned.default
    best = assign(workload, bucket_cap_mb=tuned.best_mb)
    report = summarize(problem.simulate(problem.as_used(best), "analytic"))
    every = tuple((index,) for index in workload.order())
    optimum = find_optimum(problem, [default.assignment.bucket_indices, best.bucket_indices, every])
    computing_ns = workload.forward_ns + workload.loss_ns + workload.backward_ns
    single_ns = problem.switches.accumulation_steps * computing_ns + workload.optimizer_ns
    default_ns, optimum_ns = default.step_ns, problem.times * optimum.sync_end_ns + tuned.rest_ns
    low, high = tuned.stretch_mb()
    total_bytes = sum(gradient.on_wire for gradient in workload.gradients)
    method = None if measured else choose(fabric, "all_reduce", total_bytes)

    def efficiency(step: int) -> float:
        return single_ns / step if step else 1.0

    row = ScalingRow(
        machine=name,
        settings=settings,
        source="measured" if measured else "computed",
        hosts=fabric.hosts,
        world_size=hardware.world_size,
        single_step_ns=single_ns,
        all_reduce_ns=all_reduce_ns(hardware, total_bytes),
        all_reduce_method=None if method is None else str(method),
        default_step_ns=default_ns,
        default_exposed_comm_ns=default.exposed_ns,
        default_efficiency=efficiency(default_ns),
        default_num_buckets=len(default.buckets),
        default_regret_ns=tuned.default_regret_ns,
        default_is_alike=tuned.is_alike(tuned.default_regret_ns),
        bucket_cap_mb=tuned.best_mb,
        cap_low_mb=low,
        cap_high_mb=high,
        cap_num_stretches=len(tuned.stretches),
        cap_step_ns=report.step_ns,
        cap_exposed_comm_ns=report.exposed_comm_ns,
        cap_efficiency=efficiency(report.step_ns),
        cap_num_buckets=len(report.buckets),
        verdict_code=report.verdict_code,
        optimum_step_ns=optimum_ns,
        optimum_num_buckets=len(optimum.buckets),
        optimum_at_least_ns=problem.times * optimum.at_least_ns + tuned.rest_ns,
        proved_optimal=optimum.is_proved,
        own_costs="; ".join((*told_unmeasured(hardware), *told_uncounted(hardware))),
        doubts="; ".join(doubts_about(workload, hardware, of_any_size=True)),
        **_ends(hardware, tuned),
        **(differ(workload, problem.link, best, default.assignment) if differ else {}),
    )
    return row, tuned.side()


def _among_ranks(
    ranks: Ranks,
    others: Mapping[str, Workload],
    samples: int,
    seed: int,
    workload: Workload,
    hardware: Hardware,
    best: Assignment,
    default: Assignment,
) -> dict[str, Any]:
    """The best cap and the default on the same draws of ranks that differ."""
    from sim.clusters.distribution import compare_assignments  # compiled code, which only this waits for

    compared = compare_assignments(
        workload,
        hardware,
        {"cap": best, "default": default},
        ranks,
        samples=samples,
        seed=seed,
        others=others,
    )
    cap, usual = (row.distribution for row in compared.rows)
    return {
        "jitter": ranks.name,
        "samples": cap.samples,
        "mean_step_ns": cap.mean_step_ns,
        "p95_step_ns": cap.p95_step_ns,
        "slowest_cost_ns": cap.slowest_cost_ns,
        "default_mean_step_ns": usual.mean_step_ns,
    }


# ---- Hardware at either end of its range, and with a host's own costs.


def _ends(hardware: Hardware, tuned: Tuned) -> dict[str, Any]:
    """At both ends of the curve's range: the best cap, and the step, regret and gain of the row's cap."""
    low, high = (
        tune_caps(tuned.problem.job, at_end(hardware, end), tuned.caps_mb) for end in ("min_ns", "max_ns")
    )
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
    }


def at_end(hardware: Hardware, end: End) -> Hardware:
    """``hardware`` with its whole all-reduce curve at one end of its range (``spread``).

    Points without a range are sure and stay. Of a point beyond the last sure one, only the time by which it
    exceeds that one is scaled, so that the curve does not jump there.
    """
    known = hardware.spread.get("all_reduce") or {}
    ends: list[int | None] = [known.get(str(point.num_bytes), {}).get(end) for point in hardware.all_reduce]
    last_sure = max((at for at, end_ns in enumerate(ends) if end_ns is None), default=-1)
    sure_ns = 0 if last_sure < 0 else hardware.all_reduce[last_sure].duration_ns
    made = []
    for at, (point, end_ns) in enumerate(zip(hardware.all_reduce, ends, strict=True)):
        rise = point.duration_ns - sure_ns
        if end_ns is not None and at > last_sure and rise >= 0 < point.duration_ns:
            end_ns = sure_ns + divide_half_even(rise * end_ns, point.duration_ns)
        made.append(point if end_ns is None else replace(point, duration_ns=end_ns))
    left = {
        name: of for name, of in hardware.spread.items() if name not in ("all_reduce", "readings", "ranges")
    }
    ranges = {name: of for name, of in hardware.spread.get("ranges", {}).items() if name != "all_reduce"}
    return replace(hardware, all_reduce=tuple(made), spread=left | ({"ranges": ranges} if ranges else {}))


def with_local(hardware: Hardware, local: Hardware | None) -> Hardware:
    """``hardware`` with all that is no curve (copies, launches, slow-downs) as in ``local``."""
    if local is None:
        return hardware
    curves: dict[str, Any] = {name: hardware.curve(name) for name in CURVES}
    own, others = local.spread.get("ranges", {}), hardware.spread.get("ranges", {})
    ranges = {name: of for name, of in own.items() if name not in CURVES} | {
        name: of for name, of in others.items() if name not in SCALARS
    }
    spread = {name: known for name, known in local.spread.items() if name not in (*CURVES, "readings")}
    return replace(
        local,
        name=hardware.name,
        world_size=hardware.world_size,
        **curves,
        spread={**spread, **hardware.spread, **({"ranges": ranges} if ranges else {})},
        provenance={**hardware.provenance, "local": local.name},
        extensions={},
    )
