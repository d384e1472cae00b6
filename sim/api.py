"""The facade: what ``import sim`` offers, and all that ``app`` needs for its work."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from sim.agreement import anchor as anchoring
from sim.agreement import differences
from sim.cluster_api import (
    cluster,
    cluster_hardware,
    hardware_beside,
    hardware_on,
    link_loads,
    load_cluster,
    play_jobs,
)
from sim.clusters.ranks.distribution import compare_assignments, step_distribution
from sim.clusters.ranks.rank_files import load_ranks
from sim.clusters.scaling.series import scaling
from sim.costs.what_if import scale
from sim.files_api import (
    digest,
    load_assignment,
    load_hardware,
    load_workload,
    parse_cluster,
    parse_hardware,
    parse_workload,
    read_uploads,
)
from sim.formats import pasting
from sim.formats.deepspeed_config import deepspeed_config
from sim.formats.documents import to_text
from sim.formats.pasting import bucket_indices_json
from sim.formats.perfetto import perfetto_json
from sim.formats.records import find_records, load_record
from sim.formats.tables import scaling_csv, sweep_csv
from sim.live_api import (
    calibrate_live,
    find_recordings,
    follow,
    judge_live,
    latest_window,
    live_gain,
    live_window,
)
from sim.metrics import critical_path as paths
from sim.metrics.step import summarize
from sim.nouns.anchored import Anchored, Factor, InStepTimes, MeasuredStep
from sim.nouns.assignment import Assignment
from sim.nouns.cluster import Cluster
from sim.nouns.difference import Difference
from sim.nouns.hardware import Hardware
from sim.nouns.measurement import Measurement
from sim.nouns.own_step import OwnStep
from sim.nouns.path import PathSpan
from sim.nouns.timeline import Iteration, Timeline
from sim.nouns.workload import Workload
from sim.records_api import agreement, as_measured, error_limit
from sim.systems.ddp_assignment import check_reaches
from sim.systems.ddp_logging import ddp_logging_data
from sim.systems.registry import assign
from sim.systems.run import run
from sim.systems.sequences import collectives, explain
from sim.systems.switching import with_switches
from sim.tuner.sweeps.grid import sweep
from sim.tuner.sweeps.pareto import pareto_front
from sim.tuning_api import best, gain, step_band, trade_off, tune

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from sim.recorder.live import LiveRecording
    from sim.recorder.tap import CommHook
    from sim.validator.applying import DistributedDataParallel, Module

__all__ = [
    "agreement",
    "anchor",
    "apply",
    "as_measured",
    "assign",
    "best",
    "bucket_indices_json",
    "calibrate_live",
    "cluster",
    "cluster_hardware",
    "collectives",
    "compare_assignments",
    "critical_path",
    "ddp_logging_data",
    "deepspeed_config",
    "difference",
    "digest",
    "error_limit",
    "explain",
    "extrapolate_hardware",
    "find_recordings",
    "find_records",
    "follow",
    "gain",
    "hardware_beside",
    "hardware_on",
    "judge_live",
    "latest_window",
    "link_loads",
    "live_gain",
    "live_window",
    "load_assignment",
    "load_cluster",
    "load_hardware",
    "load_ranks",
    "load_record",
    "load_workload",
    "own_step",
    "pareto_front",
    "parse_cluster",
    "parse_hardware",
    "parse_workload",
    "perfetto_json",
    "play_jobs",
    "read_uploads",
    "record",
    "scale",
    "scaling",
    "scaling_csv",
    "simulate",
    "snippet",
    "step_band",
    "step_distribution",
    "summarize",
    "sweep",
    "sweep_csv",
    "to_text",
    "trade_off",
    "tune",
    "with_switches",
]

Engine = Literal["simpy", "analytic"]


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


def own_step(workload: Workload, hardware: Hardware, measured: Measurement) -> OwnStep:
    """The job's own recorded step, predicted first, and workload and hardware that make it come out.

    What parts that were measured apart leave open (the link in the step, what computation and communication
    do to each other) is fitted to the ends of its buckets, of backward and of synchronisation; the range that
    is left goes into the tuner's intervals.

    Args:
        workload: as it was recorded with the step.
        hardware: a link of as many ranks, measured beside the job.
        measured: the job's own steps, as ``bucketsim import recording`` keeps them beside the workload.

    Raises:
        InputError: another number of ranks, or too few steps.
    """
    from sim.agreement.recorded_step import own_step as fit  # numpy; only what anchors waits for that

    return fit(workload, hardware, measured, _play)


def _play(workload: Workload, hardware: Hardware, assignment: Assignment) -> Timeline:
    return run(workload, hardware, assignment, "analytic")


def difference(before: Timeline, after: Timeline) -> Difference:
    """Why ``after`` takes longer or shorter than ``before``: parts that add up to the difference exactly.

    ``sim.agreement.differences`` says how a step is taken apart. Where assignment and machine both differ,
    the assignment is changed first.

    Raises:
        SimError: a timeline that cannot be played again, see ``simulate``.
    """
    return differences.difference(before, after, _play_again, collectives)


def _play_again(timeline: Timeline) -> Timeline:
    return run(
        timeline.workload,
        timeline.hardware,
        timeline.assignment,
        "analytic",
        timeline.iteration,
        timeline.slowest,
    )


def critical_path(timeline: Timeline) -> tuple[PathSpan, ...]:
    """The spans that decide when the last gradient is available, in time order."""
    return tuple(paths.critical_path(timeline))


def extrapolate_hardware(
    measured: Sequence[tuple[Cluster, Hardware]], cluster: Cluster, name: str | None = None
) -> Hardware:
    """The Hardware of ``cluster`` from Hardware measured on other clusters, or on itself at a few sizes.

    ``spread`` keeps the range of each point, ``provenance.uncertainty`` states it. ``measured`` holds each
    cluster, with the placement that was measured, and its Hardware; ``name`` None: the cluster's.

    Raises:
        InputError, NotModelledError: as ``sim.clusters.extrapolation.other_cluster`` says.
    """
    from sim.clusters.extrapolation import (
        other_cluster as extrapolated,  # networkx, which nothing else here needs
    )

    return extrapolated.extrapolate_hardware(measured, cluster, name)


def snippet(assignment: Assignment, workload: Workload, torch: str | None = None) -> str:
    """Python that makes DistributedDataParallel use ``assignment``.

    Keywords of stock DistributedDataParallel where they reach it, which is checked; else ``sim.apply``.
    ``torch`` is the version where the script trains, such as ``"2.8"``; None: new enough for all keywords.

    Raises:
        AssignmentError: ``ddp_kwargs`` reach other buckets than these, or they do not fit ``workload``.
        InputError: a version that is none, or that lacks a switch of the assignment.
        NotModelledError: an assignment of another system than DistributedDataParallel.
    """
    text = pasting.snippet(assignment, workload, torch)
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
