"""The box that a record was measured in, and how it changes the record's hardware and candidates' steps.

A box of other rates than the hardware was calibrated in, or ranks whose backward is slow: each is predicted
from the links of the box, or from the slow rank's schedule.
"""

from dataclasses import replace

from sim.clusters.machines import boxed_cluster
from sim.clusters.neighbours import hardware_on
from sim.costs.what_if import scale
from sim.nouns.box import Box
from sim.nouns.cluster import Cluster
from sim.nouns.hardware import Hardware
from sim.nouns.records import Record
from sim.truth.recorded_step import own_step
from sim.truth.rule import CONTENDED, RULE, TRAINED, Limits


def as_measured(record: Record) -> Record:
    """``record`` with its hardware carried to the box it was measured in, the slowest rank's workload, and
    both held to the job's own step where there is one.

    Hardware stays if it was calibrated in the same box, or does not say where. A measurement takes the
    slowest rank of each step, whose collectives wait for no other rank: its own workload tells its step.

    Raises:
        AssignmentError, NotModelledError: as ``simulate``.
    """
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
    """``CONTENDED`` for what is predicted from the links of a box or of slow ranks, ``TRAINED`` for models
    that compute for real, else ``RULE``.
    """
    if any(measured.mode == "model" for measured in record.measurements):
        return TRAINED
    is_carried = None not in (record.box, record.calibrated_in) and record.box != record.calibrated_in
    return CONTENDED if record.slow or is_carried else RULE


def carried_to(hardware: Hardware, calibrated_in: Box, box: Box) -> Hardware:
    """``hardware`` as it is in ``box``: itself, where that is the box it was calibrated in."""
    if box == calibrated_in:
        return hardware
    return hardware_on(hardware, _cluster(calibrated_in), calibrated_in.ranks, _cluster(box), box.ranks)


def _cluster(box: Box) -> Cluster:
    return boxed_cluster(box.rates_bits, box.uplink_bits)
