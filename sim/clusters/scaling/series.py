"""A workload over machines of many sizes: a row each, and why the best cap changes between them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from sim.clusters.ranks.rank_files import Ranks
from sim.clusters.scaling.one_machine import ScalingRow
from sim.errors import InputError
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.workload import Workload
from sim.tuner.sweep import spread

MAX_ROWS = 10_000

Progress = Callable[[int, int], None]
Task = TypeVar("Task")
Result = TypeVar("Result")


def scaling(
    workload: Workload,
    machine: str | Cluster,
    *,
    hosts: Sequence[int] | None = None,
    world_size: Sequence[int] | None = None,
    settings: Mapping[str, Sequence[Any]] | None = None,
    caps_mb: Sequence[float] | None = None,
    beside: Sequence[Sequence[str]] = (),
    measured: Sequence[tuple[Cluster, Hardware]] = (),
    local: Hardware | None = None,
    ranks: Ranks | None = None,
    others: Mapping[str, Workload] | None = None,
    samples: int = 200,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
    max_rows: int = MAX_ROWS,
) -> tuple[ScalingRow, ...]:
    """Efficiency, exposed communication and the best caps of a workload on machines of many sizes.

    A row a machine, in the order of the product of settings and sizes, sizes last. Each GPU keeps its batch.
    A row says why the cap that was best in the row before, of the same settings, is not as good in it.

    Args:
        workload: what backward makes ready on one GPU.
        machine: a preset's name, or a cluster. One group of hosts on a regular network, without a placement,
            can have any number of hosts; otherwise ranks are on the first of the cluster's hosts.
        hosts: numbers of hosts; None: the preset's or the cluster's own.
        world_size: in place of ``hosts`` numbers of ranks, which fill host after host.
        settings: of the preset, each with its values: ``{"oversubscription": [1, 2]}``.
        caps_mb: MiB, of which the best is looked for; None: all caps that cut differently.
        beside: the ranks of other jobs on these hosts, which take their fair share of links.
        measured: hardware of clusters of this kind, to be extrapolated; none: computed by NCCL's cost model.
        local: hardware that tells what copies, launches and slow-downs cost on a computed machine; its curves
            are not used. None: they cost nothing.
        ranks: how the ranks of each machine differ; None: not at all.
        others: the workloads that groups of ``ranks`` name.
        samples: steps of each row that are drawn where ranks differ.
        seed: of these draws.
        executor: any ``concurrent.futures.Executor``; rows are the same. None: this process.
        progress: called with (tasks done, tasks in all), in this thread.
        max_rows: more rows are refused.

    Raises:
        InputError, NotModelledError: an argument that is not legal, a machine whose ranks no way joins or
            that is not modelled, or a workload that DDP does not train as it is.
        MachineError: a worker of the executor died.
    """
    from sim.clusters.scaling.machines import (
        make_machines,  # networkx and compiled code, which only this waits for
    )
    from sim.clusters.scaling.one_machine import Question, explain, play

    machines = make_machines(
        machine,
        hosts=hosts,
        world_size=world_size,
        settings=settings or {},
        beside=beside,
        measured=measured,
        local=local,
        max_rows=max_rows,
    )
    if caps_mb is not None and not caps_mb:
        raise InputError("caps_mb: an empty list is not legal; give at least one cap in MiB")
    question = Question(
        # What nobody reads is not sent to workers.
        workload=replace(workload, samples=workload.samples if ranks is not None else ()),
        caps_mb=None if caps_mb is None else tuple(caps_mb),
        ranks=ranks,
        others=others or {},
        samples=samples,
        seed=seed,
    )
    pairs = [(at - 1, at) for at in range(1, len(machines)) if machines[at - 1].series == machines[at].series]
    total = len(machines) + len(pairs)
    played = []
    for one in _each(partial(play, question), machines, executor):
        played.append(one)
        if progress is not None:
            progress(len(played), total)
    rows = [one.row for one in played]
    neighbours = [(played[before].side, played[after].side) for before, after in pairs]
    reasons = _each(partial(explain, question), neighbours, executor)
    for done, ((_, after), reason) in enumerate(zip(pairs, reasons, strict=True), start=len(rows) + 1):
        if reason is not None:
            rows[after] = replace(rows[after], reason_code=reason.code, reason=reason.sentence)
        if progress is not None:
            progress(done, total)
    return tuple(rows)


def _each(
    function: Callable[[Task], Result], tasks: Sequence[Task], executor: Executor | None
) -> Iterator[Result]:
    """``function`` of each task, in order: in this process or on an executor."""
    if executor is None:
        yield from map(function, tasks)
        return
    with closing(spread(function, tasks, executor)) as results:
        yield from results
