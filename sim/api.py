"""The facade: what ``import sim`` offers, and all that ``app`` needs for its work."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from sim.cluster_api import (
    cluster,
    cluster_hardware,
    hardware_beside,
    hardware_on,
    link_loads,
    load_cluster,
    play_jobs,
)
from sim.costs.scaling import scale
from sim.engine.ddp_assignment import check_reaches
from sim.engine.ddp_logging import ddp_logging_data
from sim.engine.run import run
from sim.engine.sequences import explain
from sim.engine.systems import assign
from sim.formats import documents, pasting
from sim.formats.documents import to_text
from sim.formats.pasting import bucket_indices_json
from sim.formats.perfetto import perfetto_json
from sim.formats.records import find_records, load_record
from sim.formats.tables import scaling_csv, sweep_csv
from sim.nouns.anchored import Anchored, Factor, InStepTimes, MeasuredStep
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.comparison import Agreement
from sim.nouns.hardware import Hardware
from sim.nouns.memory import MemoryPoint
from sim.nouns.recommendation import Recommendation
from sim.nouns.records import Record
from sim.nouns.robust import Criterion
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.planner.scaling import scaling
from sim.tuner.grid import sweep
from sim.tuner.pareto import pareto_front
from sim.verdict import anchoring, scoring
from sim.verdict.attribution import attribute
from sim.verdict.metrics import summarize
from sim.world.distribution import compare_assignments, step_distribution
from sim.world.loading import load_ranks

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sim.recorder.live import LiveRecording
    from sim.recorder.tap import CommHook
    from sim.validator.applying import DistributedDataParallel, Module

__all__ = [
    "agreement",
    "anchor",
    "apply",
    "assign",
    "bucket_indices_json",
    "cluster",
    "cluster_hardware",
    "compare_assignments",
    "ddp_logging_data",
    "digest",
    "explain",
    "extrapolate_hardware",
    "find_records",
    "hardware_beside",
    "hardware_on",
    "link_loads",
    "load_assignment",
    "load_cluster",
    "load_hardware",
    "load_ranks",
    "load_record",
    "load_workload",
    "pareto_front",
    "parse_cluster",
    "parse_hardware",
    "parse_workload",
    "perfetto_json",
    "play_jobs",
    "record",
    "scale",
    "scaling",
    "scaling_csv",
    "simulate",
    "snippet",
    "step_distribution",
    "summarize",
    "sweep",
    "sweep_csv",
    "to_text",
    "trade_off",
    "tune",
]

Engine = Literal["simpy", "analytic"]


def load_workload(path: str | os.PathLike[str]) -> Workload:
    """A Workload from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Workload)


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """A Hardware from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Hardware)


def load_assignment(path: str | os.PathLike[str]) -> Assignment:
    """An Assignment from its JSON file. Raises ``InputError`` naming file, field, value and what is legal."""
    return documents.load(path, Assignment)


def simulate(
    workload: Workload,
    hardware: Hardware,
    assignment: Assignment,
    engine: Engine = "simpy",
    *,
    iteration: Iteration = "steady",
    slowest: Workload | None = None,
) -> Timeline:
    """What happens in one step under ``assignment``.

    Args:
        workload: what backward makes ready, and when.
        hardware: what the machine carries.
        assignment: how the gradients are cut; it must fit the workload (A8.3).
        engine: ``simpy`` (every system and effect) or ``analytic`` (the recurrence); equal to the ns.
        iteration: which iteration the assignment belongs to: ``"steady"``, 1, 2 or 3.
        slowest: the workload as the slowest other rank runs it: the same gradients at other times. Both ranks
            begin the step together, and each collective starts once both have come to it; where this rank
            has, ``late_ns`` says for how long it waited. None: no rank is later than this one.

    Raises:
        AssignmentError: the assignment does not fit ``workload`` or ``slowest`` (A8.3).
        InputError, NotModelledError: an argument that is not legal, a system or switch that is not modelled,
            or a ``slowest`` that does not send what this rank sends.
    """
    return run(workload, hardware, assignment, engine, iteration, slowest)


def anchor(
    workload: Workload,
    hardware: Hardware,
    measured: MeasuredStep,
    *,
    factor: Factor | None = None,
    seen: InStepTimes | None = None,
    second: MeasuredStep | None = None,
) -> Anchored:
    """Hardware that makes the prediction of one measured step true: what parts measured apart leave open.

    Args:
        workload: what a single GPU computes, recorded or estimated.
        hardware: a link measured beside the step, and what copies cost.
        measured: a step of the job as it runs, and its assignment.
        factor: what to fix: ``mutual`` (both slow-downs alike), ``compute_slowdown``, ``comm_slowdown`` or
            ``curve``. None: the slow-down that is not known, or both alike.
        seen: durations of that step's all-reduces, from a profile: they give the curve in the step.
        second: a step with another number of buckets: it gives what each collective costs the compute lane.

    Raises:
        InputError: the step is shorter than the parts allow without interference, longer than interference
            can explain, or says nothing of the factor; or the second cannot be true beside it.
    """
    return anchoring.anchor(workload, hardware, measured, _play, factor=factor, seen=seen, second=second)


def _play(workload: Workload, hardware: Hardware, assignment: Assignment) -> Timeline:
    return run(workload, hardware, assignment, "analytic")


def tune(
    workload: Workload,
    hardware: Hardware,
    *,
    criterion: Criterion = "nominal",
    seed: int = 0,
    draws: int = 400,
    max_bucket_bytes: int | None = None,
    memory_limit_bytes: int | None = None,
) -> Recommendation:
    """The best contiguous assignment, its certificate, what each knob can reach, and whether it matters.

    Contiguous means: in ready order, within each dtype and device. On one channel that nothing stretches or
    blocks, or where all partitions can be simulated, the answer is proved; otherwise it is refined by
    simulation and ``lower_bound_ns`` says how far from the optimum it can be at most.

    Args:
        workload: its ``samples`` say how iterations vary.
        hardware: its ``spread`` says how all-reduces vary, and how well they were measured.
        criterion: what is recommended: the best of the step as given (``nominal``), or the best over the
            distribution of steps, by ``mean`` or by 95th percentile (``p95``).
        seed: of that distribution.
        draws: how many steps are drawn from it.
        max_bucket_bytes: the largest bucket that is allowed, in parameter bytes.
        memory_limit_bytes: the most that buckets may hold at once, on one rank.

    Raises:
        InputError: an argument that is not legal, or a limit that no assignment keeps to.
        NotModelledError: a workload that DDP does not train as it is.
    """
    from sim.tuner import recommend  # compiled code; only what tunes waits for that

    return recommend.tune(
        workload,
        hardware,
        criterion=criterion,
        seed=seed,
        draws=draws,
        max_bucket_bytes=max_bucket_bytes,
        memory_limit_bytes=memory_limit_bytes,
    )


def trade_off(
    workload: Workload, hardware: Hardware, limits: Sequence[int] | None = None
) -> tuple[MemoryPoint, ...]:
    """The best step that each limit on the largest bucket allows; ``limits`` in parameter bytes.

    Without ``limits`` powers of two, from a 256th of all gradients on, and the largest gradient.
    """
    from sim.tuner import recommend

    return recommend.trade_off(workload, hardware, limits)


def extrapolate_hardware(
    measured: Sequence[tuple[Cluster, Hardware]], cluster: Cluster, name: str | None = None
) -> Hardware:
    """The Hardware of ``cluster`` from Hardware measured on other clusters, or on itself at a few sizes.

    ``spread`` keeps the range of each point, ``provenance.uncertainty`` states it. ``measured`` holds each
    cluster, with the placement that was measured, and its Hardware; ``name`` None: the cluster's.

    Raises:
        InputError, NotModelledError: as ``sim.costs.extrapolated`` says.
    """
    from sim.costs import extrapolated  # networkx, which nothing else here needs

    return extrapolated.extrapolate_hardware(measured, cluster, name)


def parse_workload(text: str | bytes, source: str) -> Workload:
    """A Workload from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Workload, source)


