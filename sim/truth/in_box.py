"""The box that a record was measured in, and how it changes the record's hardware and candidates' steps.

A box of other rates than the hardware was calibrated in, a second job beside the one measured, or ranks whose
backward is slow: each is predicted from the box as a graph, or from the slow rank's schedule.
"""

from dataclasses import replace
from statistics import median

from sim.clusters.boxes import boxed_cluster
from sim.clusters.jobs.contention import play_jobs
from sim.clusters.jobs.neighbours import hardware_on
from sim.costs.what_if import scale
from sim.errors import InputError
from sim.metrics.step import last_exposed_part, summarize
from sim.nouns.assignment import Assignment
from sim.nouns.box import Box
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.jobs import Job
from sim.nouns.records import Record
from sim.nouns.report import Report
from sim.systems.simulate import simulate
from sim.truth.recorded_step import own_step
from sim.truth.rule import CONTENDED, RULE, TRAINED, Limits
from sim.units import format_ms

PHASES = 16


def as_measured(record: Record) -> Record:
    """``record`` with its hardware carried to the box it was measured in, the slowest rank's workload, and
    both held to the job's own step where there is one.

    Hardware stays if it was calibrated in the same box, or does not say where. A measurement takes the
    slowest rank of each step, whose collectives wait for no other rank: its own workload tells its step.

    Raises:
        InputError: a neighbour without a box, or hardware that was calibrated beside a neighbour already.
        AssignmentError, NotModelledError: as ``simulate``.
    """
    check_alone(record)
    workload, hardware = record.workload, record.hardware
    if record.box is not None and record.calibrated_in is not None:
        hardware = carried_to(hardware, record.calibrated_in, record.box)
    if record.slow:
        workload, _ = scale(workload, hardware, backward=max(factor for _, factor in record.slow))
    if record.own_step is not None:
        own = own_step(workload, hardware, record.own_step)
        workload, hardware = own.workload, own.hardware
    return replace(record, workload=workload, hardware=hardware)


def limits_of(record: Record) -> Limits:
    """``CONTENDED`` for what is predicted from the box as a graph or beside others, ``TRAINED`` for models
    that compute for real, else ``RULE``.
    """
    if any(measured.mode == "model" for measured in record.measurements):
        return TRAINED
    is_carried = None not in (record.box, record.calibrated_in) and record.box != record.calibrated_in
    return CONTENDED if record.neighbour is not None or record.slow or is_carried else RULE


def check_alone(record: Record) -> None:
    """Raise ``InputError`` for hardware calibrated beside a neighbour, or a neighbour that has no box."""
    if "beside" in record.hardware.provenance:
        raise InputError(
            f"record {record.name!r}: hardware {record.hardware.name!r} was calibrated beside a neighbour; "
            f"give one that was calibrated alone, on the same hosts"
        )
    if record.neighbour is not None and record.box is None:
        raise InputError(f"record {record.name!r}: it has a neighbour, but no box in its environment")


def carried_to(hardware: Hardware, calibrated_in: Box, box: Box) -> Hardware:
    """``hardware`` as it is in ``box``: itself, where that is the box it was calibrated in."""
    if box == calibrated_in:
        return hardware
    return hardware_on(hardware, _cluster(calibrated_in), calibrated_in.ranks, _cluster(box), box.ranks)


def report_beside(record: Record, assignment: Assignment) -> Report:
    """A candidate's step beside the record's neighbour, which may be at any point of its own step meanwhile.

    The job measured begins each step when it is told to; the neighbour runs step after step without heed of
    it. So one step is played from each of ``PHASES`` moments of the neighbour's step, and the median stands
    for them. Single buckets are not predicted, as their ends differ from moment to moment.
    """
    neighbour, box = record.neighbour, record.box
    assert neighbour is not None
    assert box is not None
    theirs = carried_to(record.hardware, box, replace(box, hosts=neighbour.hosts))
    ours = Job(
        name="measured",
        ranks=box.ranks,
        workload=record.workload,
        hardware=record.hardware,
        assignment=assignment,
    )
    other = Job(
        name="neighbour",
        ranks=neighbour.ranks,
        workload=neighbour.workload,
        hardware=theirs,
        assignment=neighbour.assignment,
    )
    timeline = simulate(record.workload, record.hardware, assignment, "analytic")
    alone = summarize(timeline)
    period_ns = summarize(simulate(neighbour.workload, theirs, neighbour.assignment, "analytic")).step_ns
    steps = []
    for phase in range(PHASES):
        # The neighbour's steps are alike from its second one on.
        offset_ns = period_ns + phase * period_ns // PHASES
        played = play_jobs([ours, other], _cluster(box), steps=1, warmup=0, offsets_ns=(offset_ns, 0))
        steps.append(played.jobs[0].step_ns[0])
    added_ns = round(median(steps)) - alone.step_ns
    return replace(
        alone,
        sync_end_ns=alone.sync_end_ns + added_ns,
        step_ns=alone.step_ns + added_ns,
        exposed_comm_ns=alone.exposed_comm_ns + added_ns,
        exposed_by_micro_batch_ns=(
            *alone.exposed_by_micro_batch_ns[:-1],
            alone.exposed_by_micro_batch_ns[-1] + added_ns,
        ),
        parts_ns={
            **alone.parts_ns,
            last_exposed_part(timeline): alone.exposed_by_micro_batch_ns[-1] + added_ns,
        },
        buckets=(),
        notes=(
            *alone.notes,
            f"beside a neighbour: the median from {PHASES} moments of its step, {format_ms(min(steps))} to "
            f"{format_ms(max(steps))}; {format_ms(alone.step_ns)} alone",
        ),
    )


def _cluster(box: Box) -> Cluster:
    return boxed_cluster(box.rates_bits, box.uplink_bits)