def parse_hardware(text: str | bytes, source: str) -> Hardware:
    """A Hardware from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Hardware, source)


def parse_cluster(text: str | bytes, source: str) -> Cluster:
    """A Cluster from JSON text; ``source`` is what errors call it."""
    return documents.parse_text(text, Cluster, source)


def snippet(assignment: Assignment, workload: Workload) -> str:
    """Python that makes DistributedDataParallel use ``assignment``.

    Keywords of stock DistributedDataParallel where they reach it, which is checked; else ``sim.apply``.

    Raises:
        AssignmentError: ``ddp_kwargs`` reach other buckets than these, or they do not fit ``workload``.
    """
    text = pasting.snippet(assignment, workload)
    if assignment.by_keywords:
        check_reaches(workload, assignment)
    return text


def apply(model: "Module", assignment: Assignment, **ddp_kwargs: Any) -> "DistributedDataParallel":
    """``model`` in DistributedDataParallel with the buckets of ``assignment``, for a training script.

    Where the keywords of stock DDP reach the buckets with this torch and these switches, they are used, and
    one look after the rebuild warns if gradients became ready in another order than the recorded one.
    Otherwise DDP's own Reducer is given the buckets, exact from the first iteration; this works for any
    legal assignment (A8.3) and with ``find_unused_parameters`` or ``static_graph``, not with
    ``mixed_precision``.

    Args:
        model: a plain module on its device, in every process of an initialised process group.
        assignment: made for this model; one tuned for another world size gives a warning.
        ddp_kwargs: further keywords of DistributedDataParallel, which must not contradict the assignment.

    Raises:
        AssignmentError: made for another model; the message names the first difference.
        InputError: a wrapped or sharded model, or a keyword that contradicts the assignment.
        NotModelledError: a policy that DDP has not, or a keyword that is not supported with these buckets.
        MachineError: this torch lacks what the buckets need.
    """
    from sim.validator.applying import apply_to  # torch, which nothing else here needs

    return apply_to(model, assignment, **ddp_kwargs)


def record(
    ddp_model: "DistributedDataParallel",
    directory: str | os.PathLike[str],
    *,
    level: str = "full",
    every: int = 1,
    max_steps: int | None = None,
    wrap: "CommHook | None" = None,
    wrap_state: Any = None,
) -> "AbstractContextManager[LiveRecording]":
    """Record your own training loop: ``with sim.record(ddp_model, "recording"): ...``, on every rank.

    Each rank writes ``directory/rank-<r>.jsonl``; ``bucketsim import recording`` makes a Workload of them.

    Args:
        ddp_model: the DistributedDataParallel that is trained.
        directory: where the files go; made if it is not there.
        level: ``full`` sees every bucket through a communication hook, which stays and reduces as DDP does;
            ``light`` registers none and sees gradients, forward, backward and optimizer.
        every: record each Nth step only.
        max_steps: stop after so many recorded steps.
        wrap: your own communication hook, registered and recorded in place of DDP's all-reduce.
        wrap_state: its state.

    Raises:
        InputError: a model that cannot be recorded, an illegal argument, a file that is there already, or a
            communication hook that is in the way.
    """
    from sim.recorder.live import record_live  # torch, which nothing else here needs

    return record_live(
        ddp_model,
        directory,
        level=level,
        every=every,
        max_steps=max_steps,
        wrap=wrap,
        wrap_state=wrap_state,
    )


def digest(noun: Any) -> str:
    """SHA-256 of a noun's JSON text, in hex."""
    return hashlib.sha256(to_text(noun).encode()).hexdigest()


def agreement(record: Record, copies: bool = True) -> Agreement:
    """A measured record against what the model of today predicts for it.

    ``copies`` False switches the copies into and out of buckets off in the model, to show their effect. A
    record of another box than its hardware's, of slow ranks or of a neighbour is predicted as it was
    measured, from the hardware of the job alone in its box.
    """
    from sim.engine import in_box  # the graph of a box, which nothing else here needs

    if not copies:
        record = replace(
            record, hardware=replace(record.hardware, copy_in_bytes_per_s=None, copy_out_bytes_per_s=None)
        )
    limits = in_box.limits_of(record)
    record = in_box.as_measured(record)
    predictions, attributions = {}, {}
    for candidate in record.candidates:
        assert candidate.asked is not None
        if record.neighbour is not None:
            predictions[candidate.name] = in_box.report_beside(record, candidate.asked)
            continue
        predictions[candidate.name] = summarize(simulate(record.workload, record.hardware, candidate.asked))
        if candidate.iterations:
            attributions[candidate.name] = attribute(record, candidate, simulate)
    return scoring.agree(record, predictions, attributions, limits)
